"""The tensors of stock transformers classes: names and layouts.

Owns: one function per family of classes, from the weights of a model to the tensors of model.safetensors. Does not own: the
settings in config.json (`stock_configs`), which class holds which model (`stock_classes`), or splitting weights (`weights`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lilliput.exporting.weights import Affine, BlockWeights, ModelWeights, Tensors, repeat_heads, weights_of
from lilliput.model.layers import GeluFeedForward, ReluFeedForward
from lilliput.model.transformer import Transformer


def put(tensors: Tensors, name: str, part: Affine, bias: bool) -> None:
    """Add a layer; with `bias`, one without a bias gets zeros."""
    tensors[f"{name}.weight"] = part.weight
    if bias:
        tensors[f"{name}.bias"] = part.filled_bias


def put_head(tensors: Tensors, name: str, weights: ModelWeights) -> None:
    """Add the output head, unless the class takes it from the embedding."""
    if not weights.tied:
        tensors[name] = weights.head


def has_bias(*parts: Affine) -> bool:
    return any(part.bias is not None for part in parts)


def attention_bias(model: Transformer) -> bool:
    """Return whether any projection of attention has a bias; the classes have one switch for all four."""
    block: Any = model.blocks[0]
    return block.attention.inner.qkv.bias is not None or block.attention.inner.out.bias is not None


def feed_forward_bias(model: Transformer) -> bool:
    block: Any = model.blocks[0]
    return block.feed_forward.inner.up.bias is not None


def any_bias(model: Transformer) -> bool:
    """For classes with one switch for the biases of all matrices."""
    return attention_bias(model) or feed_forward_bias(model)


def put_llama_attention(tensors: Tensors, at: str, block: BlockWeights, bias: bool) -> None:
    for name, part in (("q", block.q), ("k", block.k), ("v", block.v), ("o", block.out)):
        put(tensors, f"{at}.self_attn.{name}_proj", part, bias)
    if block.q_norm is not None and block.k_norm is not None:
        tensors[f"{at}.self_attn.q_norm.weight"] = block.q_norm
        tensors[f"{at}.self_attn.k_norm.weight"] = block.k_norm


def plain_llama(
    model: Transformer,
    norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
    matrices: tuple[str, str] = ("up_proj", "down_proj"),
    one_switch: bool = False,
) -> Tensors:
    """Llama's names with a feed-forward of two matrices: Apertus, Arcee, Starcoder2. `one_switch`: all matrices have biases
    if any has one."""
    weights = weights_of(model)
    in_attention = any_bias(model) if one_switch else attention_bias(model)
    in_feed_forward = any_bias(model) if one_switch else feed_forward_bias(model)
    tensors: Tensors = {"model.embed_tokens.weight": weights.embedding}
    for number, block in enumerate(weights.blocks):
        at = f"model.layers.{number}"
        put(tensors, f"{at}.{norms[0]}", block.attention_norm, has_bias(block.attention_norm))
        put(tensors, f"{at}.{norms[1]}", block.feed_forward_norm, has_bias(block.feed_forward_norm))
        put_llama_attention(tensors, at, block, in_attention)
        for name, part in zip(matrices, (block.up, block.down), strict=True):
            put(tensors, f"{at}.mlp.{name}", part, in_feed_forward)
    assert weights.final_norm is not None
    put(tensors, "model.norm", weights.final_norm, has_bias(weights.final_norm))
    put_head(tensors, "lm_head.weight", weights)
    return tensors


def apertus(model: Transformer) -> Tensors:
    return plain_llama(model, norms=("attention_layernorm", "feedforward_layernorm"))


def starcoder2(model: Transformer) -> Tensors:
    return plain_llama(model, matrices=("c_fc", "c_proj"), one_switch=True)


def gate_and_up(model: Transformer, block: BlockWeights) -> tuple[Affine, Affine]:
    """Return the two factors of a gated feed-forward, activation(gate) * up, that equals the model's.

    swiglu is one. relu2: relu(a) * a. relu and gelu: activation(a) * 1, where 1 is the bias of a zero matrix.
    """
    if block.gate is not None:
        return block.gate, block.up
    first: Any = model.blocks[0]
    if isinstance(first.feed_forward.inner, ReluFeedForward | GeluFeedForward):
        ones = torch.ones_like(block.up.filled_bias)
        return block.up, Affine(torch.zeros_like(block.up.weight), ones)
    return block.up, block.up


def gated_bias(model: Transformer) -> bool:
    """Return whether the gated feed-forward that equals the model's has biases."""
    return has_bias(*gate_and_up(model, weights_of(model).blocks[0]))


