"""A row's text as processors see it, and how they rule tokens out.

Owns: `RowHistory`, the type of a processor, and the one rule for what may not come next: a row never loses
its last token. Does not own: what is ruled out (`repetition_penalties`, `word_constraints`), or the choice
among the rest (`processors`).

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lilliput.kernels.logit_statistics import Ids, Values


@dataclass
class RowHistory:
    """A row's ids so far, prompt included; how many are the prompt's; and how many may be written at most."""

    ids: list[int]
    prompt: int
    tokens: int

    @property
    def written(self) -> int:
        return len(self.ids) - self.prompt

    @property
    def left(self) -> int:
        return self.tokens - self.written


# The rows' texts, and the logits (B, V) of their next tokens, of any device; the outcome is on the CPU, where the texts are. All
# is NumPy, which has no threads: after the smallest exp of torch its threads spin for milliseconds, on the cores that the numba
# engine needs. What is given is not changed. Each row by itself: sums over a row are cumulative, an order that no batch
# changes. A frozen dataclass, so that strategies can be compared.
Processor = Callable[[Sequence[RowHistory], Tensor], Tensor]


def flat_places(ids: Sequence[Sequence[int] | Ids], vocabulary: int) -> Ids:
    """Where the ids of each row stand in logits (B, V) seen as one line."""
    return np.concatenate([np.asarray(own, np.int64) + row * vocabulary for row, own in enumerate(ids)])


def forbid(logits: Tensor, ids: Sequence[Sequence[int] | Ids]) -> Tensor:
    """Row i may not go on with any of `ids[i]`, but in a row that has no other token left."""
    before = logits.cpu().numpy()
    if not any(map(len, ids)):
        return torch.from_numpy(before)
    after = before.copy()
    after.reshape(-1)[flat_places(ids, before.shape[1])] = -np.inf
    return torch.from_numpy(unless_empty(before, after))


def require(logits: Tensor, ids: Mapping[int, int]) -> Tensor:
    """Row i must go on with `ids[i]`, if that was not ruled out before; rows that are not named are free."""
    before = logits.cpu().numpy()
    if not ids:
        return torch.from_numpy(before)
    rows, columns = list(ids), list(ids.values())
    after = before.copy()
    after[rows] = -np.inf
    after[rows, columns] = before[rows, columns]
    return torch.from_numpy(unless_empty(before, after))


def unless_empty(before: Values, after: Values) -> Values:
    """Return `after`, except for rows without any token left, which stay as before: of two rules the earlier one holds."""
    empty = after.max(axis=1, keepdims=True) == -np.inf
    return np.where(empty, before, after) if empty.any() else after
