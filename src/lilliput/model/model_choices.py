"""The selectable parts of a model: norms, norm placements, positions, feed-forwards, embeddings, initialisers.

Owns: one table per setting. An entry names the part that it builds, counts its parameters and activations, and checks for
conflicting settings. Does not import torch, so a dry run and `info` are fast; a registered part without counts is built on
device "meta" and counted. Does not own: the parts, how they are combined (`transformer`), tasks and heads
(`task_choices`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lilliput.model.shapes import gated_width
from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable, Conflict
from lilliput.settings.tree import Config, ModelSettings, VectorSettings


def count_built(build: Callable[[], Any], matrices_only: bool = False) -> int:
    """Count the parameters of a part, built on device "meta" (without memory)."""
    import torch

    with torch.device("meta"):
        part = build()
    return sum(weight.numel() for weight in part.parameters() if weight.dim() >= 2 or not matrices_only)


# Norms ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Norm(Choice):
    """A norm, built with the dimension that is normalised."""

    parameters: Callable[[int], int] | None = None
    statistics: int = 1  # values per token that are saved for the backward pass

    def count(self, dim: int) -> int:
        return self.parameters(dim) if self.parameters else count_built(lambda: self.build(dim))


def two_dims(config: Config) -> list[Conflict]:
    if config.model.dim >= 2:
        return []
    what = "the unbiased standard deviation requires a model.dim of at least 2 (got 1)"
    return [Conflict("model.dim", what, "set a larger model.dim or another model.norm")]


NORMS: ChoiceTable[Norm] = TABLES["model.norm"]
NORMS.kind = Norm
NORMS.add(
    Norm(name="layer", builds="lilliput.model.norms:layer_norm", parameters=lambda dim: 2 * dim, statistics=2),
    Norm(
        name="layer-unbiased",
        builds="lilliput.model.norms:UnbiasedLayerNorm",
        parameters=lambda dim: 2 * dim,
        statistics=1,
        rules=two_dims,
    ),
    Norm(name="rms", builds="lilliput.model.norms:RMSNorm", parameters=lambda dim: dim),
)

# Norm placements: built with the norm, the part that it belongs to, and dropout ---------------------------------------

NORM_PLACEMENTS: ChoiceTable[Choice] = TABLES["model.norm_placement"]
NORM_PLACEMENTS.add(
    Choice(name="pre", builds="lilliput.model.layers:PreNorm"),
    Choice(name="post", builds="lilliput.model.layers:PostNorm"),
)

# Positions ------------------------------------------------------------------------------------------------------------


def no_parameters(settings: ModelSettings) -> int:
    return 0


@dataclass(frozen=True, kw_only=True)
class PositionalEncoding(Choice):
    """A positional encoding, built with the model's settings."""

    parameters: Callable[[ModelSettings], int] | None = None
    adds: bool = False  # is added to the embedding
    rotates: bool = False  # rotates queries and keys, which are then saved for the backward pass

    def count(self, settings: ModelSettings) -> int:
        return self.parameters(settings) if self.parameters else count_built(lambda: self.build(settings))


def even_dim(config: Config) -> list[Conflict]:
    dim = config.model.dim
    if dim % 2 == 0:
        return []
    return [
        Conflict("model.dim", f"sinusoidal positions require an even model.dim (got {dim})", "set an even model.dim")
    ]


