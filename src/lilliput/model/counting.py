"""The size and cost of a model by formula: parameters by part, FLOPs, bytes of activations and cache.

Owns: the formulas. They need neither torch nor weights, so a dry run and `info` are fast; tests compare each with a real
model. Does not own: speed, which is measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from lilliput.model.model_choices import (
    FEED_FORWARDS,
    NORMS,
    embedding_of,
    positions_of,
    projection_size,
    value_layers,
)
from lilliput.model.shapes import head_width, layer_windows
from lilliput.model.task_choices import TASKS
from lilliput.settings.tree import ModelSettings, VectorSettings


@dataclass(frozen=True)
class Parameters:
    """`embedding` includes learned positions and value embeddings; `norm` is the final norm; a tied head counts only its bias."""

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
    activation_bytes_per_token: int  # saved for the backward pass, without the loss
    cache_bytes_per_token: int  # of layers without a window
    cache_bytes: int  # of one row with a full context

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Widths:
    """The widths of one block, in values per token."""

    dim: int
    head_dim: int
    mixed: int  # the output of attention, all heads
    qkv: int  # queries, keys and values
    inside: int  # of the feed-forward, after its activation
    feed_forward: int  # parameters in the matrices of the feed-forward

    @property
    def attention(self) -> int:
        """Parameters in the matrices of the attention."""
        return self.dim * self.qkv + self.mixed * self.dim

    @property
    def matrices(self) -> int:
        return self.attention + self.feed_forward


def widths(settings: ModelSettings) -> Widths:
    assert settings.hidden is not None and settings.kv_heads is not None, "settings must be resolved"
    head_dim = head_width(settings)
    mixed, qkv = settings.heads * head_dim, (settings.heads + 2 * settings.kv_heads) * head_dim
    feed_forward = FEED_FORWARDS[settings.feed_forward]
    matrices = feed_forward.matrices(settings.dim, settings.hidden)
    return Widths(settings.dim, head_dim, mixed, qkv, feed_forward.inside(settings.hidden), matrices)


def count(settings: ModelSettings, vectors: VectorSettings, bytes_per_number: int = 4) -> Count:
    vocab_size, hidden, kv_heads, block = settings.vocab_size, settings.hidden, settings.kv_heads, widths(settings)
    assert vocab_size is not None and hidden is not None and kv_heads is not None, "settings must be resolved"
    dim, head_dim, matrices = settings.dim, block.head_dim, block.matrices
    task, norm = TASKS[settings.task], NORMS[settings.norm].count(dim)

    biases = settings.bias_attention_input * block.qkv + settings.bias_attention_output * dim
    biases += FEED_FORWARDS[settings.feed_forward].vectors(dim, hidden, settings.bias_feed_forward)
    with_values = len(value_layers(settings))
    blocks = settings.layers * (matrices + biases + 2 * norm + (2 * head_dim if settings.qk_norm else 0))
    blocks += 2 * with_values  # the two weights of each mixture
    final_norm = norm if settings.final_norm else 0

    embedding, frozen = embedding_of(vectors).parameters(settings, vectors)
    embedding += positions_of(settings).count(settings) + with_values * vocab_size * kv_heads * head_dim
    head = task.count(settings)
    total = embedding + blocks + final_norm + head

    # A product with n weights takes 2n FLOPs forward and 4n backward; scores and mixing likewise, over the visible keys.
    # The classifier head is applied once per row and not counted.
    windows = layer_windows(settings.window, settings.layers)
    keys = sum(keys_seen(window, settings.context, task.tokens) for window in windows)
    projection = projection_size(settings, vectors)
    flops = 6 * (settings.layers * matrices + projection + task.tokens * dim * vocab_size) + round(
        12 * block.mixed * keys
    )

    cached = [min(settings.context, window) if window is not None else settings.context for window in windows]
    cache_entry = 2 * kv_heads * head_dim * bytes_per_number
    return Count(
        Parameters(embedding, blocks, final_norm, head, total, total - frozen),
        flops,
        activations(settings).most * bytes_per_number,
        cache_entry * windows.count(None),
        cache_entry * sum(cached),
    )


def keys_seen(window: int | None, context: int, causal: bool) -> float:
    """Return the mean number of visible keys per position; for causal attention without a window this is context / 2."""
    span = min(window or context, context)
    if causal:
        return span - span * span / (2 * context)
    return min(context, 2 * span - 1 - span * (span - 1) / context) if window else context


Recompute = Literal["block", "feed-forward"] | None


@dataclass(frozen=True)
class Activations:
    """Values per token, for each block (dropout off, no mask, without the loss)."""

    kept: list[int]  # saved for the backward pass
    whole: list[int]  # in memory while the backward pass of this block runs

    @property
    def most(self) -> int:
        """Return the peak: the whole of one block plus what the blocks before it have saved."""
        return max(sum(self.kept[:layer]) + whole for layer, whole in enumerate(self.whole))


def activations(settings: ModelSettings, recompute: Recompute = None, every: int = 1) -> Activations:
    dim, block = settings.dim, widths(settings)
    statistics = NORMS[settings.norm].statistics
    queries_and_keys = (block.qkv + block.mixed) // 2
    # A norm saves its input, its output and its statistics; attention also saves the log-sum-exp of each head.
    attention = 2 * dim + statistics + block.qkv + block.mixed + settings.heads
    if settings.qk_norm:
        attention += queries_and_keys // block.head_dim
    if settings.qk_norm or positions_of(settings).rotates:
        attention += queries_and_keys
    feed_forward = 2 * dim + statistics + FEED_FORWARDS[settings.feed_forward].kept * block.inside
    looked_up = block.qkv - block.mixed  # a value embedding and its mixture: 2 x kv_heads x head_dim
    with_values = value_layers(settings)
    kept, whole = [], []
    for layer in range(settings.layers):
        attended = attention + looked_up * (layer in with_values)
        whole.append(attended + feed_forward)
        by_kind = {None: whole[-1], "block": dim, "feed-forward": attended + dim}
        kept.append(by_kind[recompute if layer % every == 0 else None])
    return Activations(kept, whole)


def recomputed_flops(settings: ModelSettings, recompute: Recompute, every: int) -> int:
    """Return the additional FLOPs per token of recomputation: a second forward pass of the selected parts.

    An upper bound: with pre-norm and without dropout the last product is not recomputed.
    """
    if recompute is None:
        return 0
    block, chosen = widths(settings), layer_windows(settings.window, settings.layers)[::every]
    if recompute == "feed-forward":
        return 2 * block.feed_forward * len(chosen)
    keys = sum(keys_seen(window, settings.context, TASKS[settings.task].tokens) for window in chosen)
    return 2 * block.matrices * len(chosen) + round(4 * block.mixed * keys)
