"""A model's weights as flat arrays in the order in which the compiled engine reads them.

Owns: which models the engine supports, the layout of matrices (panels; int8 with a scale per output), and the tables of
layers and windows. Does not own: the arithmetic (`kernels.decoding_pass.loops`) or the memory of keys and values
(`kernels.decoding_pass.key_value_slots`).

J outputs of a matrix, K inputs, V vocabulary, C dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lilliput.kernels.decoding_pass import layout
from lilliput.kernels.decoding_pass.layout import (
    Bytes,
    Floats,
    Number,
    PackedWeights,
    Plan,
    zeros_on_lines,
)
from lilliput.kernels.linear import Linear
from lilliput.kernels.registers import LANES, LINE, PAIR, PANEL, padded
from lilliput.model.attention import SelfAttention
from lilliput.model.embeddings import LearnedEmbedding, PatchedEmbedding, PretrainedEmbedding, Unmixed, ValueEmbedding
from lilliput.model.heads import LanguageAndLabelHead, LanguageHead, SoftCap
from lilliput.model.layers import (
    FeedForward,
    GeluFeedForward,
    PostNorm,
    PreNorm,
    ReluFeedForward,
    SquaredReluFeedForward,
    SwigluFeedForward,
)
from lilliput.model.norms import QueryKeyNorm, RMSNorm, UnbiasedLayerNorm
from lilliput.model.part_support import Supported, find_unsupported
from lilliput.model.positions import Learned, Positions, Rotary, Sinusoidal
from lilliput.model.transformer import Block, Transformer, evaluating

Quantise = Literal["int8"] | None
NORMS: dict[type[nn.Module], int] = {
    nn.LayerNorm: layout.LAYER_NORM,
    UnbiasedLayerNorm: layout.UNBIASED_LAYER_NORM,
    RMSNorm: layout.RMS_NORM,
}
ACTIVATIONS: dict[type[nn.Module], int] = {
    ReluFeedForward: layout.RELU,
    GeluFeedForward: layout.GELU,
    SquaredReluFeedForward: layout.RELU2,
    SwigluFeedForward: layout.SWIGLU,
}
# The parts that the compiled pass supports: a model with a part of any other type requires the torch engine.
SUPPORTED: Supported = {
    "embedding": (LearnedEmbedding, PretrainedEmbedding, PatchedEmbedding),
    "positions": (Positions, Learned, Sinusoidal, Rotary),
    "block": (Block,),
    "norm placement": (PreNorm, PostNorm),
    "norm": tuple(NORMS),
    "attention": (SelfAttention,),
    "query-key norm": (QueryKeyNorm, nn.Identity),
    "value embedding": (ValueEmbedding, Unmixed),
    "feed-forward": tuple(ACTIVATIONS),
    "linear layer": (Linear, nn.Linear),
    "final norm": (*NORMS, nn.Identity),
    "head": (LanguageHead, LanguageAndLabelHead),
    "bound of the logits": (SoftCap, nn.Identity),
}


def refusal(model: Transformer) -> str | None:
    """Return why the compiled engine does not support this model; None if it does."""
    if not isinstance(model.head, LanguageHead):
        return "a classifier does not generate text"
    if unsupported := find_unsupported(model, SUPPORTED):
        return f"the compiled engine does not support {unsupported}"
    if len(shared_types(model)) > 3:
        return "the compiled engine requires one kind of norm, norm placement and feed-forward in all blocks"
    weight = next(model.parameters())
    if weight.device.type != "cpu":
        return f"the model is on {weight.device.type}"
    if weight.dtype != torch.float32:
        return f"the model is in {str(weight.dtype).removeprefix('torch.')}, not float32"
    if type(weight.data) is not Tensor and type(weight) is not nn.Parameter:
        return "the model's weights are sharded over processes"
    # By NumPy: torch would start its threads.
    if not all(np.isfinite(weight.detach().numpy()).all() for weight in model.parameters()):
        return "some weights of the model are not finite"
    return None


@dataclass
class Packer:
    """Collects arrays, each aligned to a cache line."""

    quantise: Quantise
    floats: list[Floats] = field(default_factory=list)
    bytes: list[Bytes] = field(default_factory=list)
    float_end: int = 0
    byte_end: int = 0

    def put(self, tensor: Tensor | NDArray[np.float32]) -> int:
        """Add an array and return its offset."""
        values = np.ascontiguousarray(tensor.detach().float().numpy() if isinstance(tensor, Tensor) else tensor).ravel()
        at, size = self.float_end, padded(len(values), LINE // 4)
        self.floats.append(np.pad(values.astype(np.float32), (0, size - len(values))))
        self.float_end += size
        return at

    def put_outputs(self, values: Tensor | None, gated: bool) -> int:
        """Add one number per output, in the order of the panels, and return the offset; -1 for None."""
        return -1 if values is None else self.put(in_panels(values.detach().numpy()[:, None], gated)[:, 0])

    def put_matrix(self, weight: Tensor, gated: bool = False) -> tuple[int, int]:
        """Add a matrix and return its offset and that of its scales (-1 if it is not quantised)."""
        rows = in_panels(weight.detach().numpy(), gated)  # (J, K)
        outputs, depth = rows.shape
        if self.quantise is None:
            return self.put(rows.reshape(outputs // PANEL, PANEL, depth).transpose(0, 2, 1)), -1
        scales = np.maximum(np.abs(rows).max(axis=1), 1e-30) / 127.0
        quantised = np.rint(rows / scales[:, None]).astype(np.int8)
        filled = np.pad(quantised, ((0, 0), (0, padded(depth, PAIR) - depth)))
        at, panels = self.byte_end, filled.reshape(outputs // PANEL, PANEL, -1, PAIR).transpose(0, 2, 1, 3)
        self.bytes.append(panels.ravel())
        self.byte_end += panels.size
        return at, self.put(scales.astype(np.float32))

    def put_linear(self, linear: nn.Linear, gated: bool = False) -> tuple[int, int, int]:
        """Add a linear layer and return the offsets of its matrix, scales and biases."""
        return *self.put_matrix(linear.weight, gated), self.put_outputs(linear.bias, gated)

    def put_norm(self, norm: nn.Module) -> int:
        if isinstance(norm, nn.Identity):
            return -1
        parts = [norm.weight] + ([norm.bias] if isinstance(norm, nn.LayerNorm | UnbiasedLayerNorm) else [])
        return self.put(torch.cat([part.detach() for part in parts if isinstance(part, Tensor)]))


def shared_types(model: Transformer) -> set[type[nn.Module]]:
    """Return the types of the norms, norm placements and feed-forwards: one of each in a model that can be packed."""
    blocks: list[Any] = list(model.blocks)
    wrapped = [part for block in blocks for part in (block.attention, block.feed_forward)]
    norms = [part.norm for part in wrapped] + ([] if isinstance(model.norm, nn.Identity) else [model.norm])
    return {type(part) for part in (*wrapped, *norms, *(block.feed_forward.inner for block in blocks))}


def in_panels(rows: Floats, gated: bool) -> Floats:
    """Return the matrix (J, K) padded with zeros to whole panels. If gated, panels of gates and of gated values alternate."""
    halves = np.split(rows, 2) if gated else [rows]
    full = [np.pad(half, ((0, padded(len(half), PANEL) - len(half)), (0, 0))) for half in halves]
    panels = np.stack([half.reshape(-1, PANEL, rows.shape[1]) for half in full], axis=1)
    return panels.reshape(-1, rows.shape[1])


def aligned(parts: list[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    """Concatenate the parts into one array aligned to a cache line."""
    whole = zeros_on_lines(sum(map(len, parts)), dtype)
    if parts:
        np.concatenate(parts, out=whole)
    return whole


def put_positions(packer: Packer, positions: Positions) -> tuple[int, int, int]:
    """Add the tables of the positions; return the offsets of positions, cosines and sines, -1 for those not used."""
    if isinstance(positions, Rotary):
        half = positions.cos.shape[1] // 2  # the table has both halves, the sines with opposite signs
        return -1, packer.put(positions.cos[:, :half]), packer.put(positions.sin[:, half:])
    if isinstance(positions, Learned):
        return packer.put(positions.table.weight), -1, -1
    return packer.put(positions.table) if isinstance(positions, Sinusoidal) else -1, -1, -1


@torch.inference_mode()
def pack(model: Transformer, quantise: Quantise) -> PackedWeights:
    settings, packer = model.settings, Packer(quantise)
    vocab_size, kv_heads = settings.vocab_size, settings.kv_heads
    assert vocab_size is not None and kv_heads is not None
    windows = sorted(
        {settings.context if window is None else min(window, settings.context) for window in model.windows}
    )
    layers = np.full((settings.layers, layout.LAYER_FIELDS), -1, dtype=np.int64)
    first_block: Any = model.blocks[0]
    norm, inner = first_block.attention.norm, first_block.feed_forward.inner
    gated = inner.gated
    with evaluating(model):
        embedding = packer.put(model.embedding(torch.arange(vocab_size)))  # (V, C)
    inside = 0
    for number, (block, window) in enumerate(zip(model.blocks, model.windows, strict=True)):
        row, first, second = layers[number], block.attention, block.feed_forward
        assert isinstance(first, PreNorm) and isinstance(second, PreNorm)
        attention, feed_forward = first.inner, second.inner
        assert isinstance(attention, SelfAttention) and isinstance(feed_forward, FeedForward)
        row[layout.NORM_1] = packer.put_norm(first.norm)
        row[layout.NORM_2] = packer.put_norm(second.norm)
        for matrix, linear, pairs in (
            (layout.QKV, attention.qkv, False),
            (layout.OUT, attention.out, False),
            (layout.UP, feed_forward.up, gated),
            (layout.DOWN, feed_forward.down, False),
        ):
            row[matrix : matrix + 3] = packer.put_linear(linear, pairs)
        if isinstance(attention.qk_norm, QueryKeyNorm):
            row[layout.Q_NORM], row[layout.K_NORM] = map(packer.put, (attention.qk_norm.q, attention.qk_norm.k))
        if isinstance(attention.values, ValueEmbedding):
            row[layout.VALUES] = packer.put(attention.values.table.weight)
            row[layout.VALUE_SHARES] = packer.put(attention.values.shares)
        row[layout.GROUP] = windows.index(settings.context if window is None else min(window, settings.context))
        inside = feed_forward.down.in_features
    table, cosines, sines = put_positions(packer, model.positions)
    head = np.array(packer.put_linear(model.head.project), dtype=np.int64)
    plan = Plan(
        dim=settings.dim,
        heads=settings.heads,
        kv_heads=kv_heads,
        head_dim=model.head_dim,
        head_step=padded(model.head_dim, LANES),
        inside=inside,
        layers=settings.layers,
        vocab_size=vocab_size,
        context=settings.context,
        norm=NORMS[type(norm)],
        post=int(isinstance(first_block.attention, PostNorm)),
        activation=ACTIVATIONS[type(inner)],
        quantised=int(quantise is not None),
        embedding=embedding,
        positions=table,
        cosines=cosines,
        sines=sines,
        final_norm=packer.put_norm(model.norm),
        soft_cap=-1 if settings.soft_cap is None else packer.put(np.array([settings.soft_cap], dtype=np.float32)),
    )
    return PackedWeights(
        plan, layers, head, windows, aligned(packer.floats, np.float32), aligned(packer.bytes, np.int8)
    )
