"""Which models an exporter supports: the requirements of a format, and the settings that a model must change to meet them.

Owns: `Requirements` (the exact types of parts, and the shapes), the obstacles between a model and a format, the choice of a
format, and the error that names the settings. Does not own: the formats (`stock_classes`, `gguf_architectures`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn

from lilliput.errors import UserError
from lilliput.kernels.linear import Linear
from lilliput.model.attention import SelfAttention
from lilliput.model.embeddings import LearnedEmbedding, PatchedEmbedding, PretrainedEmbedding, Unmixed, ValueEmbedding
from lilliput.model.heads import ClassifierHead, LanguageAndLabelHead, LanguageHead, SoftCap
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
from lilliput.model.part_support import Supported, parts_of
from lilliput.model.positions import Learned, Positions, Rotary, Sinusoidal
from lilliput.model.transformer import Block, Transformer

Part = type[nn.Module]

# Roles of `part_support`: the setting that selects the part, and the value that selects each type.
SETTINGS: dict[str, tuple[str, dict[Part, str]]] = {
    "positions": (
        "model.positions",
        {Positions: "none", Learned: "learned", Sinusoidal: "sinusoidal", Rotary: "rotary"},
    ),
    "norm placement": ("model.norm_placement", {PreNorm: "pre", PostNorm: "post"}),
    "norm": ("model.norm", {nn.LayerNorm: "layer", UnbiasedLayerNorm: "layer-unbiased", RMSNorm: "rms"}),
    "query-key norm": ("model.qk_norm", {QueryKeyNorm: "true", nn.Identity: "false"}),
    "value embedding": ("model.value_embeddings", {Unmixed: "none"}),
    "feed-forward": (
        "model.feed_forward",
        {
            ReluFeedForward: "relu",
            GeluFeedForward: "gelu",
            SquaredReluFeedForward: "relu2",
            SwigluFeedForward: "swiglu",
        },
    ),
    "head": ("model.task", {LanguageHead: "language", LanguageAndLabelHead: "both", ClassifierHead: "classifier"}),
    "bound of the logits": ("model.soft_cap", {nn.Identity: "none"}),
}
# A fix that changes none of these is preferred: they matter more to a model than a bias or a window.
PARTS = {SETTINGS[role][0] for role in ("positions", "norm placement", "norm", "query-key norm", "feed-forward")}
# The same in every format: the embedding is written as one matrix, so every kind of it is supported.
COMMON: Supported = {
    "embedding": (LearnedEmbedding, PretrainedEmbedding, PatchedEmbedding),
    "block": (Block,),
    "attention": (SelfAttention,),
    "value embedding": (Unmixed,),
    "linear layer": (Linear, nn.Linear),
    "head": (LanguageHead,),
    "bound of the logits": (nn.Identity,),
}

Widths = Literal["none", "all layers", "some layers"]


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """A format, the parts that it computes exactly as Lilliput does, and the shapes that it can have.

    `windows`: none; all layers: one width, the same in every layer; some layers: one width, in any layers.
    """

    name: str
    norm: Part
    positions: tuple[Part, ...]
    feed_forwards: tuple[Part, ...]
    qk_norm: bool = False
    norm_placement: Part = PreNorm
    final_norm: bool = True
    attention_bias: bool = False
    feed_forward_bias: bool = False
    kv_heads: Literal["any", "repeated"] = "any"
    head_dim: Literal["any", "any, if heads divides dim", "dim / heads"] = "any"
    windows: Widths = "none"

    @property
    def supported(self) -> Supported:
        return {
            **COMMON,
            "positions": self.positions,
            "norm placement": (self.norm_placement,),
            "norm": (self.norm,),
            "query-key norm": (QueryKeyNorm if self.qk_norm else nn.Identity,),
            "feed-forward": self.feed_forwards,
            "final norm": (self.norm if self.final_norm else nn.Identity,),
        }


Format = TypeVar("Format", bound=Requirements)


@dataclass(frozen=True)
class Obstacle:
    """A setting that must change before a format can hold the model: its value and the values that are supported."""

    setting: str
    found: str
    supported: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.setting} {self.found}"

    @property
    def change(self) -> str:
        return f"{self.setting} to {' or '.join(self.supported)}"


def value_of(role: str, part: Part) -> str:
    """Return the value of the setting that selects a part; the name of its type, if a plugin has registered it."""
    if part in (SoftCap, ValueEmbedding):
        return "on"
    return SETTINGS[role][1].get(part, part.__name__) if role in SETTINGS else part.__name__


def obstacles(model: Transformer, required: Requirements) -> list[Obstacle]:
    """Return the settings that must change, each once; empty if the format holds the model."""
    found: dict[str, Obstacle] = {}
    for one in (*part_obstacles(model, required), *shape_obstacles(model, required)):
        found.setdefault(one.setting, one)
    return list(found.values())


def part_obstacles(model: Transformer, required: Requirements) -> Iterator[Obstacle]:
    supported = required.supported
    for role, part in parts_of(model):
        if type(part) in supported[role]:
            continue
        if role == "final norm":
            normed = not isinstance(part, nn.Identity)
            if normed != required.final_norm:
                yield Obstacle("model.final_norm", str(normed).lower(), (str(required.final_norm).lower(),))
                continue
            role = "norm"
        setting, _ = SETTINGS.get(role, (f"the {role}", {}))
        values = tuple(value_of(role, one) for one in supported[role])
        yield Obstacle(setting, value_of(role, type(part)), values)


def shape_obstacles(model: Transformer, required: Requirements) -> Iterator[Obstacle]:
    settings, off = model.settings, ("false",)
    if isinstance(model.head, LanguageHead) and model.head.project.bias is not None:
        yield Obstacle("model.bias_head", "true", off)
    blocks: list[Any] = list(model.blocks)
    attention, feed_forward = blocks[0].attention.inner, blocks[0].feed_forward.inner
    if not required.attention_bias and isinstance(attention, SelfAttention):
        for name, layer in (("input", attention.qkv), ("output", attention.out)):
            if layer.bias is not None:
                yield Obstacle(f"model.bias_attention_{name}", "true", off)
    if not required.feed_forward_bias and isinstance(feed_forward, FeedForward) and feed_forward.up.bias is not None:
        yield Obstacle("model.bias_feed_forward", "true", off)
    divides = settings.dim % settings.heads == 0
    if required.head_dim == "dim / heads" and model.head_dim * settings.heads != settings.dim:
        yield Obstacle("model.head_dim", str(model.head_dim), ("none",) if divides else ("dim / heads",))
    if required.head_dim == "any, if heads divides dim" and not divides:
        yield Obstacle("model.heads", str(settings.heads), ("a divisor of model.dim",))
    widths = used_windows(model)
    shown = ",".join("none" if width is None else str(width) for width in widths)
    if required.windows == "none" and any(widths):
        yield Obstacle("model.window", shown, ("none",))
    elif required.windows == "all layers" and len({*widths}) > 1:
        yield Obstacle("model.window", shown, ("none", "one width for all layers"))
    elif len({*widths} - {None}) > 1:
        yield Obstacle("model.window", shown, ("none", "one width, in any layers"))


def used_windows(model: Transformer) -> list[int | None]:
    """Return the window of each layer; None for one that is as long as the context, which has no effect."""
    context = model.settings.context
    return [None if width is None or width >= context else width for width in model.windows]


def choose_format(model: Transformer, formats: Sequence[Format], noun: str) -> Format:
    """Return the first format that holds the model; raise an error that names the settings of the closest one."""
    by_format = [(obstacles(model, one), one) for one in formats]
    for found, one in by_format:
        if not found:
            return one
    found, closest = min(by_format, key=lambda item: (len(item[0]), sum(one.setting in PARTS for one in item[0])))
    what = f"{noun} cannot hold this model: no supported format has {', '.join(map(str, found))}"
    fix = f"set {', '.join(one.change for one in found)}, and train again (then {closest.name} holds the model)"
    raise UserError(what, fix=fix, code="export.unsupported", setting=found[0].setting)
