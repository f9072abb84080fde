"""Key-value cache: keys and values of earlier tokens, so that a pass computes only the new tokens.

Owns: storage of keys and values per layer, and adding, removing and copying rows. The cache is an argument of the model,
not part of it. Does not own: masks (it returns the position of every key, -1 for none) or the choice of tokens.

Position p of a row is stored in column p of that row; in a windowed layer in column p % window. So rows of different
lengths need no padding, a row does not move when another changes, and positions are not stored. Unused columns hold finite
values and are masked: their position is after every token of the row.

B rows, G key-value heads, T new tokens, K columns, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class IncomingTokens:
    """The new tokens of one pass, for all layers.

    `before` and `after` are the lengths of the rows; `pos` is (B, T); `real` (B, T) is false for padding (None: no padding).
    `plain`: all rows continue at the same position and padding comes last; then padding has positions like tokens.
    """

    def __init__(self, before: list[int], after: list[int], pos: Tensor, real: Tensor | None, plain: bool) -> None:
        self.before, self.after, self.pos, self.real, self.plain = before, after, pos, real, plain
        self.tokens = pos.shape[1]
        self.start = max(before)
        self.end = self.start + self.tokens if plain else max(after)
        self.seen: dict[int | None, Tensor] = {}
        self.places: dict[int | None, tuple[Tensor, Tensor, Tensor]] = {}

    def k_pos(self, window: int | None) -> Tensor:
        """Return (1 or B, K): the positions of the keys for the new tokens; computed once for all layers of a window."""
        if window not in self.seen:
            if self.start == 0:
                seen = self.pos
            elif window is None:
                seen = torch.arange(self.end, device=self.pos.device)[None]
            elif self.tokens == 1:
                seen = self.ring([self.end] if self.plain else self.after, window)
            else:
                held = self.ring([self.start] if self.plain else self.before, window)
                seen = torch.cat((held, self.pos[: len(held)]), dim=1)
            self.seen[window] = seen
        return self.seen[window]

    def ring(self, lengths: list[int], window: int) -> Tensor:
        """Return (1 or B, K): the position in each column of a windowed layer, given the lengths of its rows; -1: empty."""
        last = torch.tensor(lengths, device=self.pos.device)[:, None] - 1
        columns = torch.arange(min(max(lengths), window), device=self.pos.device)
        return (last - (last - columns) % window).clamp(min=-1)

    def where(self, window: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, indices among the new tokens, and columns of the tokens that a layer stores: (N) each."""
        if window not in self.places:
            kept = torch.ones_like(self.pos, dtype=torch.bool) if self.real is None else self.real
            if window is not None:
                kept = kept & (self.pos >= torch.tensor(self.after, device=kept.device)[:, None] - window)
            rows, tokens = kept.nonzero(as_tuple=True)
            columns = self.pos[rows, tokens]
            self.places[window] = rows, tokens, columns if window is None else columns % window
        return self.places[window]


