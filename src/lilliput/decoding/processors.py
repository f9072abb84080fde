"""What happens between the model's logits and the next token.

Owns: processors, `(ids, logits) -> logits`, composed in order, and choosers, which take one token a row. Does not own:
the loop (`stream`). Both work on whole batches and treat each row by itself.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# The ids of each row so far (prompt and written text), and the logits (B, V) of its next token.
Processor = Callable[[Sequence[Sequence[int]], Tensor], Tensor]


@dataclass(frozen=True)
class Temperature:
    """Divide by the temperature: below 1 sharper, above 1 flatter. Greedy is a chooser, not temperature 0."""

    temperature: float

    def __call__(self, ids: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class TopK:
    """Only the k likeliest remain. Ties at the border all remain, so that the outcome depends on no order."""

    k: int

    def __call__(self, ids: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
        least = logits.topk(min(self.k, logits.shape[-1]), dim=-1).values[:, -1:]
        return logits.masked_fill(logits < least, -torch.inf)


class Chooser(Protocol):
    def choose(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """One token for each row of logits (B, V); `rows` are the rows' numbers in the request."""
        ...


class Greedy:
    """The likeliest token; of equal ones the first."""

    def choose(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        chosen: list[int] = logits.argmax(dim=-1).tolist()
        return chosen


class Sampler:
    """Draws from the distribution, each row with a generator of its own: its draws do not depend on the batch."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def choose(self, logits: Tensor, rows: Sequence[int]) -> list[int]:
        """By inversion, one uniform number a token: exact in float64, and the same on every device."""
        generators = [self.generators[row] for row in rows]
        draws = torch.stack([torch.rand(1, dtype=torch.float64, generator=own) for own in generators])  # (B, 1)
        mass = logits.cpu().double().softmax(dim=-1).cumsum(dim=-1)  # (B, V)
        below = mass <= draws * mass[:, -1:]
        chosen: list[int] = below.sum(dim=-1).clamp(max=logits.shape[-1] - 1).tolist()
        return chosen


def build_processors(temperature: float, top_k: int | None) -> list[Processor]:
    processors: list[Processor] = []
    if temperature not in (0.0, 1.0):
        processors.append(Temperature(temperature))
    if top_k is not None:
        processors.append(TopK(top_k))
    return processors


def build_chooser(temperature: float, seeds: Sequence[int]) -> Chooser:
    return Greedy() if temperature == 0.0 else Sampler(seeds)
