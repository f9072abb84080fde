"""Keys and values of what was already read, so that a new token costs one token.

Owns: storage of keys and values, per layer, where in it each token stands, and rows that come, go and are
doubled. It is an argument of the model, never its state. Does not own: masks (it tells the position of every
key, -1 for none) or the choice of what to write.

Position p of a row stands in column p of that row, in a windowed layer in column p % window. So texts of
unequal lengths stand side by side without padding, no row moves because of another, and positions need no
storage. Whatever else a column holds is finite and seen by nobody: it is later than every token of its row.

B rows, G heads of keys and values, T new tokens, K columns, D dim of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Coming:
    """The tokens that one pass brings, for all layers.

    `before` and `after` are what the rows hold; `pos` is (B, T), `real` (B, T) tells padding from tokens (None: no padding).
    `plain`: all rows go on from the same position, and padding comes last; then it has the positions that tokens would have.
    """

    def __init__(self, before: list[int], after: list[int], pos: Tensor, real: Tensor | None, plain: bool) -> None:
        self.before, self.after, self.pos, self.real, self.plain = before, after, pos, real, plain
        self.tokens = pos.shape[1]
        self.start = max(before)
        self.end = self.start + self.tokens if plain else max(after)
        self.seen: dict[int | None, Tensor] = {}
        self.places: dict[int | None, tuple[Tensor, Tensor, Tensor]] = {}

    def k_pos(self, window: int | None) -> Tensor:
        """(1 or B, K): the positions of the keys that the new tokens are shown; made once for all layers of a window."""
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
        """(1 or B, K): the position in each column of a windowed layer whose rows have these lengths; -1: empty."""
        last = torch.tensor(lengths, device=self.pos.device)[:, None] - 1
        columns = torch.arange(min(max(lengths), window), device=self.pos.device)
        return (last - (last - columns) % window).clamp(min=-1)

    def where(self, window: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, places among the new tokens, and columns of those that a layer is to hold: (N) each."""
        if window not in self.places:
            kept = torch.ones_like(self.pos, dtype=torch.bool) if self.real is None else self.real
            if window is not None:
                kept = kept & (self.pos >= torch.tensor(self.after, device=kept.device)[:, None] - window)
            rows, tokens = kept.nonzero(as_tuple=True)
            columns = self.pos[rows, tokens]
            self.places[window] = rows, tokens, columns if window is None else columns % window
        return self.places[window]


class LayerCache:
    """One layer's keys and values. Its columns grow by doubling, up to the window; its rows by doubling, too."""

    coming: Coming

    def __init__(self, rows: int, kv_heads: int, head_dim: int, window: int | None, like: Tensor) -> None:
        self.window = window
        # Not `like.new_zeros`: of a weight that is in parts over processes, this would be in parts too.
        self.use(torch.zeros(2, rows, kv_heads, 0, head_dim, dtype=like.dtype, device=like.device))

    def use(self, held: Tensor) -> None:
        self.held = held  # (2, B or more, G, K or more, D)
        self.keys, self.values = held[0], held[1]  # not `unbind`: autograd lets nobody write into what that gives

    def make_room(self, rows: int, columns: int) -> None:
        _, had_rows, heads, had_columns, dim = self.held.shape
        columns = self.bound(columns)
        if rows <= had_rows and columns <= had_columns:
            return
        if rows > had_rows:
            rows = max(rows, 2 * had_rows)
        if columns > had_columns:
            columns = self.bound(1 << (columns - 1).bit_length())
        # Zeros: what nobody sees has a weight of 0, and 0 times what memory happens to hold need not be 0.
        held = self.held.new_zeros(2, max(rows, had_rows), heads, max(columns, had_columns), dim)
        held[:, :had_rows, :, :had_columns] = self.held
        self.use(held)

    def bound(self, columns: int) -> int:
        return columns if self.window is None else min(columns, self.window)

    def columns(self, first: int, last: int) -> list[slice]:
        """Where the positions from `first` to before `last` stand, as far as they are held; in order."""
        if self.window is None:
            return [slice(first, last)]
        first = max(first, last - self.window)
        if first >= last:
            return []
        begin, end = first % self.window, (last - 1) % self.window + 1
        return [slice(begin, end)] if begin < end else [slice(begin, self.window), slice(0, end)]

    def expect(self, coming: Coming) -> None:
        self.make_room(len(coming.before), coming.end)
        self.coming = coming

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take in new keys and values; give all that the new tokens may see, with their positions."""
        coming, rows = self.coming, len(k)
        assert pos is coming.pos, "not the pass that was announced"
        if coming.start == 0:
            self.write(k, v)
            return k, v, coming.k_pos(self.window)
        if self.window is None or coming.tokens == 1:
            self.write(k, v)
            seen = slice(self.bound(coming.end))
            return self.keys[:rows, :, seen], self.values[:rows, :, seen], coming.k_pos(self.window)
        # In a window, the last of the new tokens are written over what the first of them still see.
        seen = slice(self.bound(coming.start))
        keys, values = (torch.cat((old[:rows, :, seen], new), dim=2) for old, new in ((self.keys, k), (self.values, v)))
        self.write(k, v)
        return keys, values, coming.k_pos(self.window)

    def write(self, k: Tensor, v: Tensor) -> None:
        coming, rows = self.coming, len(k)
        if coming.plain and (self.window is None or coming.real is None):
            # Padding that comes last is written like any token: the row's next ones will be written over it.
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
        """Row `to` becomes the source's row `row`, from position `first` to before `last`."""
        for piece in self.columns(first, last):
            self.held[:, to, :, piece] = source.held[:, row, :, piece]

    def like(self, rows: int) -> LayerCache:
        """Empty, for so many rows."""
        return LayerCache(rows, self.held.shape[2], self.held.shape[4], self.window, self.held)

    def can_truncate(self, peak: int, length: int) -> bool:
        """Whether a row that once had `peak` tokens still holds what the tokens after the first `length` may see."""
        return self.window is None or max(0, peak - self.window) <= max(0, length + 1 - self.window)

    @property
    def nbytes(self) -> int:
        return self.held.nbytes