class LayerCache:
    """The keys and values of one layer. Rows and columns grow by doubling; columns up to the window."""

    coming: IncomingTokens

    def __init__(self, rows: int, kv_heads: int, head_dim: int, window: int | None, like: Tensor) -> None:
        self.window = window
        # Not `like.new_zeros`: with a sharded weight this would be sharded too.
        self.use(torch.zeros(2, rows, kv_heads, 0, head_dim, dtype=like.dtype, device=like.device))

    def use(self, held: Tensor) -> None:
        self.held = held  # (2, B or more, G, K or more, D)
        self.keys, self.values = held[0], held[1]  # not `unbind`: autograd forbids writing into its views

    def make_room(self, rows: int, columns: int) -> None:
        _, had_rows, heads, had_columns, dim = self.held.shape
        columns = self.bound(columns)
        if rows <= had_rows and columns <= had_columns:
            return
        if rows > had_rows:
            rows = max(rows, 2 * had_rows)
        if columns > had_columns:
            columns = self.bound(1 << (columns - 1).bit_length())
        # Zeros: a masked column has weight 0, and 0 times uninitialised memory can be NaN.
        held = self.held.new_zeros(2, max(rows, had_rows), heads, max(columns, had_columns), dim)
        held[:, :had_rows, :, :had_columns] = self.held
        self.use(held)

    def bound(self, columns: int) -> int:
        return columns if self.window is None else min(columns, self.window)

    def columns(self, first: int, last: int) -> list[slice]:
        """Return the columns of the positions from `first` to before `last` that are still stored, in order."""
        if self.window is None:
            return [slice(first, last)]
        first = max(first, last - self.window)
        if first >= last:
            return []
        begin, end = first % self.window, (last - 1) % self.window + 1
        return [slice(begin, end)] if begin < end else [slice(begin, self.window), slice(0, end)]

    def expect(self, coming: IncomingTokens) -> None:
        self.make_room(len(coming.before), coming.end)
        self.coming = coming

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store new keys and values; return all keys and values for the new tokens, with their positions."""
        coming, rows = self.coming, len(k)
        assert pos is coming.pos, "not the pass that `expect` prepared"
        if coming.start == 0:
            self.write(k, v)
            return k, v, coming.k_pos(self.window)
        if self.window is None or coming.tokens == 1:
            self.write(k, v)
            seen = slice(self.bound(coming.end))
            return self.keys[:rows, :, seen], self.values[:rows, :, seen], coming.k_pos(self.window)
        # In a window, the last new tokens overwrite keys that the first new tokens still need.
        seen = slice(self.bound(coming.start))
        keys, values = (torch.cat((old[:rows, :, seen], new), dim=2) for old, new in ((self.keys, k), (self.values, v)))
        self.write(k, v)
        return keys, values, coming.k_pos(self.window)

    def write(self, k: Tensor, v: Tensor) -> None:
        coming, rows = self.coming, len(k)
        if coming.plain and (self.window is None or coming.real is None):
            # Trailing padding is stored like a token: the next tokens of the row overwrite it.
            left = self.bound(coming.tokens)
            for piece in self.columns(coming.start, coming.end):
                new = slice(coming.tokens - left, coming.tokens - left + piece.stop - piece.start)
                self.keys[:rows, :, piece] = k[:, :, new]
                self.values[:rows, :, piece] = v[:, :, new]
                left -= piece.stop - piece.start
            return
        of, token, column = coming.where(self.window)
        self.keys[of, :, column] = k[of, :, token]  # (N, G, D)
        self.values[of, :, column] = v[of, :, token]

    def copy_row(self, source: LayerCache, row: int, to: int, first: int, last: int) -> None:
        """Copy the source's row `row` to row `to`, from position `first` to before `last`."""
        for piece in self.columns(first, last):
            self.held[:, to, :, piece] = source.held[:, row, :, piece]

    def like(self, rows: int) -> LayerCache:
        """Return an empty cache of this layer for a number of rows."""
        return LayerCache(rows, self.held.shape[2], self.held.shape[4], self.window, self.held)

    def can_truncate(self, peak: int, length: int) -> bool:
        """Return whether a row that once had `peak` tokens still holds the keys that follow-up tokens of `length` need."""
        return self.window is None or max(0, peak - self.window) <= max(0, length + 1 - self.window)

    @property
    def nbytes(self) -> int:
        return self.held.nbytes


