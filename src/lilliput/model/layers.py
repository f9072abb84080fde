"""The parts of a block and the two ends of the model, each a class that is looked up by name when the model is built.

Owns: residual wrappers, feed-forwards, embeddings, heads. Does not own: attention, norms, how the parts are
put together or how they are initialised (`transformer`).

B rows, T positions, C dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lilliput.kernels.linear import Linear
from lilliput.model.attention import PassState, SelfAttention
from lilliput.model.counting import gated_width


class PreNorm(nn.Module):
    """x + f(norm(x))."""

    def __init__(self, norm: nn.Module, inner: SelfAttention | FeedForward, dropout: float) -> None:
        super().__init__()
        self.norm, self.inner, self.dropout = norm, inner, nn.Dropout(dropout)

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        added: Tensor = self.dropout(self.inner(self.norm(x), state))
        return x + added


class PostNorm(PreNorm):
    """norm(x + f(x)), as in the first transformer."""

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        added: Tensor = self.norm(x + self.dropout(self.inner(x, state)))
        return added


PLACEMENTS: dict[str, type[PreNorm]] = {"pre": PreNorm, "post": PostNorm}


@dataclass(frozen=True)
class Activation:
    """What stands between the two products of a feed-forward; a gated one takes two values for each that it gives."""

    function: Callable[[Tensor], Tensor]
    gated: bool = False


class SquaredRelu(torch.autograd.Function):
    """Its gradient is 2 relu(x) g, one pass: autograd's own chain takes three, over the widest tensor of a block."""

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


ACTIVATIONS = {
    "relu": Activation(F.relu),
    "gelu": Activation(F.gelu),  # exact: torch's tanh form takes four times as long on a CPU
    "relu2": Activation(relu2),
    "swiglu": Activation(swiglu, gated=True),
}


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        inside = gated_width(hidden) if activation.gated else hidden
        self.up = Linear(dim, 2 * inside if activation.gated else inside, bias=bias)
        self.down = Linear(inside, dim, bias=bias)
        self.activate = activation.function

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        out: Tensor = self.down(self.activate(self.up(x)))
        return out


class LearnedEmbedding(nn.Module):
    def __init__(self, vocab_size: int, dim: int, scale: float) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(vocab_size, dim), scale

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.table(ids)
        return x if self.scale == 1.0 else x * self.scale


class PretrainedEmbedding(nn.Module):
    """Word vectors of their own width, frozen or tuned, scaled, projected to dim. `put_vectors` fills the table."""

    def __init__(self, vocab_size: int, width: int, dim: int, scale: float, frozen: bool) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(vocab_size, width), scale
        self.table.weight.requires_grad_(not frozen)
        self.project = nn.Linear(width, dim, bias=False)

    def look_up(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.project(self.look_up(ids) * self.scale)
        return x.to(self.table.weight.dtype)  # the residual stream is never of 16 bits, whatever its summands are


class MendedEmbedding(PretrainedEmbedding):
    """A frozen table, and a small learned one for the tokens without a vector: a special token has to learn its own.

    `row` tells which row of `learned` is a token's, -1 where the token's vector is in the table. It is a buffer and no
    setting, so that a checkpoint says by itself which tokens were covered.
    """

    row: Tensor

    def __init__(self, vocab_size: int, width: int, dim: int, scale: float, rows: int) -> None:
        super().__init__(vocab_size, width, dim, scale, frozen=True)
        self.learned = nn.Embedding(rows, width)
        # Before any vectors are put in, the first tokens are the uncovered ones: special tokens come first by default.
        self.register_buffer("row", torch.arange(vocab_size).where(torch.arange(vocab_size) < rows, -1))

    def look_up(self, ids: Tensor) -> Tensor:
        row = self.row[ids]  # (B, T)
        return torch.where((row >= 0).unsqueeze(-1), self.learned(row.clamp(min=0)), self.table(ids))


class SoftCap(nn.Module):
    """cap x tanh(logits / cap): bounded, and nowhere without a slope (as in Gemma 2)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, logits: Tensor) -> Tensor:
        return (logits / self.cap).tanh_().mul(self.cap)


class LanguageHead(nn.Module):
    """Logits over the vocabulary; `soft_cap` bounds them."""

    def __init__(self, dim: int, vocab_size: int, bias: bool, soft_cap: float | None) -> None:
        super().__init__()
        self.project = nn.Linear(dim, vocab_size, bias=bias)
        self.soft_cap = soft_cap  # for the loss, which makes logits chunk by chunk
        self.bound = nn.Identity() if soft_cap is None else SoftCap(soft_cap)

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        logits: Tensor = self.bound(self.project(x))
        return logits


class ClassifierHead(nn.Module):
    """Mean over the real tokens of a row, then two layers."""

    def __init__(self, dim: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, hidden)
        self.project = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        real = ((state.pos >= 0) if state.doc is None else (state.doc != 0)).unsqueeze(-1)  # (B, T, 1)
        pooled = (x * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        logits: Tensor = self.project(F.relu(self.inner(pooled)))  # (B, classes)
        return logits.to(x.dtype)  # automatic casting leaves 16 bits, too few for the logarithms to come


class BothHeads(LanguageHead):
    """Logits over the vocabulary, and beside them a classifier (`label`) for who asks: decoding knows of the first only."""

    def __init__(
        self, dim: int, vocab_size: int, bias: bool, soft_cap: float | None, hidden: int, classes: int
    ) -> None:
        super().__init__(dim, vocab_size, bias, soft_cap)
        self.label = ClassifierHead(dim, hidden, classes)
