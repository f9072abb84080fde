"""The engine without a KV cache: it reads each text again from its start for every token.

Owns: `UncachedRows`, which hold token ids only. Does not own: the model. It exists to measure the time that a cache saves
and the memory that it costs; its logits equal those of the other engines up to rounding.

B rows, T tokens of the longest text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lilliput.decoding.engines.torch_engine import threads_for
from lilliput.model.transformer import Transformer, evaluating


class UncachedRows:
    def __init__(self, engine: UncachedEngine, texts: list[list[int]]) -> None:
        self.engine, self.texts = engine, texts

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self.texts]

    @torch.inference_mode()
    def step(self, ids: Sequence[Sequence[int]]) -> Tensor:
        assert len(ids) == len(self.texts) and all(ids), "every row takes at least one token"
        self.texts = [[*text, *new] for text, new in zip(self.texts, ids, strict=True)]
        model, lengths = self.engine.model, self.lengths
        longest = max(lengths)
        # Padding comes last, where no token of the text can see it.
        padded = [[*text, *[0] * (longest - len(text))] for text in self.texts]
        read = torch.tensor(padded, device=model.device)  # (B, T)
        with evaluating(model), threads_for(model.device, self.engine.weights * read.numel()):
            now = model.begin(read, None, None)
            x = model.trunk(read, now)
            last = x[range(len(lengths)), [length - 1 for length in lengths]][:, None]  # (B, 1, C)
            logits: Tensor = model.head(last, now)[:, -1]
        return logits

    def reorder(self, places: Sequence[int]) -> None:
        self.texts = [self.texts[place] for place in places]

    def pick(self, places: Sequence[int]) -> UncachedRows:
        return UncachedRows(self.engine, [self.texts[place] for place in places])

    def join(self, others: UncachedRows) -> None:
        self.texts = [*self.texts, *others.texts]

    def truncate(self, length: int) -> None:
        """Never raises: all keys are computed again."""
        self.texts = [text[:length] for text in self.texts]

    @property
    def nbytes(self) -> int:
        return 0


class UncachedEngine:
    name = "uncached"

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.context = model.settings.context
        self.weights = sum(weight.numel() for weight in model.parameters())

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, UncachedRows]:
        rows = UncachedRows(self, [[] for _ in views])
        return rows.step(views), rows
