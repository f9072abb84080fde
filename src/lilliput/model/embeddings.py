"""Token embeddings: learned tables, pretrained word vectors, and value embeddings of attention layers.

Owns: the embeddings, writing word vectors into them, and `ValueEmbedding` (from modded-nanogpt). Does not own: which layers
have a value embedding (`model_choices`), initialisation (`initialisation`).

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
    """Word vectors of any width, frozen or tuned, scaled and projected to dim (None: not projected). `put_vectors` fills the
    table."""

    def __init__(self, vocab_size: int, width: int, dim: int | None, scale: float, frozen: bool) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(vocab_size, width), scale
        self.table.weight.requires_grad_(not frozen)
        self.project = nn.Identity() if dim is None else nn.Linear(width, dim, bias=False)

    def look_up(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.table(ids)
        return vectors

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.project(self.look_up(ids) * self.scale)
        return x.to(self.table.weight.dtype)  # autocast must not make the residual stream 16-bit


class PatchedEmbedding(PretrainedEmbedding):
    """A frozen table, and a small learned one for the tokens without a vector.

    `row` holds the row of each token in `learned`, or -1 if the token's vector is in the table. It is a buffer, so that a
    checkpoint records which tokens were covered.
    """

    row: Tensor

    def __init__(self, vocab_size: int, width: int, dim: int | None, scale: float, rows: int) -> None:
        super().__init__(vocab_size, width, dim, scale, frozen=True)
        self.learned = nn.Embedding(rows, width)
        # Until vectors are written, the first tokens count as uncovered: special tokens come first by default.
        self.register_buffer("row", torch.arange(vocab_size).where(torch.arange(vocab_size) < rows, -1))

    def look_up(self, ids: Tensor) -> Tensor:
        row = self.row[ids]  # (B, T)
        return torch.where((row >= 0).unsqueeze(-1), self.learned(row.clamp(min=0)), self.table(ids))


def learned_embedding(settings: ModelSettings, vectors: VectorSettings) -> LearnedEmbedding:
    assert settings.vocab_size is not None
    # Sines have size one and the table is small, so the table is scaled up (Vaswani et al. 2017, section 3.4).
    scale = math.sqrt(settings.dim) if settings.positions == "sinusoidal" else 1.0
    return LearnedEmbedding(settings.vocab_size, settings.dim, scale)


def pretrained_embedding(settings: ModelSettings, vectors: VectorSettings) -> PretrainedEmbedding:
    assert settings.vocab_size is not None and vectors.width is not None
    scale = math.sqrt(vectors.width) if vectors.scaled else 1.0
    dim = settings.dim if vectors.projection else None
    return PretrainedEmbedding(settings.vocab_size, vectors.width, dim, scale, vectors.frozen)


def patched_embedding(settings: ModelSettings, vectors: VectorSettings) -> PatchedEmbedding:
    assert settings.vocab_size is not None and vectors.width is not None and vectors.rows
    scale = math.sqrt(vectors.width) if vectors.scaled else 1.0
    dim = settings.dim if vectors.projection else None
    return PatchedEmbedding(settings.vocab_size, vectors.width, dim, scale, vectors.rows)


@torch.no_grad()
def put_vectors(embedding: nn.Module, uncovered: str, table: NDArray[np.float32], covered: NDArray[np.bool_]) -> None:
    """Write word vectors (tokens, width) into a newly initialised embedding; `covered` marks the tokens that have one.

    Tokens of the model beyond `table` are not covered. Learned rows keep their initial values, which depend only on the
    seed, but are scaled to the size of a word vector, so that special tokens have the same scale as words.
    """
    assert isinstance(embedding, PretrainedEmbedding), "the settings have no vectors"
    weight, source = embedding.table.weight, torch.from_numpy(np.array(table)).to(embedding.table.weight)
    known = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
    known[: len(covered)] = torch.from_numpy(np.array(covered)).to(weight.device)
    assert known.any() and source.shape == (len(covered), weight.shape[1]), "no vectors, or vectors of another shape"
    vectors = source[known[: len(source)]]
    weight[known] = vectors
    if uncovered == "average":
        weight[~known] = vectors.mean(dim=0)
        return
    size = vectors.square().mean().sqrt()
    if isinstance(embedding, PatchedEmbedding):
        embedding.row.copy_(torch.where(known, -1, torch.cumsum(~known, dim=0) - 1))
        assert int((~known).sum()) == len(embedding.learned.weight), (
            "vectors.rows is not the number of uncovered tokens"
        )
        rows = embedding.learned.weight
        rows.mul_(size / rows.square().mean().sqrt())
        weight[~known] = rows  # for a tied head; `look_up` does not read them
    elif not known.all():
        assert weight.requires_grad, "a frozen table has no learned rows: vectors.rows is missing"
        rows = weight[~known]
        weight[~known] = rows * (size / rows.square().mean().sqrt())


class Mix(torch.autograd.Function):
    """shares[0] x + shares[1] y. Autograd's own backward takes twice the passes: it stores the products before it sums."""

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
    """Mix in the dtype of the shares, because autocast may have changed that of x or y."""
    mixed: Tensor = Mix.apply(x.to(shares.dtype), y.to(shares.dtype), shares)  # type: ignore[no-untyped-call]
    return mixed


class Unmixed(nn.Module):
    """Return the values unchanged: the part of a layer without a value embedding."""

    def forward(self, v: Tensor, state: PassState) -> Tensor:
        return v


class ValueEmbedding(nn.Module):
    """The layer's projected values mixed with a table by token, initially half of each. The cache holds the mixture."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.shares = nn.Parameter(torch.tensor([0.5, 0.5]))  # one vector: FSDP2 shards no scalars

    def forward(self, v: Tensor, state: PassState) -> Tensor:
        return mix(v, self.table(state.ids).view_as(v), self.shares)  # (B, T, G, D)
