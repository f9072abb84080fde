"""Norms: torch's LayerNorm, a LayerNorm with the unbiased deviation, and an RMSNorm for layers and for each head.

Owns: RMSNorm and UnbiasedLayerNorm with explicit gradients. On a CPU torch's RMSNorm is a chain of small operations: it
takes three times as long and saves two more copies of its input for the backward pass; the other would be such a chain
too. Does not own: the placement of norms (`layers`).

B rows, T positions, H heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.kernels.decoding_pass.layout import NORM_EPSILON as EPSILON
from lilliput.kernels.decoding_pass.layout import UNBIASED_EPSILON


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


def normalise_unbiased(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    centred = x - x.mean(dim=-1, keepdim=True)
    deviation = torch.linalg.vector_norm(centred, dim=-1, keepdim=True).div_(math.sqrt(x.shape[-1] - 1))
    return torch.addcmul(bias, centred.div_(deviation + UNBIASED_EPSILON), weight), deviation


class UnbiasedDeviation(torch.autograd.Function):
    """(x - mean) / (unbiased standard deviation + epsilon) * weight + bias over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        normed, deviation = normalise_unbiased(x, weight, bias)
        ctx.save_for_backward(x, weight, deviation)
        return normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (gradient,) = gradients
        x, weight, deviation = ctx.saved_tensors
        centred, divisor = x - x.mean(dim=-1, keepdim=True), deviation + UNBIASED_EPSILON
        rows = tuple(range(x.dim() - 1))
        dweight, dbias = (gradient * centred).div_(divisor).sum(dim=rows), gradient.sum(dim=rows)
        inner = gradient * weight
        # Equal numbers have deviation 0 and centred values 0: the bound only avoids 0 / 0.
        along = (inner * centred).sum(dim=-1, keepdim=True).div_(divisor * deviation.clamp(min=1e-30))
        dcentred = inner.addcmul_(centred, along.div_(1 - x.shape[-1])).div_(divisor)
        return dcentred - dcentred.mean(dim=-1, keepdim=True), dweight, dbias


class UnbiasedLayerNorm(nn.Module):
    """LayerNorm that divides by the unbiased standard deviation plus 1e-6; torch's divides by sqrt(variance + 1e-5)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if not torch.is_grad_enabled():
            return normalise_unbiased(x, self.weight, self.bias)[0]
        normed: Tensor = UnbiasedDeviation.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return normed


def layer_norm(dim: int) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=EPSILON)
