"""Rules about which tokens a row has used, and how many: penalties, sequences that come once, the least length.

Owns: those that count tokens. Does not own: those that read what tokens spell (`word_constraints`).

End-of-text is no part of a text, though prompts begin with it: no penalty and no n-gram rule ever touches it.
A step costs time in proportion to the rows' texts, whatever the size of the vocabulary, but for copying the
logits.

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

# Penalised logits stay within this, so that dividing them by the least temperature is finite in float32.
LARGEST = 1e18


def counted(text: RowHistory, prompt: bool) -> list[int]:
    """The ids that a rule looks at: all of them, or those that were written."""
    return text.ids if prompt else text.ids[text.prompt :]


@dataclass(frozen=True)
class Penalties:
    """Used tokens lose: first by a factor (Keskar et al. 2019, section 4.1), then by so much a use, then once and for all.

    A positive logit is divided by the factor and a negative one multiplied, so that both become less likely; dividing a
    negative one, as the paper's formula does when read literally, would reward repetition.
    """

    repetition: float
    frequency: float
    presence: float
    prompt: bool
    end: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy().copy()
        used = flat_places([counted(text, self.prompt) for text in texts], values.shape[1])
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
    """No sequence of n tokens comes twice: what would complete one that was there is forbidden."""

    n: int
    prompt: bool
    end: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        return forbid(logits, [self.completing(counted(text, self.prompt)) for text in texts])

    def completing(self, ids: Sequence[int]) -> Ids:
        used, n = np.asarray(ids, np.int64), self.n
        if len(used) < n:
            return used[:0]
        last = used[len(used) - n + 1 :]  # what has been written of the sequence that would be the next
        same = used[n - 1 :] != self.end
        for offset, id_ in enumerate(last):
            same &= used[offset : len(used) - n + 1 + offset] == id_
        found: Ids = used[n - 1 :][same]
        return found


@dataclass(frozen=True)
class MinTokens:
    """The text does not end before so many tokens."""

    tokens: int
    end: int

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        return forbid(logits, [[self.end] if text.written < self.tokens else [] for text in texts])
