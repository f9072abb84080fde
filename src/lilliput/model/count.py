"""What a model costs, by arithmetic alone: parameters by part, FLOPs, bytes of activations and cache.

Owns: the formulas. They need no torch and no weights, so that a dry run and `info` answer at once; tests tie each to
the real model. Does not own: speed (that is measured, not derived).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lilliput.settings import ModelSettings, VectorSettings


@dataclass(frozen=True)
class Parameters:
    """`embedding` includes learned positions; `norm` is the one after the last block; a tied head is its bias only."""

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
    blocks = settings.layers * (matrices + biases + 2 * norm + (2 * head_dim if settings.qk_norm else 0))
    final_norm = norm if settings.final_norm else 0

    width = vectors.width if vectors.width is not None else dim
    table, projection = vocab_size * width, width * dim if vectors.width is not None else 0
    positions = settings.context * dim if settings.positions == "learned" else 0
    embedding = table + learned_rows(vectors) * width + projection + positions
    if settings.task == "language":
        head_matrices = dim * vocab_size
        head = (0 if settings.tied else head_matrices) + settings.bias_head * vocab_size
    else:
        assert settings.classes is not None
        head_matrices = (dim + settings.classes) * settings.classifier_hidden
        head = head_matrices + settings.classifier_hidden + settings.classes
    total = embedding + blocks + final_norm + head
    frozen = table if vectors.width is not None and vectors.frozen else 0

    # A product with n numbers is 2n FLOPs forward and 4n backward; so are scores and mixing, over the keys seen.
    windows = spans(settings.window, settings.layers)
    keys = sum(keys_seen(window, settings.context, settings.task == "language") for window in windows)
    per_position = head_matrices if settings.task == "language" else 0  # a classifier's head is paid once a row
    flops = 6 * (settings.layers * matrices + projection + per_position) + round(12 * dim * keys)

    cached = [min(settings.context, window - 1) if window is not None else settings.context for window in windows]
    cache_entry = 2 * kv_heads * head_dim * bytes_per_number + 8  # and a position
    activations = settings.layers * saved_numbers(settings, qkv, up, inside, head_dim) * bytes_per_number
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
    if settings.positions == "rotary":
        attention += 2 * head_dim
    if settings.qk_norm or settings.positions == "rotary":
        attention += queries_and_keys
    kept = {"relu": inside, "gelu": 2 * inside, "relu2": 2 * inside, "swiglu": up + 2 * inside}
    return norms + attention + kept[settings.feed_forward]
