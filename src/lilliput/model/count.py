"""What a model costs, by arithmetic alone: parameters by part, FLOPs, bytes of activations and cache.

Owns: the formulas. They need no torch and no weights, so that a dry run and `info` answer at once; tests tie each to
the real model. Does not own: speed (that is measured, not derived).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lilliput.settings import ModelSettings, VectorSettings


@dataclass(frozen=True)
class Parameters:
    """`embedding` includes learned positions and tables of values; `norm` is the one after the last block; a tied head is
    its bias only."""

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
    vocab_size, hidden, kv_heads = settings.vocab_size, settings.hidden, settings.kv_heads
    assert vocab_size is not None and hidden is not None and kv_heads is not None, "settings must be resolved"
    dim, head_dim, gated = settings.dim, settings.dim // settings.heads, settings.feed_forward == "swiglu"
    qkv = (settings.heads + 2 * kv_heads) * head_dim
    inside = gated_width(hidden) if gated else hidden
    up = 2 * inside if gated else inside
    norm = dim * (2 if settings.norm == "layer" else 1)

    matrices = dim * qkv + dim * dim + dim * up + inside * dim
    biases = (
        settings.bias_attention_input * qkv
        + settings.bias_attention_output * dim
        + settings.bias_feed_forward * (up + dim)
    )
    with_table = len(value_layers(settings.value_embeddings, settings.layers))
    blocks = settings.layers * (matrices + biases + 2 * norm + (2 * head_dim if settings.qk_norm else 0))
    blocks += 2 * settings.layers * settings.mix_embedding + 2 * with_table  # shares of mixtures
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

    cached = [min(settings.context, window - 1) if window is not None else settings.context for window in windows]
    cache_entry = 2 * kv_heads * head_dim * bytes_per_number + 8  # and a position
    saved = settings.layers * saved_numbers(settings, qkv, up, inside, head_dim)
    saved += 2 * with_table * kv_heads * head_dim  # rows of the table, and the mixture
    activations = saved * bytes_per_number
    return Count(
        Parameters(embedding, blocks, final_norm, head, total, total - frozen),
        flops,
        activations,
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


def saved_numbers(settings: ModelSettings, qkv: int, up: int, inside: int, head_dim: int) -> int:
    """Numbers per token that one block keeps from its forward for its backward (dropout off, no mask)."""
    dim = settings.dim
    queries_and_keys = (qkv + dim) // 2  # heads and kv_heads of them, and kv_heads of values
    norms = 2 * (2 * dim + (2 if settings.norm == "layer" else 1))  # what goes in, what comes out, statistics
    attention = qkv + dim + settings.heads  # and the log-sum-exp of each head
    if settings.qk_norm:
        attention += queries_and_keys // head_dim
    if settings.qk_norm or settings.positions == "rotary":
        attention += queries_and_keys
    mixed = dim * settings.mix_embedding  # the stream before
    kept = {"relu": inside, "gelu": 2 * inside, "relu2": 2 * inside, "swiglu": up + 2 * inside}
    return mixed + norms + attention + kept[settings.feed_forward]
