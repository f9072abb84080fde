"""The same weights in models of torch, NumPy and transformers give the same outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.gpt2_reference import as_gpt2, gpt2_like
from helpers.tiny_models import assert_same, draw_ids, tiny_model
from lilliput.model.norms import UnbiasedLayerNorm
from lilliput.model.transformer import Transformer


def copy(target: nn.Module, source: dict[str, Tensor]) -> None:
    target.load_state_dict({name: tensor.detach().clone() for name, tensor in source.items()})


# ---- torch -----------------------------------------------------------------------------------------------------------


def torch_layer(model: Transformer, index: int, norm_first: bool) -> nn.TransformerEncoderLayer:
    block, settings = model.blocks[index], model.settings
    activation = {"relu": F.relu, "gelu": F.gelu}[settings.feed_forward]
    layer = nn.TransformerEncoderLayer(
        settings.dim, settings.heads, settings.hidden, 0.0, activation, batch_first=True, norm_first=norm_first
    ).double()
    parts = {
        "self_attn.in_proj_": block.attention.inner.qkv,
        "self_attn.out_proj.": block.attention.inner.out,
        "linear1.": block.feed_forward.inner.up,
        "linear2.": block.feed_forward.inner.down,
        "norm1.": block.attention.norm,
        "norm2.": block.feed_forward.norm,
    }
    copy(
        layer, {prefix + kind: getattr(module, kind) for prefix, module in parts.items() for kind in ("weight", "bias")}
    )
    return layer  # in training mode, dropout 0: the plain path, not the fused one


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("causal", [True, False])
def test_torch_encoder_layer(placement: str, activation: str, causal: bool) -> None:
    task = {} if causal else {"task": "classifier", "classes": 2}
    choices = {"norm": "layer", "norm_placement": placement, "feed_forward": activation, "positions": None}
    model = tiny_model(biases="all", final_norm=False, **choices, **task)
    ids = draw_ids(2, 9)
    padding = torch.arange(9) >= torch.tensor([[9], [6]])  # (B, T)
    pos = torch.arange(9).expand(2, -1).masked_fill(padding, -1)
    x = model.embedding(ids)
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1) if causal else None
    for index in range(3):
        x = torch_layer(model, index, placement == "pre")(x, src_mask=mask, src_key_padding_mask=padding)
    ours = model.trunk(ids, model.begin(ids, pos, None))
    assert_same(ours[~padding], x[~padding])


# ---- NumPy -----------------------------------------------------------------------------------------------------------


def layer_norm(x: np.ndarray, norm: nn.Module) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    if isinstance(norm, UnbiasedLayerNorm):
        deviation = x.std(axis=-1, ddof=1, keepdims=True) + 1e-6
    else:
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred / deviation * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def linear(x: np.ndarray, module: nn.Linear) -> np.ndarray:
    bias = 0.0 if module.bias is None else module.bias.detach().numpy()
    return x @ module.weight.detach().numpy().T + bias


@pytest.mark.parametrize(("norm", "size"), [("layer", 4), ("layer", 7), ("layer-unbiased", 3)])
def test_numpy_post_norm_model(norm: str, size: int) -> None:
    """The decoder of Vaswani et al. 2017 in NumPy, from ids to logits; heads of any size."""
    choices = {"norm_placement": "post", "positions": "sinusoidal", "feed_forward": "relu", "biases": "output"}
    model = tiny_model(layers=2, norm=norm, head_dim=None if size == 4 else size, **choices)
    ids = draw_ids(1, 7)
    x = model.embedding.table.weight.detach().numpy()[ids[0].numpy()] * math.sqrt(16)
    for at in range(7):
        for i in range(16):
            angle = at / 10_000 ** (2 * (i // 2) / 16)
            x[at, i] += math.sin(angle) if i % 2 == 0 else math.cos(angle)
    for block in model.blocks:
        attention = block.attention.inner
        q, k, v = np.split(linear(x, attention.qkv), 3, axis=-1)
        mixed = np.zeros((7, 4 * size))
        for head in range(4):
            part = slice(size * head, size * head + size)
            for t in range(7):
                scores = q[t, part] @ k[: t + 1, part].T / math.sqrt(size)
                shares = np.exp(scores - scores.max())
                mixed[t, part] = shares / shares.sum() @ v[: t + 1, part]
        x = layer_norm(x + linear(mixed, attention.out), block.attention.norm)
        inner = np.maximum(linear(x, block.feed_forward.inner.up), 0)
        x = layer_norm(x + linear(inner, block.feed_forward.inner.down), block.feed_forward.norm)
    logits = linear(layer_norm(x, model.norm), model.head.project)
    assert_same(model(ids)[0], torch.from_numpy(logits))


# ---- transformers ----------------------------------------------------------------------------------------------------


def test_transformers_gpt2() -> None:
    model = gpt2_like()
    ids = draw_ids(2, 24)
    with torch.no_grad():
        assert_same(model(ids), as_gpt2(model)(ids).logits, 1e-10)


def llama_weights(model: Transformer) -> dict[str, Tensor]:
    weights = {
        "model.embed_tokens.weight": model.embedding.table.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.project.weight,
    }
    for index, block in enumerate(model.blocks):
        here = f"model.layers.{index}."
        q, k, v = block.attention.inner.qkv.weight.split([heads * model.head_dim for heads in (4, 2, 2)])
        gate, up = block.feed_forward.inner.up.weight.chunk(2)
        weights |= {
            here + "input_layernorm.weight": block.attention.norm.weight,
            here + "post_attention_layernorm.weight": block.feed_forward.norm.weight,
            here + "self_attn.q_proj.weight": q,
            here + "self_attn.k_proj.weight": k,
            here + "self_attn.v_proj.weight": v,
            here + "self_attn.o_proj.weight": block.attention.inner.out.weight,
            here + "mlp.gate_proj.weight": gate,
            here + "mlp.up_proj.weight": up,
            here + "mlp.down_proj.weight": block.feed_forward.inner.down.weight,
        }
    return weights


@pytest.mark.parametrize("head_dim", [4, 6, 2])
def test_transformers_llama(head_dim: int) -> None:
    """transformers computes norms and angles in float32: equal to 1e-5, and to 1e-10 with both replaced by float64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = tiny_model(norm="rms", positions="rotary", feed_forward="swiglu", kv_heads=2, head_dim=head_dim)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=24,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = LlamaForCausalLM(config).double().eval()
    copy(theirs, llama_weights(model))
    ids = draw_ids(2, 24)
    with torch.no_grad():
        assert_same(model(ids), theirs(ids).logits, 1e-5)
        for owner in [*theirs.model.layers, theirs.model]:
            for name in ("input_layernorm", "post_attention_layernorm", "norm"):
                if hasattr(owner, name):
                    exact = nn.RMSNorm(16, eps=1e-5, dtype=torch.float64)
                    exact.load_state_dict(getattr(owner, name).state_dict())
                    setattr(owner, name, exact)
        angles = torch.arange(24.0).double()[:, None] * 10_000.0 ** (-torch.arange(0, head_dim, 2).double() / head_dim)
        both = torch.cat((angles, angles), dim=-1)[None]
        theirs.model.rotary_emb.forward = lambda x, position_ids, **ignored: (both.cos(), both.sin())
        assert_same(model(ids), theirs(ids).logits, 1e-10)
