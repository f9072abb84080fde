"""Norms: torch's LayerNorm, and an RMSNorm for layers and for each head of queries and keys.

Owns: RMSNorm with an explicit gradient. On a CPU torch's own is a chain of small operations: it takes three times as long
and saves two more copies of its input for the backward pass. Does not own: the placement of norms (`layers`).

B rows, T positions, H heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lilliput.kernels.decoding_pass.layout import NORM_EPSILON as EPSILON


def normalise(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    scale: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(EPSILON).rsqrt_()
    return (x * scale).mul_(weight), scale


class RootMeanSquare(torch.autograd.Function):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension; the weight may differ by head, (H, D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        normed, scale = normalise(x, weight)
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        x, weight, scale = ctx.saved_tensors
        dim, heads = weight.shape[-1], weight.numel() // weight.shape[-1]
        product = gradient * x  # the only buffer of this size: reused below
        dweight = torch.einsum("nh,nhd->hd", scale.view(-1, heads), product.view(-1, heads, dim)).view_as(weight)
        along = product.mul_(weight).sum(dim=-1, keepdim=True)
        dx = torch.mul(gradient, weight, out=product).mul_(scale)
        return dx.addcmul_(x, along * scale.pow(3).div_(-dim)), dweight


def root_mean_square(x: Tensor, weight: Tensor) -> Tensor:
    """Normalise in the dtype of the weight: autocast may have made x bfloat16, whose 7 bits are too few for a sum of squares."""
    x = x.to(weight.dtype)
    if not torch.is_grad_enabled():  # calling an autograd function takes as long as the norm of one row
        return normalise(x, weight)[0]
    normed: Tensor = RootMeanSquare.apply(x, weight)  # type: ignore[no-untyped-call]
    return normed


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return root_mean_square(x, self.weight)


class QueryKeyNorm(nn.Module):
    """RMSNorm of each head of queries and keys, which are concatenated in (B, T, H + G, D); each has its own weight."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q, self.k = nn.Parameter(torch.ones(head_dim)), nn.Parameter(torch.ones(head_dim))

    def forward(self, qk: Tensor) -> Tensor:
        weight = torch.cat((self.q.expand(self.heads, -1), self.k.expand(self.kv_heads, -1)))  # (H + G, D)
        return root_mean_square(qk, weight)


def layer_norm(dim: int) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=EPSILON)
