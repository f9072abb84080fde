"""The input of logit processors, and how they forbid tokens.

Owns: `RowHistory`, the type of a processor, and `forbid` and `require`, which never remove the last token of a row. Does
not own: which tokens are forbidden (`repetition_penalties`, `word_constraints`), or the filters (`processors`).

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
    """A row's ids including the prompt, the length of the prompt, and the largest number of tokens to generate."""

    ids: list[int]
    prompt: int
    tokens: int

    @property
    def written(self) -> int:
        return len(self.ids) - self.prompt

    @property
    def left(self) -> int:
        return self.tokens - self.written


# Receives the rows' texts and the logits (B, V) of their next tokens, on any device. Returns new logits on the CPU and does not
# change its arguments. Each row must be independent of the others: sums over a row are cumulative, so that their order does
# not depend on the batch. The built-in processors use NumPy, which has no threads: after any exp, the threads of torch
# spin for milliseconds on the cores that the numba engine needs. They are frozen dataclasses, so strategies can be compared.
Processor = Callable[[Sequence[RowHistory], Tensor], Tensor]


def flat_places(ids: Sequence[Sequence[int] | Ids], vocabulary: int) -> Ids:
    """Return the indices of the rows' ids in flattened logits (B, V)."""
    return np.concatenate([np.asarray(own, np.int64) + row * vocabulary for row, own in enumerate(ids)])


def forbid(logits: Tensor, ids: Sequence[Sequence[int] | Ids]) -> Tensor:
    """Forbid the tokens `ids[i]` in row i, unless the row has no other token left."""
    before = logits.cpu().numpy()
    if not any(map(len, ids)):
        return torch.from_numpy(before)
    after = before.copy()
    after.reshape(-1)[flat_places(ids, before.shape[1])] = -np.inf
    return torch.from_numpy(unless_empty(before, after))


def require(logits: Tensor, ids: Mapping[int, int]) -> Tensor:
    """Forbid all tokens but `ids[i]` in row i, unless that token is forbidden; other rows stay unchanged."""
    before = logits.cpu().numpy()
    if not ids:
        return torch.from_numpy(before)
    rows, columns = list(ids), list(ids.values())
    after = before.copy()
    after[rows] = -np.inf
    after[rows, columns] = before[rows, columns]
    return torch.from_numpy(unless_empty(before, after))


def unless_empty(before: Values, after: Values) -> Values:
    """Return `after`, but `before` for rows without any token left: the earlier rule takes precedence."""
    empty = after.max(axis=1, keepdims=True) == -np.inf
    return np.where(empty, before, after) if empty.any() else after
