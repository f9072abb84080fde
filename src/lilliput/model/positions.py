"""Positional encodings.

Owns: `Positions`, one class with three hooks, all without effect by default, so that "no positions" is the base class
itself: `embed` adds to the residual stream at the bottom, `rotate` turns queries and keys in every layer, `bias` adds to
the attention scores. Positions are explicit integers, absolute within their document, so that neither the cache nor packing
is a special case. Does not own: the mask (`attention_mask.visible`).

B rows, T positions, C dim, H heads, D dim of a head, K keys.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from lilliput.settings.tree import ModelSettings

Turn = tuple[Tensor, Tensor]  # cosines and signed sines, (B or 1, T, 1, D)


class Positions(nn.Module):
    """No positions; the base of the others. Padding has position -1 and is clamped: nothing reads what it gets."""

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        return cls()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x

    def turn(self, pos: Tensor, dtype: torch.dtype) -> Turn | None:
        """What `rotate` needs of the positions: made once a pass, for all layers."""
        return None

    def rotate(self, heads: Tensor, turn: Turn | None) -> Tensor:
        """Queries and keys side by side, (B, T, H, D): one turn for both."""
        return heads

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Return what is added to the attention scores, (B or 1, H or 1, T, K), for queries at q_pos (B, T) and keys at
        k_pos (B, K); it is the same in all layers of one window."""
        return None


class Learned(Positions):
    """A learned vector for each position (Radford et al. 2019)."""

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        return cls(settings.context, settings.dim)

    def __init__(self, context: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(context, dim)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        added: Tensor = self.table(pos.clamp(min=0))
        return x + added


class Sinusoidal(Positions):
    """Vaswani et al. 2017, section 3.5: sines and cosines interleaved."""

    table: Tensor

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        return cls(settings.context, settings.dim)

    def __init__(self, context: int, dim: int) -> None:
        super().__init__()
        angles = angle_table(context, dim, base=10_000.0)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)  # (context, C)
        self.register_buffer("table", table, persistent=False)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.table[pos.clamp(min=0)].to(x.dtype)


class Rotary(Positions):
    """Su et al. 2021, in the half-split layout of Llama, so that weights travel without a permutation."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        return cls(settings.context, settings.dim // settings.heads, settings.rotary_base)

    def __init__(self, context: int, head_dim: int, base: float) -> None:
        super().__init__()
        angles = angle_table(context, head_dim, base)
        # cos twice and (-sin, sin): a turn is then two products and one sum over the whole head.
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), dim=-1), persistent=False)  # (context, D)
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), dim=-1), persistent=False)

    def turn(self, pos: Tensor, dtype: torch.dtype) -> Turn:
        index = pos.clamp(min=0)
        return self.cos[index].to(dtype)[:, :, None], self.sin[index].to(dtype)[:, :, None]

    def rotate(self, heads: Tensor, turn: Turn | None) -> Tensor:
        assert turn is not None
        if not torch.is_grad_enabled():  # autograd's door costs as much as one token's turn
            return turn_heads(heads, *turn)
        rotated: Tensor = Rotate.apply(heads, *turn)  # type: ignore[no-untyped-call]
        return rotated


class Rotate(torch.autograd.Function):
    """A turn, whose gradient is the turn back; nothing is kept for it but the angles."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turn_heads(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        cos, sin = ctx.saved_tensors
        return (gradient * cos).addcmul_(swap_halves(gradient), sin, value=-1.0), None, None


def turn_heads(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (heads * cos).addcmul_(swap_halves(heads), sin)


def swap_halves(heads: Tensor) -> Tensor:
    """Of the last dimension; `roll` does the same in more time."""
    *shape, dim = heads.shape
    return heads.view(*shape, 2, dim // 2).flip(-2).reshape(heads.shape)


def angle_table(context: int, width: int, base: float) -> Tensor:
    """Position x frequency, in float64: an angle of a thousand radians has no digits to spare in float32."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(context, dtype=torch.float64)[:, None] * frequencies  # (context, width / 2)