class Cache:
    """The caches of all layers, and the length of each row.

    `alike[i, j]` is the number of leading tokens that are known to be equal in rows i and j, because one was a copy of the
    other. Beams of one prompt differ only in their last tokens, and only these are copied.
    """

    coming: IncomingTokens

    def __init__(self, layers: list[LayerCache], rows: int) -> None:
        self.layers = layers
        self.lengths = [0] * rows
        self.peaks = [0] * rows  # the largest length that each row has had: a window has overwritten older tokens
        self.alike = np.zeros((rows, rows), dtype=np.int64)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def length(self) -> int:
        """Return the length of the longest row."""
        return max(self.lengths)

    def expect(self, tokens: int, pos: Tensor | None) -> tuple[Tensor, bool]:
        """Prepare a pass of `tokens` tokens per row at positions (B, T), where -1 is padding (None: no padding).

        Returns the positions, and whether all rows continue at the same position, so that they share one mask.
        """
        before, device = self.lengths, self.layers[0].held.device
        start = max(before)
        even = start == min(before)
        in_order = torch.arange(start, start + tokens, device=device).expand(self.rows, -1)
        real: Tensor | None = None
        if pos is None:
            plain, after = even, [length + tokens for length in before]
            behind = [start - length for length in before]
            pos = in_order if even else in_order - torch.tensor(behind, device=device)[:, None]
        else:  # `tolist` waits for the device; a pass without padding does not wait
            real = pos >= 0
            after = [length + count for length, count in zip(before, real.sum(dim=1).tolist(), strict=True)]
            ends = [max(length, last + 1) for length, last in zip(before, pos.amax(dim=1).tolist(), strict=True)]
            assert ends == after, "new tokens must continue at the end of their row"
            plain = even and bool(((pos == in_order) | ~real).all())
            pos = in_order if plain else pos
        self.coming = IncomingTokens(before, after, pos, real, plain)
        for layer in self.layers:
            layer.expect(self.coming)
        return pos, plain

    def filled(self, window: int) -> bool:
        """Return whether every row has a full window after the pass."""
        return min(self.coming.after) >= window

    def advance(self, tokens: int) -> None:
        assert tokens == self.coming.tokens, "not the pass that `expect` prepared"
        self.lengths = self.coming.after
        self.peaks = list(map(max, self.peaks, self.lengths))

    def rearrange(self, rows: Sequence[int]) -> list[int]:
        """Keep only these rows, repeated rows as copies; return the new index of each.

        Rows stay in place where possible: removing one row costs at most one copy, a change of order none.
        """
        count, where = len(rows), list(rows)
        stay: set[int] = set()
        arriving = []
        for place, row in enumerate(rows):
            if row < count and row not in stay:
                stay.add(row)
            else:
                arriving.append(place)
        free = [row for row in range(count) if row not in stay]
        self.make_room(count)
        np.fill_diagonal(self.alike, self.lengths)
        for place in arriving:
            row = rows[place]
            to = where[place] = free.pop(int(self.alike[free, row].argmax()))
            # In a window, rows of different lengths have overwritten different tokens: copy all of the row.
            even = (self.lengths[to], self.peaks[to]) == (self.lengths[row], self.peaks[row])
            self.copy_row(self, row, to, first=int(self.alike[to, row]) if even else 0)
            self.alike[to] = self.alike[row]
            self.alike[:, to] = self.alike[:, row]
        self.lengths, self.peaks, self.alike = self.lengths[:count], self.peaks[:count], self.alike[:count, :count]
        return where

    def pick(self, rows: Sequence[int]) -> Cache:
        """Return a cache with copies of these rows."""
        picked = Cache([layer.like(len(rows)) for layer in self.layers], 0)
        picked.append(self, rows)
        return picked

    def append(self, source: Cache, rows: Sequence[int]) -> None:
        """Append copies of these rows of another cache."""
        had = self.rows
        # One more column, because a copied row gets new tokens.
        self.make_room(had + len(rows), 1 + max(source.lengths[row] for row in rows))
        for to, row in enumerate(rows, start=had):
            self.copy_row(source, row, to)
        np.fill_diagonal(source.alike, source.lengths)
        self.alike[had:, had:] = source.alike[np.ix_(rows, rows)]

    def make_room(self, rows: int, columns: int = 0) -> None:
        """Allocate at least this number of rows and columns; new rows are empty."""
        new = max(0, rows - self.rows)
        self.lengths, self.peaks = self.lengths + [0] * new, self.peaks + [0] * new
        if new:
            self.alike = np.pad(self.alike, (0, new))
        for layer in self.layers:
            layer.make_room(rows, columns)

    def copy_row(self, source: Cache, row: int, to: int, first: int = 0) -> None:
        """Copy the source's row `row` to row `to`; both are already equal before position `first`."""
        self.lengths[to], self.peaks[to] = source.lengths[row], source.peaks[row]
        for mine, other in zip(self.layers, source.layers, strict=True):
            mine.copy_row(other, row, to, first, source.lengths[row])

    def truncate(self, length: int) -> None:
        """Drop all tokens after the first `length` of each row; ValueError if a windowed layer has overwritten needed tokens."""
        peaks = [peak for peak, had in zip(self.peaks, self.lengths, strict=True) if had > length]
        if not all(layer.can_truncate(peak, length) for layer in self.layers for peak in peaks):
            raise ValueError(f"a windowed layer has overwritten tokens that length {length} needs: prefill again")
        self.lengths = [min(had, length) for had in self.lengths]
        self.alike = np.minimum(self.alike, length)

    @property
    def nbytes(self) -> int:
        """Return the size of the allocated storage."""
        return sum(layer.nbytes for layer in self.layers)
