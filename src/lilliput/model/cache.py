"""Keys and values of what was already read, so that a new token costs one token.

Owns: storage of keys, values and their positions, per layer, and moving rows about. It is an argument of the model,
never its state. Does not own: masks (positions say it all: padding has position -1) or the choice of what to write.

B rows, G heads of keys and values, L tokens held, T new tokens, D dim of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """One layer's keys and values: entries `start` to `end` of a buffer that grows by doubling.

    A windowed layer keeps `window - 1` entries and moves them to the front of a new buffer every `window` tokens or so.
    """

    def __init__(self, rows: int, kv_heads: int, head_dim: int, window: int | None, like: Tensor) -> None:
        self.window = window
        self.start = self.end = 0
        self.dropped = 0  # entries that the window has forgotten
        # (B, G, capacity, D). Not `like.new_empty`: of a weight that is in parts over processes, this would be in parts too.
        self.keys = torch.empty(rows, kv_heads, 0, head_dim, dtype=like.dtype, device=like.device)
        self.values = torch.empty_like(self.keys)
        self.positions = torch.empty(rows, 0, dtype=torch.long, device=like.device)  # (B, capacity)

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take in new keys and values; give all that the new tokens may see, with their positions."""
        if self.end + k.shape[2] > self.positions.shape[1]:
            self.make_room(k.shape[2])
        start, end = self.start, self.end + k.shape[2]
        self.keys[:, :, self.end : end] = k
        self.values[:, :, self.end : end] = v
        self.positions[:, self.end : end] = pos
        self.end = end
        if self.window is not None:
            forgotten = max(0, end - start - (self.window - 1))
            self.start += forgotten
            self.dropped += forgotten
        return self.keys[:, :, start:end], self.values[:, :, start:end], self.positions[:, start:end]

    def make_room(self, new: int) -> None:
        held = self.end - self.start
        capacity = max(held + new, 2 * held if self.window is None else 2 * self.window)
        kept = slice(self.start, self.end)
        rows, heads, _, dim = self.keys.shape
        keys, values = (old.new_empty(rows, heads, capacity, dim) for old in (self.keys, self.values))
        positions = self.positions.new_empty(rows, capacity)
        keys[:, :, :held] = self.keys[:, :, kept]
        values[:, :, :held] = self.values[:, :, kept]
        positions[:, :held] = self.positions[:, kept]
        self.keys, self.values, self.positions = keys, values, positions
        self.start, self.end = 0, held

    def select(self, rows: Tensor) -> None:
        self.keys = self.keys.index_select(0, rows)
        self.values = self.values.index_select(0, rows)
        self.positions = self.positions.index_select(0, rows)

    def can_truncate(self, length: int) -> bool:
        """Whether all is still held that the tokens after the first `length` may see."""
        return not self.dropped or length == self.dropped + (self.end - self.start)

    def truncate(self, length: int) -> None:
        self.end = self.start + length - self.dropped

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.positions.nbytes


class Cache:
    """The layers' caches and the number of tokens that every row has taken in (padding included)."""

    def __init__(self, layers: list[LayerCache], rows: int) -> None:
        self.layers = layers
        self.rows = rows
        self.length = 0

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was; rows may be dropped or doubled."""
        for layer in self.layers:
            layer.select(rows)
        self.rows = len(rows)

    def repeat(self, times: int) -> None:
        """Each row becomes `times` rows, side by side."""
        self.reorder(torch.arange(self.rows, device=self.layers[0].positions.device).repeat_interleave(times))

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` tokens; refused where a windowed layer has dropped what that needs."""
        assert 0 <= length <= self.length
        if not all(layer.can_truncate(length) for layer in self.layers):
            raise ValueError(f"a windowed layer no longer holds what a length of {length} needs: prefill again")
        for layer in self.layers:
            layer.truncate(length)
        self.length = length

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)