def even_head_dim(config: Config) -> list[Conflict]:
    dim, heads, head_dim = config.model.dim, config.model.heads, config.model.head_dim
    if head_dim is not None:
        what = f"rotary positions require an even model.head_dim (got {head_dim})"
        return [Conflict("model.head_dim", what, "set an even model.head_dim")] if head_dim % 2 else []
    if dim % heads or (dim // heads) % 2 == 0:
        return []
    what = f"rotary positions require an even dim per head (got {dim} / {heads} = {dim // heads})"
    return [Conflict("model.heads", what, "set model.heads so that model.dim / model.heads is even")]


POSITIONS: ChoiceTable[PositionalEncoding] = TABLES["model.positions"]
POSITIONS.kind = PositionalEncoding
POSITIONS.add(
    PositionalEncoding(
        name="sinusoidal",
        builds="lilliput.model.positions:Sinusoidal.of",
        parameters=no_parameters,
        adds=True,
        rules=even_dim,
    ),
    PositionalEncoding(
        name="learned",
        builds="lilliput.model.positions:Learned.of",
        parameters=lambda settings: settings.context * settings.dim,
        adds=True,
    ),
    PositionalEncoding(
        name="rotary",
        builds="lilliput.model.positions:Rotary.of",
        parameters=no_parameters,
        rotates=True,
        rules=even_head_dim,
    ),
)
NO_POSITIONS = PositionalEncoding(name="none", builds="lilliput.model.positions:Positions.of", parameters=no_parameters)


def positions_of(settings: ModelSettings) -> PositionalEncoding:
    return NO_POSITIONS if settings.positions is None else POSITIONS[settings.positions]


# Feed-forwards --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FeedForwardChoice(Choice):
    """A feed-forward, built with dim, hidden and bias. `kept`: values that the activation saves for the backward pass, per
    token and unit of the inner width."""

    known: bool = False  # a subclass of `layers.FeedForward` without additional parameters: counted by formula
    gated: bool = False
    kept: int = 2

    def inside(self, hidden: int) -> int:
        return gated_width(hidden) if self.gated else hidden

    def matrices(self, dim: int, hidden: int) -> int:
        if self.known:
            return dim * self.inside(hidden) * (3 if self.gated else 2)
        return count_built(lambda: self.build(dim, hidden, False), matrices_only=True)

    def vectors(self, dim: int, hidden: int, bias: bool) -> int:
        """Count the parameters that are not matrices."""
        if self.known:
            return bias * (self.inside(hidden) * (2 if self.gated else 1) + dim)
        return count_built(lambda: self.build(dim, hidden, bias)) - self.matrices(dim, hidden)


FEED_FORWARDS: ChoiceTable[FeedForwardChoice] = TABLES["model.feed_forward"]
FEED_FORWARDS.kind = FeedForwardChoice
FEED_FORWARDS.add(
    FeedForwardChoice(name="relu", builds="lilliput.model.layers:ReluFeedForward", known=True, kept=1),
    FeedForwardChoice(name="gelu", builds="lilliput.model.layers:GeluFeedForward", known=True),
    FeedForwardChoice(name="relu2", builds="lilliput.model.layers:SquaredReluFeedForward", known=True),
    FeedForwardChoice(name="swiglu", builds="lilliput.model.layers:SwigluFeedForward", known=True, gated=True, kept=4),
)

# Embeddings: selected by the settings `vectors.*`, not by a name ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Embedding(Choice):
    """An embedding, built with the settings of the model and of the vectors. `parameters` returns (all, frozen)."""

    parameters: Callable[[ModelSettings, VectorSettings], tuple[int, int]]


def projection_size(settings: ModelSettings, vectors: VectorSettings) -> int:
    """Count the weights of the projection from vectors to model.dim."""
    return (vectors.width or 0) * settings.dim if vectors.projection else 0


def vector_table(settings: ModelSettings, vectors: VectorSettings) -> tuple[int, int]:
    assert settings.vocab_size is not None and vectors.width is not None
    table = settings.vocab_size * vectors.width
    return table + projection_size(settings, vectors), table if vectors.frozen else 0


def patched_vector_table(settings: ModelSettings, vectors: VectorSettings) -> tuple[int, int]:
    total, frozen = vector_table(settings, vectors)
    return total + (vectors.rows or 0) * (vectors.width or 0), frozen


EMBEDDINGS = {
    "learned": Embedding(
        name="learned",
        builds="lilliput.model.embeddings:learned_embedding",
        parameters=lambda settings, vectors: ((settings.vocab_size or 0) * settings.dim, 0),
    ),
    "pretrained": Embedding(
        name="pretrained", builds="lilliput.model.embeddings:pretrained_embedding", parameters=vector_table
    ),
    "patched": Embedding(
        name="patched", builds="lilliput.model.embeddings:patched_embedding", parameters=patched_vector_table
    ),
}


def embedding_of(vectors: VectorSettings) -> Embedding:
    """Select the embedding; only a frozen table needs separate learned rows for uncovered tokens."""
    if vectors.width is None:
        return EMBEDDINGS["learned"]
    patched = vectors.frozen and vectors.uncovered == "learned" and vectors.rows
    return EMBEDDINGS["patched" if patched else "pretrained"]


@dataclass(frozen=True, kw_only=True)
class ValueLayers(Choice):
    """The layers that have a value embedding: `builds` returns their indices, given the number of layers."""

    def layers(self, layers: int) -> set[int]:
        chosen: set[int] = self.build(layers)
        return chosen


VALUE_EMBEDDINGS: ChoiceTable[ValueLayers] = TABLES["model.value_embeddings"]
VALUE_EMBEDDINGS.kind = ValueLayers
VALUE_EMBEDDINGS.add(
    ValueLayers(name="ends", builds=lambda layers: {0, layers - 1}),
    ValueLayers(name="alternate", builds=lambda layers: {*range(layers - 1, -1, -2)}),
    ValueLayers(name="all", builds=lambda layers: {*range(layers)}),
)


def value_layers(settings: ModelSettings) -> set[int]:
    """Return the indices of the layers with a value embedding; the last layer is always one of them."""
    kind = settings.value_embeddings
    return set() if kind is None else VALUE_EMBEDDINGS[kind].layers(settings.layers)


# Initialisers: built with the model and a generator -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Initialiser(Choice):
    identity_blocks: bool = False  # every block is initialised as the identity


def equal_kv_heads(config: Config) -> list[Conflict]:
    heads, kv_heads = config.model.heads, config.model.kv_heads
    if kv_heads in (None, heads):
        return []
    what = f"model.initialisation copying requires model.kv_heads = model.heads (got {kv_heads} and {heads})"
    return [Conflict("model.initialisation", what, "remove model.kv_heads or choose another model.initialisation")]


INITIALISERS: ChoiceTable[Initialiser] = TABLES["model.initialisation"]
INITIALISERS.kind = Initialiser
INITIALISERS.add(
    Initialiser(name="xavier", builds="lilliput.model.initialisation:Xavier"),
    Initialiser(name="gpt2", builds="lilliput.model.initialisation:Gpt2"),
    Initialiser(name="zero-residual", builds="lilliput.model.initialisation:ZeroResidual", identity_blocks=True),
    Initialiser(name="copying", builds="lilliput.model.initialisation:Copying", rules=equal_kv_heads),
)
