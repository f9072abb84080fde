"""The stock transformers classes that hold Lilliput's models exactly, as data, and the tables of them in the docs.

Owns: the table. Each row lists the parts and shapes that a class computes exactly as Lilliput does, and names the functions
that write its settings and tensors. Does not own: these functions (`stock_configs`, `stock_tensors`), or the check of a model
against a row (`requirements`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lilliput.exporting import stock_configs, stock_tensors
from lilliput.exporting.requirements import Requirements, value_of
from lilliput.exporting.weights import Tensors
from lilliput.model.layers import (
    GeluFeedForward,
    PostNorm,
    ReluFeedForward,
    SquaredReluFeedForward,
    SwigluFeedForward,
)
from lilliput.model.norms import RMSNorm
from lilliput.model.positions import Learned, Positions, Rotary, Sinusoidal
from lilliput.model.transformer import Transformer

PLAIN = (ReluFeedForward, GeluFeedForward, SquaredReluFeedForward)
ADDED = (Learned, Sinusoidal, Positions)


@dataclass(frozen=True, kw_only=True)
class StockClass(Requirements):
    """A class of transformers: its model_type, the functions that return its settings and its tensors, and a remark on how
    it holds the parts."""

    model_type: str
    architecture: str
    config: Callable[[Transformer], dict[str, Any]]
    tensors: Callable[[Transformer], Tensors]
    remark: str = ""


OPT = StockClass(
    name="OPT",
    model_type="opt",
    architecture="OPTForCausalLM",
    norm=nn.LayerNorm,
    positions=ADDED,
    feed_forwards=PLAIN,
    final_norm=False,
    attention_bias=True,
    feed_forward_bias=True,
    kv_heads="repeated",
    head_dim="dim / heads",
    config=stock_configs.opt,
    tensors=stock_tensors.opt,
)

# The first class that holds a model is used; the better known ones come first.
STOCK_CLASSES: tuple[StockClass, ...] = (
    StockClass(
        name="Apertus",
        model_type="apertus",
        architecture="ApertusForCausalLM",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=PLAIN,
        qk_norm=True,
        attention_bias=True,
        config=stock_configs.apertus,
        tensors=stock_tensors.apertus,
        remark="`hidden_act` is the activation",
    ),
    StockClass(
        name="Qwen3",
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SwigluFeedForward, SquaredReluFeedForward),
        qk_norm=True,
        attention_bias=True,
        windows="some layers",
        config=stock_configs.qwen3,
        tensors=stock_tensors.gated_llama,
        remark="relu2: `hidden_act` relu, gate = up",
    ),
    StockClass(
        name="Llama",
        model_type="llama",
        architecture="LlamaForCausalLM",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SwigluFeedForward,),
        attention_bias=True,
        feed_forward_bias=True,
        head_dim="any, if heads divides dim",
        config=stock_configs.llama,
        tensors=stock_tensors.gated_llama,
    ),
    StockClass(
        name="Arcee",
        model_type="arcee",
        architecture="ArceeForCausalLM",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=PLAIN,
        attention_bias=True,
        feed_forward_bias=True,
        head_dim="any, if heads divides dim",
        config=stock_configs.arcee,
        tensors=stock_tensors.plain_llama,
        remark="`hidden_act` is the activation",
    ),
    StockClass(
        name="Mistral",
        model_type="mistral",
        architecture="MistralForCausalLM",
        norm=RMSNorm,
        positions=(Rotary,),
        feed_forwards=(SwigluFeedForward,),
        windows="all layers",
        config=stock_configs.mistral,
        tensors=stock_tensors.gated_llama,
    ),
    StockClass(
        name="SmolLM3",
        model_type="smollm3",
        architecture="SmolLM3ForCausalLM",
        norm=RMSNorm,
        positions=(Rotary, Positions),
        feed_forwards=(SwigluFeedForward, *PLAIN),
        attention_bias=True,
        feed_forward_bias=True,
        windows="some layers",
        config=stock_configs.smollm3,
        tensors=stock_tensors.gated_llama,
        remark="relu2: gate = up; relu, gelu: up = 1",
    ),
    StockClass(
        name="GPT-2",
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        norm=nn.LayerNorm,
        positions=ADDED,
        feed_forwards=PLAIN,
        attention_bias=True,
        feed_forward_bias=True,
        kv_heads="repeated",
        head_dim="dim / heads",
        config=stock_configs.gpt2,
        tensors=stock_tensors.gpt2,
        remark="`wpe` holds the table; none: zeros",
    ),
    StockClass(
        name="GPT-NeoX",
        model_type="gpt_neox",
        architecture="GPTNeoXForCausalLM",
        norm=nn.LayerNorm,
        positions=(Rotary,),
        feed_forwards=PLAIN,
        attention_bias=True,
        feed_forward_bias=True,
        kv_heads="repeated",
        head_dim="dim / heads",
        config=stock_configs.gpt_neox,
        tensors=stock_tensors.gpt_neox,
    ),
    StockClass(
        name="Starcoder2",
        model_type="starcoder2",
        architecture="Starcoder2ForCausalLM",
        norm=nn.LayerNorm,
        positions=(Rotary,),
        feed_forwards=PLAIN,
        attention_bias=True,
        feed_forward_bias=True,
        windows="all layers",
        config=stock_configs.starcoder2,
        tensors=stock_tensors.starcoder2,
    ),
    OPT,
    replace(OPT, norm_placement=PostNorm),
)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def values(role: str, parts: Sequence[type[nn.Module]]) -> str:
    return ", ".join(value_of(role, part) for part in parts)


def parts_table(formats: Sequence[Requirements], noun: str) -> str:
    """Return the Markdown table of the parts that each format holds."""
    header = (noun, "norm", "placement", "positions", "QK-norm", "feed-forward")
    rows = [
        (
            one.name,
            value_of("norm", one.norm),
            value_of("norm placement", one.norm_placement),
            values("positions", one.positions),
            "yes" if one.qk_norm else "no",
            values("feed-forward", one.feed_forwards),
        )
        for one in formats
    ]
    return table(header, rows)


def shapes_table(formats: Sequence[Requirements], noun: str) -> str:
    """Return the Markdown table of the shapes that each format can have. No format has a bias of the output head."""
    header = (noun, "placement", "final norm", "biases", "head bias", "kv_heads", "head_dim", "windows")
    rows = [
        (
            one.name,
            value_of("norm placement", one.norm_placement),
            "yes" if one.final_norm else "no",
            biases_of(one),
            "no",
            one.kv_heads,
            "any (1)" if "divides" in one.head_dim else one.head_dim,
            one.windows,
        )
        for one in formats
    ]
    return table(header, rows)


def biases_of(one: Requirements) -> str:
    both = {"attention": one.attention_bias, "feed-forward": one.feed_forward_bias}
    return "any" if all(both.values()) else ", ".join(name for name, held in both.items() if held) or "none"