class Cache:
    """The layers' caches, and what each row holds.

    `alike[i, j]`: so many tokens at the beginning of rows i and j are known to be the same in storage, because one was once
    a copy of the other. Beams of one prompt are alike but for their last few tokens, and only these are copied.
    """

    coming: Coming

    def __init__(self, layers: list[LayerCache], rows: int) -> None:
        self.layers = layers
        self.lengths = [0] * rows
        self.peaks = [0] * rows  # the most tokens that a row ever had: what a window wrote over does not come back
        self.alike = np.zeros((rows, rows), dtype=np.int64)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def length(self) -> int:
        """Of the longest row."""
        return max(self.lengths)

    def expect(self, tokens: int, pos: Tensor | None) -> tuple[Tensor, bool]:
        """Announce a pass of so many tokens for each row, at these positions, (B, T): -1 is padding; None: none is.

        Gives the positions, and whether all rows go on from the same one in order, so that one row's mask is everybody's.
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
        else:  # whoever pads waits for answers of the device; a pass without padding waits for nothing
            real = pos >= 0
            after = [length + count for length, count in zip(before, real.sum(dim=1).tolist(), strict=True)]
            ends = [max(length, last + 1) for length, last in zip(before, pos.amax(dim=1).tolist(), strict=True)]
            assert ends == after, "a row goes on from where it ends"
            plain = even and bool(((pos == in_order) | ~real).all())
            pos = in_order if plain else pos
        self.coming = Coming(before, after, pos, real, plain)
        for layer in self.layers:
            layer.expect(self.coming)
        return pos, plain

    def filled(self, window: int) -> bool:
        """Whether the pass leaves every row with a whole window."""
        return min(self.coming.after) >= window

    def advance(self, tokens: int) -> None:
        assert tokens == self.coming.tokens, "not the pass that was announced"
        self.lengths = self.coming.after
        self.peaks = list(map(max, self.peaks, self.lengths))

    def rearrange(self, rows: Sequence[int]) -> list[int]:
        """Hold these rows alone, and twice what comes twice; tells where each is afterwards.

        Whatever can stay does: of n rows one that leaves costs one copy, a mere change of order none.
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
            # A window may have lost what a row of another length still holds.
            even = (self.lengths[to], self.peaks[to]) == (self.lengths[row], self.peaks[row])
            self.copy_row(self, row, to, first=int(self.alike[to, row]) if even else 0)
            self.alike[to] = self.alike[row]
            self.alike[:, to] = self.alike[:, row]
        self.lengths, self.peaks, self.alike = self.lengths[:count], self.peaks[:count], self.alike[:count, :count]
        return where

    def pick(self, rows: Sequence[int]) -> Cache:
        """Copies of these rows; these stay as they are."""
        picked = Cache([layer.like(len(rows)) for layer in self.layers], 0)
        picked.append(self, rows)
        return picked

    def append(self, source: Cache, rows: Sequence[int]) -> None:
        """Copies of these rows of another cache come after the rows of this one."""
        had = self.rows
        # Room for a token more, because a row is copied to be read on.
        self.make_room(had + len(rows), 1 + max(source.lengths[row] for row in rows))
        for to, row in enumerate(rows, start=had):
            self.copy_row(source, row, to)
        np.fill_diagonal(source.alike, source.lengths)
        self.alike[had:, had:] = source.alike[np.ix_(rows, rows)]

    def make_room(self, rows: int, columns: int = 0) -> None:
        """For so many rows; those that are new hold nothing."""
        new = max(0, rows - self.rows)
        self.lengths, self.peaks = self.lengths + [0] * new, self.peaks + [0] * new
        if new:
            self.alike = np.pad(self.alike, (0, new))
        for layer in self.layers:
            layer.make_room(rows, columns)

    def copy_row(self, source: Cache, row: int, to: int, first: int = 0) -> None:
        """Row `to` becomes the source's row `row`, from which it does not differ before the position `first`."""
        self.lengths[to], self.peaks[to] = source.lengths[row], source.peaks[row]
        for mine, other in zip(self.layers, source.layers, strict=True):
            mine.copy_row(other, row, to, first, source.lengths[row])

    def truncate(self, length: int) -> None:
        """Forget what comes after the first `length` tokens of a row; refused where a windowed layer has lost what that needs."""
        peaks = [peak for peak, had in zip(self.peaks, self.lengths, strict=True) if had > length]
        if not all(layer.can_truncate(peak, length) for layer in self.layers for peak in peaks):
            raise ValueError(f"a windowed layer no longer holds what a length of {length} needs: prefill again")
        self.lengths = [min(had, length) for had in self.lengths]
        self.alike = np.minimum(self.alike, length)

    @property
    def nbytes(self) -> int:
        """Of the rows and columns that there is room for."""
        return sum(layer.nbytes for layer in self.layers)
