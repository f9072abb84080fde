"""The parts of a block: norm placements and feed-forwards, each selected by name in `model_choices`.

Owns: residual wrappers and feed-forwards. Does not own: attention, norms, the order of the parts (`transformer`) or
initialisation (`initialisation`).

B rows, T positions, C dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lilliput.kernels.dropout import Dropout
from lilliput.kernels.linear import Linear
from lilliput.model.attention import PassState
from lilliput.model.shapes import gated_width


class PreNorm(nn.Module):
    """x + f(norm(x))."""

    def __init__(self, norm: nn.Module, inner: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm, self.inner, self.dropout = norm, inner, Dropout(dropout)

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        added: Tensor = self.dropout(self.inner(self.norm(x), state))
        return x + added


class PostNorm(PreNorm):
    """norm(x + f(x)), as in the original transformer (Vaswani et al. 2017)."""

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        added: Tensor = self.norm(x + self.dropout(self.inner(x, state)))
        return added


class SquaredRelu(torch.autograd.Function):
    """relu(x)^2. Its backward takes one pass over the widest tensor of a block; autograd's own takes three."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.addcmul(positive.new_zeros(()), gradients[0], positive, value=2.0)


def relu2(x: Tensor) -> Tensor:
    """Squared relu (So et al. 2021, Primer)."""
    squared: Tensor = SquaredRelu.apply(x)  # type: ignore[no-untyped-call]
    return squared


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020); gate and up come from one product."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


class FeedForward(nn.Module):
    """Two products with an activation between them. A gated activation takes two values for each value that it returns.

    `output` is the projection that writes into the residual stream; initialisers look for this name.
    """

    gated = False

    def __init__(self, dim: int, hidden: int, bias: bool) -> None:
        super().__init__()
        inside = gated_width(hidden) if self.gated else hidden
        self.up = Linear(dim, 2 * inside if self.gated else inside, bias=bias)
        self.down = Linear(inside, dim, bias=bias)

    @property
    def output(self) -> nn.Linear:
        return self.down

    def activate(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        out: Tensor = self.down(self.activate(self.up(x)))
        return out


class ReluFeedForward(FeedForward):
    def activate(self, x: Tensor) -> Tensor:
        return F.relu(x)


class GeluFeedForward(FeedForward):
    """Exact GELU: torch's tanh approximation takes four times as long on a CPU."""

    def activate(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class SquaredReluFeedForward(FeedForward):
    def activate(self, x: Tensor) -> Tensor:
        return relu2(x)


class SwigluFeedForward(FeedForward):
    gated = True

    def activate(self, x: Tensor) -> Tensor:
        return swiglu(x)
