"""The weights of a model in the pieces that other programs name: queries, keys and values, gate and up, one embedding matrix.

Owns: splitting, merging and padding weights without changing the function that they compute. Does not own: names and layouts
of a format (`stock_tensors`, `gguf_tensors`), or which models a format holds (`requirements`).

H heads, G key-value heads, D head dimension, C dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lilliput.model.attention import SelfAttention
from lilliput.model.heads import LanguageHead
from lilliput.model.layers import FeedForward, PreNorm
from lilliput.model.norms import QueryKeyNorm
from lilliput.model.positions import Learned, Sinusoidal
from lilliput.model.transformer import Transformer, evaluating

Tensors = dict[str, Tensor]


class Affine(NamedTuple):
    """A matrix (outputs, inputs) and its bias, or the scale of a norm and its bias."""

    weight: Tensor
    bias: Tensor | None

    @property
    def filled_bias(self) -> Tensor:
        """The bias; zeros if there is none, for formats that always have one."""
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias


@dataclass(frozen=True)
class BlockWeights:
    """The weights of one block. `q_norm` and `k_norm` are None without a query-key norm; `gate` is None if not gated."""

    attention_norm: Affine
    q: Affine
    k: Affine
    v: Affine
    out: Affine
    q_norm: Tensor | None
    k_norm: Tensor | None
    feed_forward_norm: Affine
    gate: Affine | None
    up: Affine
    down: Affine


@dataclass(frozen=True)
class ModelWeights:
    """The weights of a language model. `embedding` includes scales and projections of word vectors."""

    embedding: Tensor  # (V, C)
    positions: Tensor | None  # (context, C), of learned and sinusoidal positions
    blocks: list[BlockWeights]
    final_norm: Affine | None
    head: Tensor  # (V, C)
    tied: bool  # whether the head equals the embedding


def affine(part: Any) -> Affine:
    """Return the weight and bias of a linear layer or a norm."""
    bias = getattr(part, "bias", None)
    return Affine(part.weight.detach(), None if bias is None else bias.detach())


def rows(whole: Affine, sizes: list[int]) -> list[Affine]:
    """Split the outputs of a linear layer."""
    biases = [None] * len(sizes) if whole.bias is None else torch.split(whole.bias, sizes)
    return [Affine(*pair) for pair in zip(torch.split(whole.weight, sizes), biases, strict=True)]


@torch.no_grad()
def weights_of(model: Transformer) -> ModelWeights:
    head = model.head
    assert isinstance(head, LanguageHead) and head.project.bias is None, "refused before"
    with evaluating(model):
        embedding = model.embedding(torch.arange(head.project.out_features, device=model.device))
    project = head.project.weight.detach()
    return ModelWeights(
        embedding=embedding.detach(),
        positions=position_table(model),
        blocks=[block_weights(block) for block in model.blocks],
        final_norm=None if isinstance(model.norm, nn.Identity) else affine(model.norm),
        head=project,
        tied=torch.equal(embedding, project),
    )


def position_table(model: Transformer) -> Tensor | None:
    """Return the vectors that are added to the embedding, (context, C); None if none are."""
    positions = model.positions
    if isinstance(positions, Learned):
        return positions.table.weight.detach()
    if isinstance(positions, Sinusoidal):
        return positions.table.to(model.embedding.table.weight.dtype)
    return None


def block_weights(block: Any) -> BlockWeights:
    first, second = block.attention, block.feed_forward
    assert isinstance(first, PreNorm) and isinstance(second, PreNorm)
    attention, feed_forward = first.inner, second.inner
    assert isinstance(attention, SelfAttention) and isinstance(feed_forward, FeedForward)
    heads, kv_heads, head_dim = attention.heads, attention.kv_heads, attention.head_dim
    q, k, v = rows(affine(attention.qkv), [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
    up = affine(feed_forward.up)
    gate: Affine | None = None
    if feed_forward.gated:
        inside = len(up.weight) // 2
        gate, up = rows(up, [inside, inside])
    norm = attention.qk_norm
    return BlockWeights(
        attention_norm=affine(first.norm),
        q=q,
        k=k,
        v=v,
        out=affine(attention.out),
        q_norm=norm.q.detach() if isinstance(norm, QueryKeyNorm) else None,
        k_norm=norm.k.detach() if isinstance(norm, QueryKeyNorm) else None,
        feed_forward_norm=affine(second.norm),
        gate=gate,
        up=up,
        down=affine(feed_forward.down),
    )


def repeat_heads(part: Affine, heads: int, head_dim: int) -> Affine:
    """Return keys or values with one head per query head, for formats without key-value heads: the same attention."""
    times = heads * head_dim // len(part.weight)

    def repeat(values: Tensor) -> Tensor:
        by_head = values.view(-1, head_dim, *values.shape[1:])
        return by_head.repeat_interleave(times, dim=0).reshape(-1, *values.shape[1:])

    return Affine(repeat(part.weight), None if part.bias is None else repeat(part.bias))


def interleave_halves(part: Affine, head_dim: int) -> Affine:
    """Reorder queries or keys for rotations of neighbouring pairs: (x1 .. xn y1 .. yn) of a head becomes (x1 y1 .. xn yn)."""

    def reorder(values: Tensor) -> Tensor:
        halves = values.view(-1, 2, head_dim // 2, *values.shape[1:])
        return halves.transpose(1, 2).reshape(values.shape)

    return Affine(reorder(part.weight), None if part.bias is None else reorder(part.bias))
