"""Value embeddings: attention values mixed with a table that is indexed by token.

Owns: the weighted sum of two tensors with a hand-written gradient, and `ValueEmbedding`, which uses it. The
technique comes from the speed runs of modded-nanogpt; there, as here, each of the two weights is a single
number. Does not own: which layers have a table (`count.value_layers`), how tables are initialised
(`transformer`).

B rows, T positions, G key-value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lilliput.model.attention import PassState


class Mix(torch.autograd.Function):
    """shares[0] x + shares[1] y. Autograd's own chain takes twice the passes: its two sums make their products first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, shares)
        mixed: Tensor = (x * shares[0]).addcmul_(y, shares[1])
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (gradient,) = gradients
        x, y, shares = ctx.saved_tensors
        flat = gradient.reshape(-1)
        dshares = torch.stack((flat.dot(x.reshape(-1)), flat.dot(y.reshape(-1))))
        return gradient * shares[0], gradient * shares[1], dshares


def mix(x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
    """In the type of the shares, whatever automatic casting made of x or y."""
    mixed: Tensor = Mix.apply(x.to(shares.dtype), y.to(shares.dtype), shares)  # type: ignore[no-untyped-call]
    return mixed


class Unmixed(nn.Module):
    """Return the values unchanged: the part of a layer without a value embedding."""

    def forward(self, v: Tensor, state: PassState) -> Tensor:
        return v


class ValueEmbedding(nn.Module):
    """Values of the layer's own projection and of a table by token; at first the half of each.

    The cache holds what comes out, and so knows nothing of it.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.shares = nn.Parameter(torch.tensor([0.5, 0.5]))  # one vector: FSDP2 shards no scalars

    def forward(self, v: Tensor, state: PassState) -> Tensor:
        return mix(v, self.table(state.ids).view_as(v), self.shares)  # (B, T, G, D)
