"""The architectures of llama.cpp that hold Lilliput's models, as data: parts, metadata and tensors of each.

Owns: the table, and one function per architecture that returns its tensors. Does not own: the file (`gguf_file`), the tokenizer
in it (`gguf_tokenizer`), or the check of a model against a row (`requirements`).

Sources: src/models/*.cpp and `llama_model_rope_type` of llama.cpp. It has no architecture with a plain relu, and those here have
no windows. llama and arcee rotate neighbouring pairs of a head, the others its halves, as Lilliput does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from lilliput.exporting.requirements import Requirements
from lilliput.exporting.stock_tensors import full_heads, position_rows, put
from lilliput.exporting.weights import Affine, BlockWeights, ModelWeights, Tensors, interleave_halves, weights_of
from lilliput.model.layers import GeluFeedForward, SquaredReluFeedForward, SwigluFeedForward
from lilliput.model.norms import RMSNorm
from lilliput.model.positions import Learned, Positions, Rotary, Sinusoidal
from lilliput.model.transformer import Transformer

# xIELU (Apertus): alpha_p x^2 + beta x for x > 0, else (expm1(min(x, eps)) - x) alpha_n + beta x. ggml applies softplus to the
# alphas, and adds alpha_n to beta: softplus(-100) is 0 and softplus(64) is 64 in float32, so this is 64 relu(x)^2. The up
# projection is divided by 8, which is exact. (32 with the down projection divided by 32 is equal, but it makes scales of q8_0
# smaller than the smallest normal float16.)
XIELU = {"alpha_n": -100.0, "alpha_p": 64.0, "beta": 0.0, "eps": -1e-6}
XIELU_SCALE = 8.0


@dataclass(frozen=True, kw_only=True)
class Architecture(Requirements):
    """An architecture of llama.cpp. `tanh_gelu`: it computes gelu in the tanh form, which differs from Lilliput's."""

    tensors: Callable[[Transformer], Tensors]
    norm_key: Literal["rms", "layer"]
    rotates: bool = True
    tanh_gelu: bool = False


def add_ends(tensors: Tensors, weights: ModelWeights, always_output: bool) -> None:
    """Add embedding, final norm and head. llama.cpp uses the embedding for a missing head where `always_output` is False."""
    tensors["token_embd.weight"] = weights.embedding
    assert weights.final_norm is not None
    put(tensors, "output_norm", weights.final_norm, weights.final_norm.bias is not None)
    if always_output or not weights.tied:
        tensors["output.weight"] = weights.head


def add_block(
    tensors: Tensors, number: int, block: BlockWeights, attention: dict[str, Affine], scale: float = 1.0
) -> None:
    """Add a block whose up projection is divided by `scale`. Layers with a bias have one in the file."""
    at = f"blk.{number}"
    up = Affine(block.up.weight / scale, block.up.bias)
    layers = attention | {"attn_norm": block.attention_norm, "ffn_norm": block.feed_forward_norm}
    layers |= {"ffn_up": up, "ffn_down": block.down}
    if block.gate is not None:
        layers["ffn_gate"] = block.gate
    for name, part in layers.items():
        put(tensors, f"{at}.{name}", part, part.bias is not None)
    if block.q_norm is not None and block.k_norm is not None:
        tensors[f"{at}.attn_q_norm.weight"] = block.q_norm
        tensors[f"{at}.attn_k_norm.weight"] = block.k_norm


def separate(block: BlockWeights) -> dict[str, Affine]:
    return {"attn_q": block.q, "attn_k": block.k, "attn_v": block.v, "attn_output": block.out}


def pairs(model: Transformer) -> Tensors:
    """llama, arcee."""
    weights, tensors = weights_of(model), dict[str, torch.Tensor]()
    add_ends(tensors, weights, always_output=False)
    for number, block in enumerate(weights.blocks):
        attention = separate(block)
        for name in ("attn_q", "attn_k"):
            attention[name] = interleave_halves(attention[name], model.head_dim)
        add_block(tensors, number, block, attention)
    return tensors


def qwen3(model: Transformer) -> Tensors:
    weights, tensors = weights_of(model), dict[str, torch.Tensor]()
    add_ends(tensors, weights, always_output=False)
    for number, block in enumerate(weights.blocks):
        add_block(tensors, number, block, separate(block))
    return tensors


def apertus(model: Transformer) -> Tensors:
    """The loader requires the tensor of the head, also if it equals the embedding."""
    weights, tensors = weights_of(model), dict[str, torch.Tensor]()
    add_ends(tensors, weights, always_output=True)
    for number, block in enumerate(weights.blocks):
        add_block(tensors, number, block, separate(block), scale=XIELU_SCALE)
    return tensors


def fused(model: Transformer) -> Tensors:
    """gpt2, gptneox: queries, keys and values in one matrix; every matrix has a bias. gptneox requires the tensor of the head."""
    weights, tensors = weights_of(model), dict[str, torch.Tensor]()
    rotates = isinstance(model.positions, Rotary)
    add_ends(tensors, weights, always_output=rotates)
    if not rotates:
        tensors["position_embd.weight"] = position_rows(model, weights)
    for number, block in enumerate(weights.blocks):
        parts = full_heads(model, block)
        qkv = Affine(torch.cat([part.weight for part in parts]), torch.cat([part.filled_bias for part in parts]))
        add_block(tensors, number, block, {"attn_qkv": qkv, "attn_output": block.out})
        for name in ("attn_output", "ffn_up", "ffn_down"):
            weight = tensors[f"blk.{number}.{name}.weight"]
            tensors.setdefault(f"blk.{number}.{name}.bias", weight.new_zeros(len(weight)))
    return tensors


# The first architecture that holds a model is used.
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(
        name="apertus",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SquaredReluFeedForward,),
        qk_norm=True,
        tensors=apertus,
        norm_key="rms",
    ),
    Architecture(
        name="qwen3",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SwigluFeedForward,),
        qk_norm=True,
        tensors=qwen3,
        norm_key="rms",
    ),
    Architecture(
        name="llama",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SwigluFeedForward,),
        attention_bias=True,
        feed_forward_bias=True,
        tensors=pairs,
        norm_key="rms",
    ),
    Architecture(
        name="arcee",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SquaredReluFeedForward,),
        tensors=pairs,
        norm_key="rms",
    ),
    Architecture(
        name="gpt2",
        norm=nn.LayerNorm,
        positions=(Learned, Sinusoidal, Positions),
        feed_forwards=(GeluFeedForward,),
        attention_bias=True,
        feed_forward_bias=True,
        kv_heads="repeated",
        head_dim="dim / heads",
        tensors=fused,
        norm_key="layer",
        rotates=False,
        tanh_gelu=True,
    ),
    Architecture(
        name="gptneox",
        norm=nn.LayerNorm,
        positions=(Rotary,),
        feed_forwards=(GeluFeedForward,),
        attention_bias=True,
        feed_forward_bias=True,
        kv_heads="repeated",
        head_dim="dim / heads",
        tensors=fused,
        norm_key="layer",
        tanh_gelu=True,
    ),
)
