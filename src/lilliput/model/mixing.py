"""What a net is given of its tokens beyond their embedding at the bottom of the residual stream.

Owns: the mixture of two tensors with its gradient written out, and its two uses: a block that begins from the
stream and the embedding, and values that also have a table by token. Both come from the speed runs of
modded-nanogpt; there, as here, a share is one number. And a table of pairs of neighbours, added to the
embedding. Does not own: which layers have a table (`count.value_layers`), which pairs have a row
(`training.naive_bayes`), how tables are drawn (`transformer`).

B rows, T positions, C dim, G heads of keys and values, D dim of a head.
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
    """What a net without one of these tricks has in its place."""

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        return x


class EmbeddingMixture(nn.Module):
    """The stream and the embedding that it began from; at first the stream alone."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.tensor([1.0, 0.0]))  # one vector: FSDP2 shards no scalars

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        return mix(x, state.embedding, self.shares)


class ValueEmbedding(nn.Module):
    """Values of the layer's own projection and of a table by token; at first the half of each.

    The cache holds what comes out, and so knows nothing of it.
    """

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, width)
        self.shares = nn.Parameter(torch.tensor([0.5, 0.5]))

    def forward(self, v: Tensor, state: PassState) -> Tensor:
        return mix(v, self.table(state.ids).view_as(v), self.shares)  # (B, T, G, D)


class PairEmbedding(nn.Module):
    """Adds to a token's embedding what it has after the token before it, if that pair has a row of the table.

    `listed` has the pairs of the rows, sorted, each as one number, first x vocabulary + second; NONE, the largest, for a row that
    no pair has. It is a buffer and no setting, so that a checkpoint says by itself which row is whose.
    """

    NONE = torch.iinfo(torch.int64).max
    listed: Tensor

    def __init__(self, vocab_size: int, pairs: int, dim: int) -> None:
        super().__init__()
        self.vocab_size, self.table = vocab_size, nn.Embedding(pairs, dim)
        self.register_buffer("listed", torch.full((pairs,), self.NONE))

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        number = state.ids.roll(1, dims=1) * self.vocab_size + state.ids  # (B, T)
        row = torch.searchsorted(self.listed, number).clamp_(max=len(self.listed) - 1)
        listed = (self.listed[row] == number) & (
            state.pos > 0
        )  # a document's first token has none before it, nor has padding
        added: Tensor = self.table(row) * listed.unsqueeze(-1)
        return x + added
