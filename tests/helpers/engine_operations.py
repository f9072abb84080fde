"""The contract of an engine: any sequence of operations on rows equals the model without a cache.

`check_operations(build, model, seed)` draws a random sequence. Several sets of rows exist at the same time, so that a write to
the memory of another set is found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.tiny_models import assert_same
from lilliput.decoding.engines import Engine, EngineRows
from lilliput.model.transformer import Transformer

MOST_ROWS, MOST_SETS = 6, 3


@torch.inference_mode()
def uncached(model: Transformer, texts: list[list[int]]) -> Tensor:
    """Return (B, V): logits after each text, computed in one pass without a cache."""
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    return model(ids)[torch.arange(len(texts)), torch.tensor([len(text) - 1 for text in texts])]


@dataclass
class Set:
    """EngineRows and their expected texts."""

    rows: EngineRows
    texts: list[list[int]]


class Operations:
    """`done` counts the operations, so that a test can check that each kind occurred."""

    def __init__(self, build: Callable[[Transformer], Engine], model: Transformer, seed: int, tolerance: float) -> None:
        self.engine, self.model, self.tolerance = build(model), model, tolerance
        self.draw = random.Random(seed)
        self.sets: list[Set] = []
        self.done: Counter[str] = Counter()

    def tokens(self, number: int) -> list[int]:
        return [self.draw.randrange(self.model.settings.vocab_size or 1) for _ in range(number)]

    def places(self, texts: list[list[int]]) -> list[int]:
        return [self.draw.randrange(len(texts)) for _ in range(self.draw.randint(1, MOST_ROWS))]

    def check(self, logits: Tensor, held: Set) -> None:
        assert_same(logits.double().cpu(), uncached(self.model, held.texts), self.tolerance)
        assert list(held.rows.lengths) == [len(text) for text in held.texts]
        assert (held.rows.nbytes > 0) == (self.engine.name != "uncached")

    def prefill(self) -> None:
        longest = self.model.settings.context // 2
        texts = [self.tokens(self.draw.randint(1, longest)) for _ in range(self.draw.randint(1, 3))]
        logits, rows = self.engine.prefill(texts)
        self.sets.append(Set(rows, [list(text) for text in texts]))
        self.check(logits, self.sets[-1])

    def step(self, held: Set, most: int) -> None:
        """Remove rows without space for `most` tokens first; a set may become empty."""
        going = [place for place, text in enumerate(held.texts) if len(text) + most <= self.model.settings.context]
        if not going:
            self.sets.remove(held)
            return
        if len(going) < len(held.texts):
            self.reorder(held, going)
        new = [self.tokens(self.draw.randint(1, most)) for _ in held.texts]
        for text, tokens in zip(held.texts, new, strict=True):
            text += tokens
        self.check(held.rows.step(new), held)

    def reorder(self, held: Set, places: list[int]) -> None:
        held.rows.reorder(places)
        held.texts = [list(held.texts[place]) for place in places]

    def pick(self, held: Set) -> None:
        places = self.places(held.texts)
        self.sets.append(Set(held.rows.pick(places), [list(held.texts[place]) for place in places]))

    def join(self, held: Set, other: Set) -> None:
        held.rows.join(other.rows)
        held.texts += other.texts
        self.sets.remove(other)

    def truncate(self, held: Set) -> None:
        """An error only if a window has dropped the needed entries; then nothing is changed."""
        length = self.draw.randint(1, min(map(len, held.texts)))
        try:
            held.rows.truncate(length)
        except ValueError:
            assert any(window is not None for window in self.model.windows)
            self.done["refused"] += 1
        else:
            held.texts = [text[:length] for text in held.texts]

    def run(self, number: int) -> None:
        """Run `number` operations; after each, a set is extended and its logits are compared."""
        for _ in range(number):
            if not self.sets:
                self.prefill()
            held = self.draw.choice(self.sets)
            others = [other for other in self.sets if other is not held]
            kinds = ["step", "steps", "reorder", "truncate"]
            if others and sum(len(held.texts) for held in self.sets) <= MOST_ROWS * MOST_SETS:
                kinds += ["join"]
            if len(self.sets) < MOST_SETS:
                kinds += ["pick", "prefill"]
            kind = self.draw.choice(kinds)
            self.done[kind] += 1
            if kind == "reorder":
                self.reorder(held, self.places(held.texts))
            elif kind == "truncate":
                self.truncate(held)
            elif kind == "join":
                self.join(held, self.draw.choice(others))
            elif kind == "pick":
                self.pick(held)
            elif kind == "prefill":
                self.prefill()
            self.step(self.draw.choice(self.sets), most=4 if kind == "steps" else 1)


def check_operations(
    build: Callable[[Transformer], Engine], model: Transformer, seed: int, number: int = 60, tolerance: float = 1e-12
) -> Counter[str]:
    """Run random operations on rows of the engine, compare with the uncached model, and return their counts."""
    operations = Operations(build, model, seed, tolerance)
    operations.run(number)
    return operations.done
