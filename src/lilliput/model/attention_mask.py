"""The attention mask: which keys are visible to each query.

Owns: `visible`, which defines the mask for training, packing, prefill, decoding, encoders and the attention page, and the
forms in which `attention.attend` takes it. Does not own: attention itself.

B rows, T queries, K keys, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def visible(q_pos: Tensor, k_pos: Tensor, q_doc: Tensor, k_doc: Tensor, causal: bool, window: int | None) -> Tensor:
    """Return (B, T, K): whether key k is visible to query t. Both must be in the same document; document 0 is padding."""
    distance = q_pos[:, :, None] - k_pos[:, None, :]
    seen = (q_doc[:, :, None] == k_doc[:, None, :]) & (k_doc[:, None, :] != 0)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= distance.abs() < window
    return seen


def first_keys(pos: Tensor, doc: Tensor, window: int | None) -> Tensor | None:
    """Return (B, T): the first key visible to each query of a causal mask, whose visible keys end at the query itself.

    A query without visible keys gets the key after itself. Returns None if documents or positions are not in order: then
    the visible keys are not contiguous.
    """
    place, before = torch.arange(pos.shape[1], device=pos.device), doc.cummax(dim=1).values[:, :-1]
    new = torch.ones_like(doc, dtype=torch.bool)
    new[:, 1:] = doc[:, 1:] != doc[:, :-1]
    in_order = torch.where(new[:, 1:], doc[:, 1:] > before, pos[:, 1:] == pos[:, :-1] + 1)
    if not (in_order | (doc[:, 1:] == 0)).all():
        return None
    first = torch.where(new, place, 0).cummax(dim=1).values
    if window is not None:
        first = torch.maximum(first, place - (window - 1))
    return torch.where(doc == 0, place + 1, first)


@dataclass
class Visibility:
    """The mask, in the forms that the kernels of `attend` take.

    `mask` is None and `lower` false: all keys are visible. `lower`: a lower-triangular mask. `starts`, if present, is
    equivalent to the mask, which is built on first access.
    """

    visible: Tensor | Callable[[], Tensor] | None = None  # (B or 1, 1, T, K) bool
    lower: bool = False
    starts: Tensor | None = None  # (B or 1, T): the first visible key of each query; the last is the query itself
    bias: Tensor | None = None  # (B or 1, H or 1, T, K): positional bias, added to the scores

    @cached_property
    def mask(self) -> Tensor | None:
        return self.visible() if callable(self.visible) else self.visible

    def whole_mask(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return the mask, also where it is lower-triangular; None if all keys are visible."""
        if not self.lower:
            return self.mask
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()

    def biased_mask(self, queries: int, keys: int) -> Tensor:
        """Return the bias, with minus infinity where a key is not visible."""
        assert self.bias is not None
        mask = self.whole_mask(queries, keys, self.bias.device)
        return self.bias if mask is None else self.bias.masked_fill(~mask, -torch.inf)
