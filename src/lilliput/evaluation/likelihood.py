"""Loss, perplexity and bits per byte of a model on held-out text.

Owns: the mean loss over rows of a token file, each token scored once, and the derived metrics. Does not own: the loss
of a batch (`model.loss`), the choice of rows (`data.batches`) or when to evaluate (`training`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from lilliput.data.batches import LanguageBatch
from lilliput.model.language_loss import batch_loss
from lilliput.model.transformer import Transformer, evaluating

Total = Callable[[Sequence[float]], Sequence[float]]  # sums values over all processes


def alone(numbers: Sequence[float]) -> Sequence[float]:
    return numbers


def to_perplexity(loss: float) -> float:
    return math.exp(min(loss, 709.0))  # larger values overflow a float, and JSON has no infinity


@dataclass(frozen=True)
class Likelihood:
    """`bits_per_byte` divides by the bytes of the original documents; for a sample, by the split's bytes per
    prediction.
    """

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


@torch.inference_mode()
def measure_likelihood(
    model: Transformer, batches: Iterable[LanguageBatch], bytes_per_prediction: float, total: Total = alone
) -> Likelihood:
    nats, tokens = 0.0, 0
    with evaluating(model):
        for batch in batches:
            nats += batch_loss(model, batch).nats.item()
            tokens += batch.tokens
    return likelihood_of(total([nats, tokens]), bytes_per_prediction)


def likelihood_of(sums: Sequence[float], bytes_per_prediction: float) -> Likelihood:
    nats, tokens = sums
    return Likelihood(nats, int(tokens), tokens * bytes_per_prediction)
