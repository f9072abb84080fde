"""Positional encodings.

Owns: `Positions` and its subclasses. The base class means no positions; its three hooks have no effect: `embed` adds to the
embedding, `rotate` rotates queries and keys in every layer, `bias` adds to the attention scores. Positions are explicit
integers, counted from the start of the document, so that the cache and packing need no special case. Does not own: the mask
(`attention_mask.visible`).

B rows, T positions, C dim, H heads, D head dimension, K keys.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from lilliput.model.shapes import head_width
from lilliput.settings.tree import ModelSettings

Turn = tuple[Tensor, Tensor]  # cosines and signed sines, (B or 1, T, 1, D)


class Positions(nn.Module):
    """No positions; the base class. Padding has position -1, which is clamped to 0: its encoding is not used."""

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        return cls()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x

    def turn(self, pos: Tensor, dtype: torch.dtype) -> Turn | None:
        """Return the cosines and sines for `rotate`; computed once per pass, for all layers."""
        return None

    def rotate(self, heads: Tensor, turn: Turn | None) -> Tensor:
        """Rotate queries and keys, concatenated by head in (B, T, H, D)."""
        return heads

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Return the bias of the attention scores, (B or 1, H or 1, T, K), for queries at q_pos (B, T) and keys at k_pos
        (B, K); layers with the same window share it."""
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
    """Su et al. 2021, in the half-split layout of Llama, so that weights convert without a permutation."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        return cls(settings.context, head_width(settings), settings.rotary_base)

    def __init__(self, context: int, head_dim: int, base: float) -> None:
        super().__init__()
        angles = angle_table(context, head_dim, base)
        # (cos, cos) and (-sin, sin): a rotation is then two products and one sum over the whole head.
        self.register_buffer("cos", torch.cat((angles.cos(), angles.cos()), dim=-1), persistent=False)  # (context, D)
        self.register_buffer("sin", torch.cat((-angles.sin(), angles.sin()), dim=-1), persistent=False)

    def turn(self, pos: Tensor, dtype: torch.dtype) -> Turn:
        index = pos.clamp(min=0)
        return self.cos[index].to(dtype)[:, :, None], self.sin[index].to(dtype)[:, :, None]

    def rotate(self, heads: Tensor, turn: Turn | None) -> Tensor:
        assert turn is not None
        if not torch.is_grad_enabled():  # calling an autograd function takes as long as rotating one token
            return turn_heads(heads, *turn)
        rotated: Tensor = Rotate.apply(heads, *turn)  # type: ignore[no-untyped-call]
        return rotated


class Rotate(torch.autograd.Function):
    """A rotation. Its gradient is the inverse rotation, so that only cosines and sines are saved."""

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
    """Swap the halves of the last dimension; `roll` is slower."""
    *shape, dim = heads.shape
    return heads.view(*shape, 2, dim // 2).flip(-2).reshape(heads.shape)


def angle_table(context: int, width: int, base: float) -> Tensor:
    """Return position x frequency, in float64: float32 is too imprecise for angles of a thousand radians."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(context, dtype=torch.float64)[:, None] * frequencies  # (context, width / 2)
