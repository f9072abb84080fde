"""The temperature of each row: constant, by position, or by the entropy of the next token.

Owns: `RowTemperature`, the processors that divide logits by a temperature, and the entropy of logits. Does not own: the
other processors and their order (`processors`).

B rows, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.decoding.repetition_penalties import LARGEST
from lilliput.decoding.row_history import RowHistory
from lilliput.kernels.logit_statistics import Values

# Small enough to be greedy in effect, large enough that the division does not overflow float32.
LEAST_TEMPERATURE = LARGEST / 1e38
# Numbers processed at a time: in float64 they fit in the processor's cache, which is three times as fast.
BLOCK = 1 << 14


class RowTemperature(ABC):
    """Divides the logits of each row by its temperature: below 1 sharper, above 1 flatter."""

    @abstractmethod
    def temperatures(self, texts: Sequence[RowHistory], values: Values) -> NDArray[np.float64]:
        """Return the temperature of each row of logits, (B)."""

    def divisors(self, texts: Sequence[RowHistory], values: Values) -> Values:
        """Return what the logits are divided by, (B, 1), in their own precision."""
        by_row = np.maximum(self.temperatures(texts, values), LEAST_TEMPERATURE)
        divisors: Values = by_row[:, None].astype(values.dtype)
        return divisors

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        return torch.from_numpy(values / self.divisors(texts, values))


@dataclass(frozen=True)
class Temperature(RowTemperature):
    """A constant temperature. Greedy decoding has a strategy of its own.

    With `final`, the temperature changes linearly from a row's first token to its token limit.
    """

    temperature: float
    final: float | None = None

    def temperatures(self, texts: Sequence[RowHistory], values: Values) -> NDArray[np.float64]:
        final = self.temperature if self.final is None else self.final
        share = np.array([text.written / max(text.tokens - 1, 1) for text in texts])
        return np.asarray(self.temperature + (final - self.temperature) * share)


@dataclass(frozen=True)
class EntropyTemperature(RowTemperature):
    """A temperature that is a linear function of the entropy H of the logits (in nats).

    temperature + (highest - temperature) x H / log(vocabulary): `temperature` if one token has all probability, `highest`
    if all tokens are equally likely.
    """

    temperature: float
    highest: float
    vocabulary: int

    def temperatures(self, texts: Sequence[RowHistory], values: Values) -> NDArray[np.float64]:
        entropies = np.concatenate([distributions(own).entropies for own in blocks(values)])[:, 0]
        # A model may have more logits than the tokenizer has tokens.
        share = np.minimum(entropies / math.log(self.vocabulary), 1.0)
        return np.asarray(self.temperature + (self.highest - self.temperature) * share)


class Distributions(NamedTuple):
    """Probabilities of rows of logits, in float64."""

    logprobs: NDArray[np.float64]  # (B, V)
    shares: NDArray[np.float64]  # (B, V)
    entropies: NDArray[np.float64]  # (B, 1), in nats


def distributions(values: Values) -> Distributions:
    """Return the softmax of logits (B, V) and its entropy. Sums are cumulative, so that removed tokens do not change them."""
    below = np.subtract(values, values.max(axis=-1, keepdims=True), dtype=np.float64)
    shares = np.exp(below)
    whole = shares.cumsum(axis=-1)[:, -1:]
    logprobs, shares = below - np.log(whole), shares / whole
    with np.errstate(invalid="ignore"):  # of removed tokens: 0 * inf
        entropies = np.where(shares > 0, -shares * logprobs, 0.0).cumsum(axis=-1)[:, -1:]
    return Distributions(logprobs, shares, entropies)


def blocks(values: Values) -> Iterator[Values]:
    """Yield a few rows at a time."""
    rows = max(1, BLOCK // values.shape[1])
    for first in range(0, len(values), rows):
        yield values[first : first + rows]