def gated_llama(model: Transformer) -> Tensors:
    """Llama, Qwen3, Mistral, SmolLM3."""
    weights, bias = weights_of(model), gated_bias(model)
    tensors: Tensors = {"model.embed_tokens.weight": weights.embedding}
    for number, block in enumerate(weights.blocks):
        at = f"model.layers.{number}"
        tensors[f"{at}.input_layernorm.weight"] = block.attention_norm.weight
        tensors[f"{at}.post_attention_layernorm.weight"] = block.feed_forward_norm.weight
        put_llama_attention(tensors, at, block, attention_bias(model))
        gate, up = gate_and_up(model, block)
        for name, part in (("gate", gate), ("up", up), ("down", block.down)):
            put(tensors, f"{at}.mlp.{name}_proj", part, bias)
    assert weights.final_norm is not None
    tensors["model.norm.weight"] = weights.final_norm.weight
    put_head(tensors, "lm_head.weight", weights)
    return tensors


def full_heads(model: Transformer, block: BlockWeights) -> tuple[Affine, Affine, Affine]:
    """Return queries, keys and values with a key-value head for each query head."""
    heads, width = model.settings.heads, model.head_dim
    return block.q, repeat_heads(block.k, heads, width), repeat_heads(block.v, heads, width)


def position_rows(model: Transformer, weights: ModelWeights) -> Tensor:
    """Return the table of positions; zeros for a model without positions."""
    if weights.positions is not None:
        return weights.positions
    return weights.embedding.new_zeros(model.settings.context, model.settings.dim)


def gpt2(model: Transformer) -> Tensors:
    """GPT-2 stores matrices as (inputs, outputs), and queries, keys and values as one."""
    weights = weights_of(model)
    tensors: Tensors = {
        "transformer.wte.weight": weights.embedding,
        "transformer.wpe.weight": position_rows(model, weights),
    }
    for number, block in enumerate(weights.blocks):
        at = f"transformer.h.{number}"
        put(tensors, f"{at}.ln_1", block.attention_norm, True)
        put(tensors, f"{at}.ln_2", block.feed_forward_norm, True)
        parts = full_heads(model, block)
        qkv = Affine(torch.cat([part.weight for part in parts]), torch.cat([part.filled_bias for part in parts]))
        matrices = {"attn.c_attn": qkv, "attn.c_proj": block.out, "mlp.c_fc": block.up, "mlp.c_proj": block.down}
        for name, part in matrices.items():
            tensors[f"{at}.{name}.weight"] = part.weight.T
            tensors[f"{at}.{name}.bias"] = part.filled_bias
    assert weights.final_norm is not None
    put(tensors, "transformer.ln_f", weights.final_norm, True)
    put_head(tensors, "lm_head.weight", weights)
    return tensors


def gpt_neox(model: Transformer) -> Tensors:
    """GPT-NeoX stores queries, keys and values by head: the rows of head 0, then those of head 1, and so on."""
    weights, bias = weights_of(model), attention_bias(model)
    heads, dim = model.settings.heads, model.settings.dim
    tensors: Tensors = {"gpt_neox.embed_in.weight": weights.embedding}
    for number, block in enumerate(weights.blocks):
        at = f"gpt_neox.layers.{number}"
        put(tensors, f"{at}.input_layernorm", block.attention_norm, True)
        put(tensors, f"{at}.post_attention_layernorm", block.feed_forward_norm, True)
        parts = full_heads(model, block)
        by_head = torch.stack([part.weight.view(heads, -1, dim) for part in parts], dim=1)  # (H, 3, D, C)
        biases = torch.stack([part.filled_bias.view(heads, -1) for part in parts], dim=1)
        qkv = Affine(by_head.reshape(-1, dim), biases.reshape(-1))
        put(tensors, f"{at}.attention.query_key_value", qkv, bias)
        put(tensors, f"{at}.attention.dense", block.out, bias)
        put(tensors, f"{at}.mlp.dense_h_to_4h", block.up, True)
        put(tensors, f"{at}.mlp.dense_4h_to_h", block.down, True)
    assert weights.final_norm is not None
    put(tensors, "gpt_neox.final_layer_norm", weights.final_norm, True)
    put_head(tensors, "lm_head.weight", weights)
    return tensors


def opt(model: Transformer) -> Tensors:
    """OPT adds 2 to every position: the first two rows of its table are not used."""
    weights, bias = weights_of(model), any_bias(model)
    table = position_rows(model, weights)
    tensors: Tensors = {
        "model.decoder.embed_tokens.weight": weights.embedding,
        "model.decoder.embed_positions.weight": torch.cat((table.new_zeros(2, table.shape[1]), table)),
    }
    for number, block in enumerate(weights.blocks):
        at = f"model.decoder.layers.{number}"
        put(tensors, f"{at}.self_attn_layer_norm", block.attention_norm, True)
        put(tensors, f"{at}.final_layer_norm", block.feed_forward_norm, True)
        q, k, v = full_heads(model, block)
        attention = {"q_proj": q, "k_proj": k, "v_proj": v, "out_proj": block.out}
        for name, part in attention.items():
            put(tensors, f"{at}.self_attn.{name}", part, bias)
        put(tensors, f"{at}.fc1", block.up, bias)
        put(tensors, f"{at}.fc2", block.down, bias)
    put_head(tensors, "lm_head.weight", weights)
    return tensors
