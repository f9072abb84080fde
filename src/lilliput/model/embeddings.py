"""Tokens as vectors: learned tables, pretrained word vectors, and tables of attention values by token.

Owns: the embeddings, writing word vectors into them, and `ValueEmbedding` (modded-nanogpt), attention values mixed with a
table by token. Does not own: which layers have a value table (`model_choices`), initialisation (`initialisation`).

B rows, T positions, C dim, G key-value heads, D head dimension.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lilliput.model.attention import PassState
from lilliput.settings.tree import ModelSettings, VectorSettings


class LearnedEmbedding(nn.Module):
    """A table of one learned vector per token."""

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


class PatchedEmbedding(PretrainedEmbedding):
    """A frozen table, and a small learned one for the tokens without a vector.

    `row` is the row of `learned` of each token, -1 where the token's vector is in the table. It is a buffer and not a
    setting, so that a checkpoint contains which tokens were covered.
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


def learned_embedding(settings: ModelSettings, vectors: VectorSettings) -> LearnedEmbedding:
    assert settings.vocab_size is not None
    # Sines of size one would drown a small table: Vaswani et al. 2017, section 3.4, scale it up.
    scale = math.sqrt(settings.dim) if settings.positions == "sinusoidal" else 1.0
    return LearnedEmbedding(settings.vocab_size, settings.dim, scale)


def pretrained_embedding(settings: ModelSettings, vectors: VectorSettings) -> PretrainedEmbedding:
    assert settings.vocab_size is not None and vectors.width is not None
    scale = math.sqrt(vectors.width) if vectors.scaled else 1.0
    return PretrainedEmbedding(settings.vocab_size, vectors.width, settings.dim, scale, vectors.frozen)


def patched_embedding(settings: ModelSettings, vectors: VectorSettings) -> PatchedEmbedding:
    assert settings.vocab_size is not None and vectors.width is not None and vectors.rows
    scale = math.sqrt(vectors.width) if vectors.scaled else 1.0
    return PatchedEmbedding(settings.vocab_size, vectors.width, settings.dim, scale, vectors.rows)


@torch.no_grad()
def put_vectors(embedding: nn.Module, uncovered: str, table: NDArray[np.float32], covered: NDArray[np.bool_]) -> None:
    """Write word vectors (tokens, width) into an embedding with fresh weights; `covered` marks the tokens that have one.

    The model's vocabulary may have more tokens, which are not covered. Rows that are learned keep the numbers that they were
    initialised with, and so depend on the seed alone, but scaled to the size of a vector: else a special token would be too
    weak or too strong beside the words.
    """
    assert isinstance(embedding, PretrainedEmbedding), "the settings have no vectors"
    weight, given = embedding.table.weight, torch.from_numpy(np.array(table)).to(embedding.table.weight)
    known = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
    known[: len(covered)] = torch.from_numpy(np.array(covered)).to(weight.device)
    assert known.any() and given.shape == (len(covered), weight.shape[1]), "no vectors, or not this model's"
    vectors = given[known[: len(given)]]
    weight[known] = vectors
    if uncovered == "average":
        weight[~known] = vectors.mean(dim=0)
        return
    size = vectors.square().mean().sqrt()
    if isinstance(embedding, PatchedEmbedding):
        embedding.row.copy_(torch.where(known, -1, torch.cumsum(~known, dim=0) - 1))
        assert int((~known).sum()) == len(embedding.learned.weight), "vectors.rows is not the number of such rows"
        rows = embedding.learned.weight
        rows.mul_(size / rows.square().mean().sqrt())
        weight[~known] = rows  # never looked up; a tied head reads them
    elif not known.all():
        assert weight.requires_grad, "rows of a frozen table are not learned: vectors.rows is missing"
        rows = weight[~known]
        weight[~known] = rows * (size / rows.square().mean().sqrt())


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
