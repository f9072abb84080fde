"""The torch engine: every member of the family on every device, whole batches at a time.

Owns: `Rows` over the model's own cache, in which order the cache holds them, and how many threads a pass is
worth. Does not own: the cache's storage (`model.kv_cache`) or the net.

B rows, T new tokens, C dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lilliput.model.attention import Capture
from lilliput.model.kv_cache import Cache
from lilliput.model.transformer import Transformer, evaluating

# Weights times tokens of a pass below which a CPU is left to one thread: others would wait for each other at every product
# for longer than they help. Of 7 million weights, on two cores with others at work: one row 5.4 ms against 9.9 with two threads,
# 4 rows 8.6 against 27, 32 rows 14.7 against 15.1.
FEW_PRODUCTS = 100_000_000


class TorchRows:
    """Row i of the texts is row `where[i]` of the cache, which moves a row only if it must."""

    def __init__(self, engine: TorchEngine, cache: Cache) -> None:
        self.engine, self.cache = engine, cache
        self.where = list(range(cache.rows))

    @property
    def lengths(self) -> list[int]:
        return [self.cache.lengths[row] for row in self.where]

    @torch.inference_mode()
    def step(self, ids: Sequence[Sequence[int]]) -> Tensor:
        model, cache, capture = self.engine.model, self.cache, self.engine.capture
        device = model.device
        assert len(ids) == len(self.where) and all(ids), "every row takes at least one token"
        in_place = self.where == list(range(len(ids)))
        new: list[Sequence[int]] = list(ids)
        if not in_place:
            for row, tokens in zip(self.where, ids, strict=True):
                new[row] = tokens
        counts = list(map(len, new))
        longest = max(counts)
        pos: Tensor | None = None
        if longest > min(counts):  # padding comes last: among rows of one length no mask is then needed for it
            new = [[*tokens, *[0] * (longest - len(tokens))] for tokens in new]
            at = torch.arange(longest, device=device)
            before, count = torch.tensor([cache.lengths, counts], device=device)[:, :, None]  # (B, 1) each
            pos = torch.where(at < count, before + at, -1)  # (B, T)
        read = torch.tensor(new, device=device)  # (B, T)
        with evaluating(model), threads_for(device, self.engine.weights * read.numel()):
            now = model.begin(read, pos, None, cache, capture)
            x = model.trunk(read, now)
            # The head is for each row's last token only: V x T products are saved.
            last = (
                x[:, -1:]
                if in_place and pos is None
                else x[self.where, [counts[row] - 1 for row in self.where]][:, None]
            )
            logits: Tensor = model.head(last, now)[:, -1]
        if capture is not None:
            self.tidy(capture)
        return logits

    def tidy(self, capture: Capture) -> None:
        """The weights of the last pass by row of the texts, and their columns by position (a window is held as a ring)."""
        for layer, weights in capture.weights.items():
            window, by_row = self.engine.model.windows[layer], weights[-1]  # (B, H, T, K)
            if window is not None:
                order = self.cache.coming.k_pos(window).argsort(dim=1)  # (1 or B, K)
                by_row = by_row.gather(3, order[:, None, None].expand_as(by_row))
            weights[-1] = by_row[self.where]

    @torch.inference_mode()
    def reorder(self, places: Sequence[int]) -> None:
        self.where = self.cache.rearrange([self.where[place] for place in places])

    @torch.inference_mode()
    def pick(self, places: Sequence[int]) -> TorchRows:
        return TorchRows(self.engine, self.cache.pick([self.where[place] for place in places]))

    @torch.inference_mode()
    def join(self, others: TorchRows) -> None:
        had = self.cache.rows
        self.cache.append(others.cache, others.where)
        self.where += range(had, self.cache.rows)

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes


class TorchEngine:
    """`capture` is filled with the attention of every pass, for whoever wants to look at it: rows as in the texts, columns in
    the order of their positions; where rows take unequal numbers of tokens, the shorter are padded at the end."""

    name = "torch"

    def __init__(self, model: Transformer, capture: Capture | None = None) -> None:
        self.model, self.capture = model, capture
        self.context = model.settings.context
        self.weights = sum(weight.numel() for weight in model.parameters())

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, TorchRows]:
        rows = TorchRows(self, self.model.new_cache(len(views)))
        return rows.step(views), rows


@contextmanager
def threads_for(device: torch.device, products: int) -> Iterator[None]:
    """One thread where a pass is small; afterwards as many as before."""
    had = torch.get_num_threads()
    fewer = device.type == "cpu" and had > 1 and products < FEW_PRODUCTS
    if fewer:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if fewer:
            torch.set_num_threads(had)
