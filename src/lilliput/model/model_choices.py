"""The choices of a model, by name: norms, norm placements, positions, feed-forwards, embeddings, heads, initialisers.

Owns: one table per choice. An entry names the part that it builds, counts its parameters, FLOPs and activations, and knows
its conflicts. Needs no torch: a dry run and `info` count without it; a registered part that gives no counts is built
without memory and counted. Does not own: the parts, or how they are put together (`transformer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lilliput.model.shapes import gated_width
from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable, Conflict
from lilliput.settings.tree import Config, ModelSettings, VectorSettings


def count_built(build: Callable[[], Any], matrices_only: bool = False) -> int:
    """Count the parameters of a part that is built without memory."""
    import torch

    with torch.device("meta"):
        part = build()
    return sum(weight.numel() for weight in part.parameters() if weight.dim() >= 2 or not matrices_only)


# Norms ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Norm(Choice):
    """Built with the dimension that is normalised."""

    parameters: Callable[[int], int] | None = None
    statistics: int = 1  # numbers per token that are kept for the backward pass

    def count(self, dim: int) -> int:
        return self.parameters(dim) if self.parameters else count_built(lambda: self.build(dim))


NORMS: ChoiceTable[Norm] = TABLES["model.norm"]
NORMS.kind = Norm
NORMS.add(
    Norm(name="layer", builds="lilliput.model.norms:layer_norm", parameters=lambda dim: 2 * dim, statistics=2),
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
    """Built with the model's settings."""

    parameters: Callable[[ModelSettings], int] | None = None
    adds: bool = False  # to the embedding
    rotates: bool = False  # queries and keys, which are then kept for the backward pass

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
    dim, heads = config.model.dim, config.model.heads
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
    """Built with dim, hidden and bias. `kept`: numbers per token and unit of the inner width that the activation keeps for
    the backward pass."""

    known: bool = False  # a subclass of `layers.FeedForward` without parameters of its own: counted by formula
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

# Embeddings: selected by the settings of the vectors, not by a name ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Embedding(Choice):
    """Built with the settings of the model and of the vectors. `parameters` returns (all, frozen)."""

    parameters: Callable[[ModelSettings, VectorSettings], tuple[int, int]]


def vector_table(settings: ModelSettings, vectors: VectorSettings) -> tuple[int, int]:
    assert settings.vocab_size is not None and vectors.width is not None
    table = settings.vocab_size * vectors.width
    return table + vectors.width * settings.dim, table if vectors.frozen else 0


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
    """Select the embedding: a table of vectors that is tuned learns the rows of uncovered tokens itself."""
    if vectors.width is None:
        return EMBEDDINGS["learned"]
    patched = vectors.frozen and vectors.uncovered == "learned" and vectors.rows
    return EMBEDDINGS["patched" if patched else "pretrained"]


@dataclass(frozen=True, kw_only=True)
class ValueLayers(Choice):
    """Which layers have a table of values by token: `builds` returns their numbers for a number of layers."""

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
    """Return the layers whose values have a table by token; the last is always one of them."""
    kind = settings.value_embeddings
    return set() if kind is None else VALUE_EMBEDDINGS[kind].layers(settings.layers)


# Heads, by task -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Task(Choice):
    """What a model predicts; `builds` makes the head from the model's settings."""

    tokens: bool = True  # predicts the next token: a causal decoder
    labels: bool = False  # predicts the label of a document

    def count(self, settings: ModelSettings) -> int:
        """Count the parameters of the head; a tied one has only its bias."""
        assert settings.vocab_size is not None
        found = 0
        if self.tokens:
            found += (
                0 if settings.tied else settings.dim * settings.vocab_size
            ) + settings.bias_head * settings.vocab_size
        if self.labels:
            assert settings.classes is not None
            found += (settings.dim + 1 + settings.classes) * settings.classifier_hidden + settings.classes
        return found


def language_rules(config: Config) -> list[Conflict]:
    found = []
    if config.model.classes is not None:
        fix = "set model.task to classifier or both, or remove model.classes"
        found.append(Conflict("model.classes", "a language model has no classes", fix))
    if config.train.balance_labels:
        fix = "set model.task to classifier or both, or remove train.balance_labels"
        found.append(Conflict("train.balance_labels", "a language model has no labels", fix))
    return found + one_loss(config)


def classifier_rules(config: Config) -> list[Conflict]:
    model, found = config.model, []
    if model.soft_cap is not None:
        found.append(Conflict("model.soft_cap", "a classifier has no token logits", "set model.soft_cap to none"))
    if model.tied:
        what = "a tied head requires a language model (got model.task classifier)"
        found.append(Conflict("model.tied", what, "set model.tied to false"))
    if config.train.z_loss:
        found.append(Conflict("train.z_loss", "a classifier has no token logits", "set train.z_loss to 0"))
    if config.train.pair_updates:
        found.append(Conflict("train.pair_updates", "a classifier predicts no tokens", "set train.pair_updates to 0"))
    return found + labelled_documents(config, "a classifier") + one_loss(config)


def both_rules(config: Config) -> list[Conflict]:
    train, found = config.train, []
    if config.data.windows == "overlapping":
        what = "model.task both requires aligned windows: each label is learned once per epoch"
        found.append(Conflict("data.windows", what, "set data.windows to aligned"))
    if train.language_weight + train.label_weight == 0.0:
        what = "train.language_weight and train.label_weight are both 0: there is no loss"
        found.append(Conflict("train.language_weight", what, "set one of them above 0"))
    return found + labelled_documents(config, "model.task both")


def labelled_documents(config: Config, what: str) -> list[Conflict]:
    if config.data.labelled:
        return []
    fix = "set data.labelled to true and data.source to a labelled source"
    return [Conflict("data.labelled", f"{what} requires labelled documents", fix)]


def one_loss(config: Config) -> list[Conflict]:
    return [
        Conflict(
            f"train.{name}",
            f"train.{name} requires model.task both (got {config.model.task}, which has one loss)",
            f"remove train.{name}",
        )
        for name in ("language_weight", "label_weight")
        if getattr(config.train, name) != 1.0
    ]


TASKS: ChoiceTable[Task] = TABLES["model.task"]
TASKS.kind = Task
TASKS.add(
    Task(name="language", builds="lilliput.model.heads:language_head", rules=language_rules),
    Task(
        name="classifier",
        builds="lilliput.model.heads:classifier_head",
        tokens=False,
        labels=True,
        rules=classifier_rules,
    ),
    Task(name="both", builds="lilliput.model.heads:language_and_label_head", labels=True, rules=both_rules),
)

# Initialisers: built with the model and a generator -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Initialiser(Choice):
    identity_blocks: bool = False  # every block begins as the identity


def equal_kv_heads(config: Config) -> list[Conflict]:
    heads, kv_heads = config.model.heads, config.model.kv_heads
    if kv_heads in (None, heads):
        return []
    what = f"model.initialisation copying requires as many kv_heads as heads (got {kv_heads} and {heads})"
    return [Conflict("model.initialisation", what, "remove model.kv_heads or choose another model.initialisation")]


INITIALISERS: ChoiceTable[Initialiser] = TABLES["model.initialisation"]
INITIALISERS.kind = Initialiser
INITIALISERS.add(
    Initialiser(name="xavier", builds="lilliput.model.initialisation:Xavier"),
    Initialiser(name="gpt2", builds="lilliput.model.initialisation:Gpt2"),
    Initialiser(name="zero-residual", builds="lilliput.model.initialisation:ZeroResidual", identity_blocks=True),
    Initialiser(name="copying", builds="lilliput.model.initialisation:Copying", rules=equal_kv_heads),
)
