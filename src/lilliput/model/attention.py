"""Self-attention.

Owns: `attend`, which selects the attention kernel (tests compare each kernel with the mask), the attention layer, the state
that all layers of a forward pass share, and the capture of attention weights. Does not own: the mask (`attention_mask`),
positions, norms, residuals, or the cache's storage (`kv_cache`).

B rows, T queries, K keys, H heads, G key-value heads, D head dimension, C dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lilliput.kernels.linear import Linear
from lilliput.kernels.training_attention import attend_compiled, can_attend
from lilliput.model.attention_mask import Visibility, first_keys, visible
from lilliput.model.kv_cache import Cache
from lilliput.model.positions import Positions, Turn

NO_POSITIONS = Positions()


def attend(
    q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, dropout: float = 0.0, training: bool = False
) -> Tensor:
    """Return (B, H, T, D) from queries (B, H, T, D) and keys and values (B, G, K, D); zeros for a query without visible keys.

    Only training uses the compiled kernel, which may have to be compiled first; evaluation computes the same values everywhere.
    """
    grouped = q.shape[1] != k.shape[1]
    if visibility.bias is not None:
        scores = visibility.biased_mask(q.shape[-2], k.shape[-2]).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=scores, dropout_p=dropout, enable_gqa=grouped)
    if training and visibility.starts is not None and can_attend(q, k, v):
        return attend_compiled(q, k, v, visibility.starts, dropout)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=visibility.mask, is_causal=visibility.lower, dropout_p=dropout, enable_gqa=grouped
    )


def attention_weights(q: Tensor, k: Tensor, visibility: Visibility) -> Tensor:
    """Return the attention weights (B, H, T, K) that `attend` applies."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visibility.bias is not None:
        scores = scores + visibility.bias
    mask = visibility.whole_mask(q.shape[-2], k.shape[-2], q.device)
    if mask is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1).masked_fill(~mask, 0.0)


@dataclass
class Capture:
    """The attention weights of the selected layers and heads (None: all), filled by a forward pass."""

    layers: frozenset[int] | None = None
    heads: tuple[int, ...] | None = None
    weights: dict[int, list[Tensor]] = field(default_factory=dict)  # by layer: one (B, selected heads, T, K) per pass

    def take(self, layer: int, q: Tensor, k: Tensor, visibility: Visibility) -> None:
        if self.layers is not None and layer not in self.layers:
            return
        weights = attention_weights(q, k, visibility).detach()
        self.weights.setdefault(layer, []).append(weights if self.heads is None else weights[:, list(self.heads)])


class PassState:
    """The state of one forward pass that all layers share: tokens, positions, documents, cache, capture, masks."""

    def __init__(
        self,
        ids: Tensor,
        causal: bool,
        pos: Tensor | None,
        doc: Tensor | None,
        cache: Cache | None,
        capture: Capture | None,
        positions: Positions = NO_POSITIONS,
    ) -> None:
        assert doc is None or cache is None, "a cached row is one document: mark padding by position -1"
        rows, tokens = ids.shape
        # Without explicit positions or documents there is no padding and tokens are in order: no mask tensor is needed.
        plain = pos is None and doc is None
        if cache is not None:
            pos, plain = cache.expect(tokens, pos)
        elif pos is None:
            pos = torch.arange(tokens, device=ids.device).expand(rows, -1)
        self.plain = plain
        self.ids = ids  # (B, T)
        self.pos = pos  # (B, T)
        self.doc = doc
        self.before = 0 if cache is None else cache.length
        self.causal = causal
        self.cache = cache
        self.capture = capture
        self.positions = positions
        self.turn: Turn | None = None  # rotation of queries and keys
        self.visibilities: dict[int | None, Visibility] = {}

    def visibility(self, window: int | None, k_pos: Tensor) -> Visibility:
        """Return the visibility for a window; computed once per pass, because all layers with this window share it."""
        if window not in self.visibilities:
            self.visibilities[window] = self.make_visibility(window, k_pos)
            self.visibilities[window].bias = self.positions.bias(self.pos, k_pos)
        return self.visibilities[window]

    def make_visibility(self, window: int | None, k_pos: Tensor) -> Visibility:
        tokens = self.pos.shape[1]
        if self.plain:
            unlimited = window is None or window >= self.before + tokens
            if self.causal and tokens == 1:
                return Visibility()  # the cache of a windowed layer holds no keys outside the window
            lower = unlimited and self.causal and not self.before
            if unlimited and not self.causal:
                return Visibility()
            pos, k_pos = self.pos[:1], k_pos[:1]
            q_doc, k_doc = torch.ones_like(pos), torch.ones_like(k_pos)
        else:
            if self.cache is not None and tokens == 1 and window is not None and self.cache.filled(window):
                return Visibility()  # every row holds exactly one full window
            lower, pos = False, self.pos
            q_doc = (pos >= 0).long() if self.doc is None else self.doc
            k_doc = (k_pos >= 0).long() if self.doc is None else self.doc
        compiled = self.causal and self.cache is None and pos.device.type == "cpu" and not torch.compiler.is_compiling()
        starts = first_keys(pos, q_doc, window) if compiled else None
        if lower:
            return Visibility(lower=True, starts=starts)
        return Visibility(lambda: visible(pos, k_pos, q_doc, k_doc, self.causal, window)[:, None], starts=starts)


class SelfAttention(nn.Module):
    """Grouped-query attention with one projection for queries, keys and values."""

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        window: int | None,
        qk_norm: nn.Module,
        values: nn.Module,
        dropout: float,
        bias_input: bool,
        bias_output: bool,
        layer: int,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.window, self.dropout, self.layer = window, dropout, layer
        self.qkv = Linear(dim, (heads + 2 * kv_heads) * head_dim, bias=bias_input)
        self.qk_norm, self.values = qk_norm, values
        self.out = Linear(heads * head_dim, dim, bias=bias_output)

    @property
    def output(self) -> nn.Linear:
        """The projection that writes into the residual stream."""
        return self.out

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        rows, tokens, _ = x.shape
        qkv = self.qkv(x).view(rows, tokens, -1, self.head_dim)  # (B, T, H + 2G, D)
        # `split` instead of slices: its gradient is one `cat`; each slice's gradient is a zero-filled tensor to add.
        qk, v = torch.split(qkv, [self.heads + self.kv_heads, self.kv_heads], dim=2)
        # Norm and rotation of queries and keys in one call each; in this layout the output of `attend` needs no copy.
        qk = state.positions.rotate(self.qk_norm(qk), state.turn)
        q, k = torch.split(qk, [self.heads, self.kv_heads], dim=2)
        v = self.values(v, state)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H | G, T, D)
        k_pos = state.pos
        if state.cache is not None:
            k, v, k_pos = state.cache.layers[self.layer].update(k, v, state.pos)
        visibility = state.visibility(self.window, k_pos)
        if state.capture is not None:
            state.capture.take(self.layer, q, k, visibility)
        mixed = attend(q, k, v, visibility, self.dropout if self.training else 0.0, self.training)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(rows, tokens, -1))
        return out
