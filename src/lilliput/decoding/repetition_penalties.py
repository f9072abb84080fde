"""Processors that depend on the token ids of a row: repetition penalties, no repeated n-grams, minimum length.

Owns: rules about ids. Does not own: rules about the text of tokens (`word_constraints`).

Prompts begin with end-of-text, but it is not part of a text: penalties and n-gram rules ignore it. Except for a copy of the
logits, the time of a step depends on the length of the texts and not on the vocabulary.

B rows, V vocabulary, N different tokens that the rows have used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lilliput.decoding.row_history import RowHistory, flat_places, forbid
from lilliput.kernels.logit_statistics import Ids

# The largest penalised logit: divided by the lowest temperature it is still finite in float32.
LARGEST = 1e18


def counted(text: RowHistory, prompt: bool, window: int | None = None) -> list[int]:
    """Return the ids that a rule applies to: all of them, or the generated ones; with a window, the last ones of these."""
    first = 0 if prompt else text.prompt
    return text.ids[first if window is None else max(first, len(text.ids) - window) :]


@dataclass(frozen=True)
class Penalties:
    """Lower the logits of used tokens: by a factor (Keskar et al. 2019, section 4.1), per use, and once.

    Positive logits are divided by the factor and negative ones multiplied, so both become less likely. The paper's formula
    divides negative ones too, which would reward repetition. With a `window`, only uses among the last `window` tokens count.
    """

    repetition: float
    frequency: float
    presence: float
    prompt: bool
    end: int
    window: int | None = None

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy().copy()
        used = flat_places([counted(text, self.prompt, self.window) for text in texts], values.shape[1])
        places, counts = np.unique(used, return_counts=True)
        text_only = places % values.shape[1] != self.end
        places, counts = places[text_only], counts[text_only]  # (N)
        old = values.reshape(-1)[places].astype(np.float64)
        with np.errstate(over="ignore"):
            scaled = np.where(old > 0, old / self.repetition, old * self.repetition)
            lost = self.frequency * counts + self.presence
        new = (scaled.clip(-LARGEST, LARGEST) - lost.clip(-LARGEST, LARGEST)).clip(-LARGEST, LARGEST)
        values.reshape(-1)[places] = np.where(old == -np.inf, old, new)
        return torch.from_numpy(values)


@dataclass(frozen=True)
class NoRepeat:
    """Forbid tokens that would complete an n-gram which the text already has."""

    n: int
    prompt: bool
    end: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        return forbid(logits, [self.completing(counted(text, self.prompt)) for text in texts])

    def completing(self, ids: Sequence[int]) -> Ids:
        used, n = np.asarray(ids, np.int64), self.n
        if len(used) < n:
            return used[:0]
        last = used[len(used) - n + 1 :]  # the first n - 1 tokens of the next n-gram
        same = used[n - 1 :] != self.end
        for offset, id_ in enumerate(last):
            same &= used[offset : len(used) - n + 1 + offset] == id_
        found: Ids = used[n - 1 :][same]
        return found


@dataclass(frozen=True)
class MinTokens:
    """Forbid end-of-text before the minimum number of tokens."""

    tokens: int
    end: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        return forbid(logits, [[self.end] if text.written < self.tokens else [] for text in texts])
