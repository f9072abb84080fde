"""The GPT-2 of transformers with the weights of a small model, as reference."""

from __future__ import annotations

from typing import Any

from helpers.tiny_models import tiny_model
from lilliput.model.transformer import Transformer

NAMES = {
    "attn.c_attn": "attention.inner.qkv",
    "attn.c_proj": "attention.inner.out",
    "ln_1": "attention.norm",
    "mlp.c_fc": "feed_forward.inner.up",
    "mlp.c_proj": "feed_forward.inner.down",
    "ln_2": "feed_forward.norm",
}


def gpt2_like() -> Transformer:
    return tiny_model(norm="layer", positions="learned", feed_forward="gelu", tied=True, hidden=64, biases="blocks")


def as_gpt2(model: Transformer) -> Any:
    """Return the GPT2LMHeadModel equal to `gpt2_like`, in float64, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"vocab_size": 17, "n_positions": 24, "n_embd": 16, "n_layer": 3, "n_head": 4}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**shape, **off, activation_function="gelu", bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config).double().eval()
    table = model.embedding.table.weight
    weights = {"transformer.wte.weight": table, "lm_head.weight": table}
    weights |= {"transformer.wpe.weight": model.positions.table.weight}
    weights |= {f"transformer.ln_f.{kind}": getattr(model.norm, kind) for kind in ("weight", "bias")}
    for index, block in enumerate(model.blocks):
        for their_name, our_name in NAMES.items():
            for kind in ("weight", "bias"):
                tensor = block.get_parameter(f"{our_name}.{kind}")
                # transformers' Conv1D holds (inputs, outputs), torch's Linear (outputs, inputs)
                weights[f"transformer.h.{index}.{their_name}.{kind}"] = tensor.T if tensor.dim() == 2 else tensor
    theirs.load_state_dict({name: tensor.detach().clone() for name, tensor in weights.items()})
    return theirs
