"""How many nats a model needs for a text it has not seen.

Owns: the loss over rows of a token file, each token scored once, summed and then divided once, and what
follows from it (perplexity, bits per byte). Does not own: the choice of rows (`data.batches`) or when to
evaluate (`training`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from lilliput.data.batches import LanguageBatch
from lilliput.model.loss import Nats, language_loss
from lilliput.model.transformer import Transformer, evaluating

Total = Callable[[Sequence[float]], Sequence[float]]  # sums of what several processes have measured, each its part


def alone(numbers: Sequence[float]) -> Sequence[float]:
    return numbers


def to_perplexity(loss: float) -> float:
    return math.exp(min(loss, 709.0))  # beyond that no float holds it, and JSON knows no infinity


@dataclass(frozen=True)
class Likelihood:
    """`bits_per_byte` divides by the bytes of the original documents; of a sample, by the split's bytes per prediction."""

    nats: float
    tokens: int
    bytes: float

    @property
    def loss(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return to_perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes


def batch_nats(model: Transformer, batch: LanguageBatch, smoothing: float = 0.0, z_loss: float = 0.0) -> Nats:
    """The loss of all targets of a batch, summed: what is learned from, and what is measured."""
    pos = None if batch.pos is None else torch.from_numpy(batch.pos).to(model.device)
    doc = None if batch.doc is None else torch.from_numpy(batch.doc).to(model.device)
    ids, targets = (torch.from_numpy(array).to(model.device) for array in (batch.ids, batch.targets))
    return language_loss(model, ids, targets, pos, doc, smoothing, z_loss)


@torch.inference_mode()
def measure_likelihood(
    model: Transformer, batches: Iterable[LanguageBatch], bytes_per_prediction: float, total: Total = alone
) -> Likelihood:
    nats, tokens = 0.0, 0
    with evaluating(model):
        for batch in batches:
            nats += batch_nats(model, batch).nats.item()
            tokens += batch.tokens
    return likelihood_of(total([nats, tokens]), bytes_per_prediction)


def likelihood_of(sums: Sequence[float], bytes_per_prediction: float) -> Likelihood:
    nats, tokens = sums
    return Likelihood(nats, int(tokens), tokens * bytes_per_prediction)
