"""What a model costs, by arithmetic alone: parameters by part, FLOPs, bytes of activations and cache.

Owns: the formulas. They need no torch and no weights, so that a dry run and `info` answer at once; tests tie
each to the real model. Does not own: speed (that is measured, not derived).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from lilliput.settings.tree import ModelSettings, VectorSettings


@dataclass(frozen=True)
class Parameters:
    """`embedding` includes learned positions and tables of pairs and values; `norm` is the one after the last block; a tied head
    is its bias only."""

    embedding: int
    blocks: int
    norm: int
    head: int
    total: int
    trainable: int


@dataclass(frozen=True)
class Count:
    parameters: Parameters
    flops_per_token: int  # forward and backward
    activation_bytes_per_token: int  # kept from forward for backward, without the loss
    cache_bytes_per_token: int  # of layers without a window
    cache_bytes: int  # of one row that has filled the context

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Widths:
    """Of one block, in numbers a token."""

    dim: int
    head_dim: int
    qkv: int  # queries, keys and values
    up: int  # what comes out of the first product of the feed-forward
    inside: int  # what goes into the second

    @property
    def attention(self) -> int:
        """Numbers in the matrices of the attention."""
        return self.dim * self.qkv + self.dim * self.dim

    @property
    def feed_forward(self) -> int:
        return self.dim * self.up + self.inside * self.dim

    @property
    def matrices(self) -> int:
        return self.attention + self.feed_forward


def widths(settings: ModelSettings) -> Widths:
    assert settings.hidden is not None and settings.kv_heads is not None, "settings must be resolved"
    head_dim, gated = settings.dim // settings.heads, settings.feed_forward == "swiglu"
    inside = gated_width(settings.hidden) if gated else settings.hidden
    qkv = (settings.heads + 2 * settings.kv_heads) * head_dim
    return Widths(settings.dim, head_dim, qkv, 2 * inside if gated else inside, inside)


def gated_width(hidden: int) -> int:
    """2/3 of hidden, rounded to a multiple of 8: three matrices then cost what two did, and comparisons are fair."""
    return max(8, round(hidden * 2 / 3 / 8) * 8)


def spans(window: int | tuple[int | None, ...] | None, layers: int) -> list[int | None]:
    """The window of each layer: one for all, or a pattern repeated over the layers."""
    pattern = window if isinstance(window, tuple) else (window,)
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def value_layers(kind: str | None, layers: int) -> set[int]:
    """The layers whose values have a table by token; the last is always one of them."""
    chosen = {"ends": {0, layers - 1}, "alternate": {*range(layers - 1, -1, -2)}, "all": {*range(layers)}}
    return set() if kind is None else chosen[kind]


def count(settings: ModelSettings, vectors: VectorSettings, bytes_per_number: int = 4) -> Count:
    vocab_size, kv_heads, block = settings.vocab_size, settings.kv_heads, widths(settings)
    assert vocab_size is not None and kv_heads is not None, "settings must be resolved"
    dim, head_dim, matrices = settings.dim, block.head_dim, block.matrices
    norm = dim * (2 if settings.norm == "layer" else 1)

    biases = (
        settings.bias_attention_input * block.qkv
        + settings.bias_attention_output * dim
        + settings.bias_feed_forward * (block.up + dim)
    )
    with_table = len(value_layers(settings.value_embeddings, settings.layers))
    blocks = settings.layers * (matrices + biases + 2 * norm + (2 * head_dim if settings.qk_norm else 0))
    blocks += 2 * with_table  # the two weights of each value embedding
    final_norm = norm if settings.final_norm else 0

    width = vectors.width if vectors.width is not None else dim
    table, projection = vocab_size * width, width * dim if vectors.width is not None else 0
    positions = settings.context * dim if settings.positions == "learned" else 0
    values = with_table * vocab_size * kv_heads * head_dim
    embedding = table + learned_rows(vectors) * width + projection + positions + values
    causal, per_position, head = settings.task != "classifier", 0, 0
    if causal:
        per_position = dim * vocab_size
        head += (0 if settings.tied else per_position) + settings.bias_head * vocab_size
    if settings.task != "language":  # paid once a row
        assert settings.classes is not None
        head += (dim + 1 + settings.classes) * settings.classifier_hidden + settings.classes
    total = embedding + blocks + final_norm + head
    frozen = table if vectors.width is not None and vectors.frozen else 0

    # A product with n numbers is 2n FLOPs forward and 4n backward; so are scores and mixing, over the keys seen.
    windows = spans(settings.window, settings.layers)
    keys = sum(keys_seen(window, settings.context, causal) for window in windows)
    flops = 6 * (settings.layers * matrices + projection + per_position) + round(12 * dim * keys)

    cached = [min(settings.context, window) if window is not None else settings.context for window in windows]
    cache_entry = 2 * kv_heads * head_dim * bytes_per_number
    return Count(
        Parameters(embedding, blocks, final_norm, head, total, total - frozen),
        flops,
        activations(settings).most * bytes_per_number,
        cache_entry * windows.count(None),
        cache_entry * sum(cached),
    )


def learned_rows(vectors: VectorSettings) -> int:
    """Rows of the learned table beside a frozen one; a table that is tuned learns them itself."""
    mended = vectors.width is not None and vectors.frozen and vectors.uncovered == "learned"
    return (vectors.rows or 0) if mended else 0


def keys_seen(window: int | None, context: int, causal: bool) -> float:
    """Keys that a position sees, on average over the context; the causal half of full attention is context / 2."""
    span = min(window or context, context)
    if causal:
        return span - span * span / (2 * context)
    return min(context, 2 * span - 1 - span * (span - 1) / context) if window else context


Recompute = Literal["block", "feed-forward"] | None


@dataclass(frozen=True)
class Activations:
    """Numbers a token, of each block in turn (dropout off, no mask, without the loss)."""

    kept: list[int]  # from forward for backward
    whole: list[int]  # there while the block's own backward runs

    @property
    def most(self) -> int:
        """At one time: the backward of a block needs all of it, when those before it have what they keep."""
        return max(sum(self.kept[:layer]) + whole for layer, whole in enumerate(self.whole))


def activations(settings: ModelSettings, recompute: Recompute = None, every: int = 1) -> Activations:
    dim, block = settings.dim, widths(settings)
    statistics = 2 if settings.norm == "layer" else 1
    queries_and_keys = (block.qkv + dim) // 2  # heads and kv_heads of them, and kv_heads of values
    # A norm keeps what goes in, what comes out, and statistics; the attention also the log-sum-exp of each head.
    attention = 2 * dim + statistics + block.qkv + dim + settings.heads
    if settings.qk_norm:
        attention += queries_and_keys // block.head_dim
    if settings.qk_norm or settings.positions == "rotary":
        attention += queries_and_keys
    inside = {
        "relu": block.inside,
        "gelu": 2 * block.inside,
        "relu2": 2 * block.inside,
        "swiglu": block.up + 2 * block.inside,
    }
    feed_forward = 2 * dim + statistics + inside[settings.feed_forward]
    looked_up = block.qkv - dim  # a row of a table of values, and its mixture: twice kv_heads x head_dim
    with_table = value_layers(settings.value_embeddings, settings.layers)
    kept, whole = [], []
    for layer in range(settings.layers):
        attended = attention + looked_up * (layer in with_table)
        whole.append(attended + feed_forward)
        by_kind = {None: whole[-1], "block": dim, "feed-forward": attended + dim}
        kept.append(by_kind[recompute if layer % every == 0 else None])
    return Activations(kept, whole)


def recomputed_flops(settings: ModelSettings, recompute: Recompute, every: int) -> int:
    """Per token, beside those of forward and backward: the forward of what is recomputed, done again.

    Without dropout and with the norm first, the last product of it is spared; that is left out here.
    """
    if recompute is None:
        return 0
    block, chosen = widths(settings), spans(settings.window, settings.layers)[::every]
    if recompute == "feed-forward":
        return 2 * block.feed_forward * len(chosen)
    keys = sum(keys_seen(window, settings.context, settings.task != "classifier") for window in chosen)
    return 2 * block.matrices * len(chosen) + round(4 * settings.dim * keys)
