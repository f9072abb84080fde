"""The attention mask: which keys each query sees.

Owns: the one predicate `visible`, which defines masks for training, packing, prefill, decoding, encoders and the attention
page, and the forms in which `attention.attend` takes it. Does not own: attention itself.

B rows, T queries, K keys, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def visible(q_pos: Tensor, k_pos: Tensor, q_doc: Tensor, k_doc: Tensor, causal: bool, window: int | None) -> Tensor:
    """(B, T, K): may query t see key k? Only in its own document (0 is padding, and nobody sees or is seen there)."""
    distance = q_pos[:, :, None] - k_pos[:, None, :]
    seen = (q_doc[:, :, None] == k_doc[:, None, :]) & (k_doc[:, None, :] != 0)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= distance.abs() < window
    return seen


def first_keys(pos: Tensor, doc: Tensor, window: int | None) -> Tensor | None:
    """(B, T): the first key that each query sees, where it sees all from there to itself; behind it where it sees none.

    None where the predicate cannot be said so: documents that are not in order, or positions that are not.
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
    """What `attend` needs of the predicate, in the forms that its paths take.

    `mask` None with `lower` false: all keys are visible; `lower`: the triangle. `starts`, where there are any, say the same as
    the mask, which is not made before it is asked for.
    """

    visible: Tensor | Callable[[], Tensor] | None = None  # (B or 1, 1, T, K) bool
    lower: bool = False
    starts: Tensor | None = None  # (B or 1, T): each query sees the keys from there to itself
    bias: Tensor | None = None  # (B or 1, H or 1, T, K): added to the scores, by positions that have one

    @cached_property
    def mask(self) -> Tensor | None:
        return self.visible() if callable(self.visible) else self.visible

    def whole_mask(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return the mask, the triangle included; None where all keys are visible."""
        if not self.lower:
            return self.mask
        return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()

    def biased_mask(self, queries: int, keys: int) -> Tensor:
        """Return the bias, minus infinity where a key is not visible."""
        assert self.bias is not None
        mask = self.whole_mask(queries, keys, self.bias.device)
        return self.bias if mask is None else self.bias.masked_fill(~mask, -torch.inf)
