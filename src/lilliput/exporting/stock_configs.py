"""The settings of stock transformers classes: the content of config.json.

Owns: one function per class, from a model to its settings. Does not own: ids of special tokens, which are the same for every
class (`huggingface`), or the tensors (`stock_tensors`).
"""

from __future__ import annotations

from typing import Any

from lilliput.exporting.requirements import used_windows
from lilliput.exporting.stock_tensors import any_bias, attention_bias, feed_forward_bias, gated_bias
from lilliput.exporting.weights import weights_of
from lilliput.kernels.decoding_pass.layout import NORM_EPSILON
from lilliput.model.layers import GeluFeedForward, ReluFeedForward, SquaredReluFeedForward, SwigluFeedForward
from lilliput.model.positions import Rotary
from lilliput.model.transformer import Transformer

Settings = dict[str, Any]

ACTIVATIONS = {
    ReluFeedForward: "relu",
    GeluFeedForward: "gelu",  # the exact form, as in Lilliput; GPT-2's own is gelu_new
    SquaredReluFeedForward: "relu2",
    SwigluFeedForward: "silu",
}


def feed_forward_of(model: Transformer) -> Any:
    block: Any = model.blocks[0]
    return block.feed_forward.inner


def activation(model: Transformer) -> str:
    return ACTIVATIONS[type(feed_forward_of(model))]


def gate_activation(model: Transformer) -> str:
    """Return the activation of the gate of a gated feed-forward: relu(a) * a is relu2."""
    return "relu" if activation(model) == "relu2" else activation(model)


def llama_like(model: Transformer) -> Settings:
    settings = model.settings
    return {
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.dim,
        "intermediate_size": feed_forward_of(model).down.in_features,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": gate_activation(model),
        "max_position_embeddings": settings.context,
        "rms_norm_eps": NORM_EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rotary_base},
        "attention_dropout": 0.0,
        "tie_word_embeddings": weights_of(model).tied,
    }


def sliding(model: Transformer) -> Settings:
    """Return the windows of classes that have one width and a list of the layers that use it."""
    windows = used_windows(model)
    return {
        "use_sliding_window": any(windows),
        "sliding_window": max((width for width in windows if width is not None), default=None),
        "layer_types": ["full_attention" if width is None else "sliding_attention" for width in windows],
    }


def apertus(model: Transformer) -> Settings:
    return llama_like(model) | {"hidden_act": activation(model), "attention_bias": attention_bias(model)}


def arcee(model: Transformer) -> Settings:
    return apertus(model) | {"mlp_bias": feed_forward_bias(model)}


def llama(model: Transformer) -> Settings:
    return llama_like(model) | {"attention_bias": attention_bias(model), "mlp_bias": gated_bias(model)}


def mistral(model: Transformer) -> Settings:
    return llama_like(model) | {"sliding_window": used_windows(model)[0]}


def qwen3(model: Transformer) -> Settings:
    windows = sliding(model) | {"max_window_layers": model.settings.layers}
    return llama_like(model) | {"attention_bias": attention_bias(model)} | windows


def smollm3(model: Transformer) -> Settings:
    rotates = isinstance(model.positions, Rotary)
    return llama(model) | sliding(model) | {"no_rope_layers": [int(rotates)] * model.settings.layers}


def starcoder2(model: Transformer) -> Settings:
    found = llama_like(model) | {"hidden_act": activation(model), "norm_epsilon": NORM_EPSILON}
    del found["rms_norm_eps"]
    return found | {
        "use_bias": any_bias(model),
        "sliding_window": used_windows(model)[0],
        "residual_dropout": 0.0,
        "embedding_dropout": 0.0,
    }


def gpt2(model: Transformer) -> Settings:
    settings = model.settings
    return {
        "vocab_size": settings.vocab_size,
        "n_positions": settings.context,
        "n_embd": settings.dim,
        "n_layer": settings.layers,
        "n_head": settings.heads,
        "n_inner": feed_forward_of(model).down.in_features,
        "activation_function": activation(model),
        "layer_norm_epsilon": NORM_EPSILON,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": weights_of(model).tied,
    }


def gpt_neox(model: Transformer) -> Settings:
    settings = model.settings
    return {
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.dim,
        "intermediate_size": feed_forward_of(model).down.in_features,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "hidden_act": activation(model),
        "max_position_embeddings": settings.context,
        "layer_norm_eps": NORM_EPSILON,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": settings.rotary_base,
            "partial_rotary_factor": 1.0,
        },
        "use_parallel_residual": False,
        "attention_bias": attention_bias(model),
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tie_word_embeddings": weights_of(model).tied,
    }


def opt(model: Transformer) -> Settings:
    """The norm epsilon of OPT is fixed, and equal to Lilliput's. OPT has no final norm if its norms come after the layers."""
    settings = model.settings
    before = settings.norm_placement == "pre"
    return {
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.dim,
        "word_embed_proj_dim": settings.dim,
        "ffn_dim": feed_forward_of(model).down.in_features,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "activation_function": activation(model),
        "max_position_embeddings": settings.context,
        "do_layer_norm_before": before,
        "_remove_final_layer_norm": True,
        "enable_bias": any_bias(model),
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": weights_of(model).tied,
    }
