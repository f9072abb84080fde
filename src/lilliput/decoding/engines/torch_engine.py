"""The torch engine: every model on every device.

Owns: `TorchRows` over the model's KV cache, the order of rows in it, and the number of threads of a pass. Does not own:
the cache (`model.kv_cache`) or the model.

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

# Weights times tokens of a pass below which a CPU uses one thread: several would spend more time in synchronisation than they
# save. 7 million weights, two busy cores, one thread against two: 1 row 5.4 and 9.9 ms, 4 rows 8.6 and 27 ms, 32 rows 14.7
# and 15.1 ms.
FEW_PRODUCTS = 100_000_000


class TorchRows:
    """Row i of the texts is row `where[i]` of the cache, so that most reorderings copy nothing."""

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
        if longest > min(counts):  # pad at the end: rows of equal length then need no mask for it
            new = [[*tokens, *[0] * (longest - len(tokens))] for tokens in new]
            at = torch.arange(longest, device=device)
            before, count = torch.tensor([cache.lengths, counts], device=device)[:, :, None]  # (B, 1) each
            pos = torch.where(at < count, before + at, -1)  # (B, T)
        read = torch.tensor(new, device=device)  # (B, T)
        with evaluating(model), threads_for(device, self.engine.weights * read.numel()):
            now = model.begin(read, pos, None, cache, capture)
            x = model.trunk(read, now)
            # Only the last token of each row goes through the head, which saves most of its products.
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
        """Order the attention weights of the last pass: rows as in the texts, columns by position (a window is a ring buffer)."""
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
    """Computes with the model itself. `capture` receives the attention weights of every pass.

    Its rows are those of the texts, its columns are ordered by position. Rows with fewer new tokens are padded at the end.
    """

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
    """Use one thread inside if the pass is small; restore the number of threads afterwards."""
    had = torch.get_num_threads()
    fewer = device.type == "cpu" and had > 1 and products < FEW_PRODUCTS
    if fewer:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if fewer:
            torch.set_num_threads(had)
