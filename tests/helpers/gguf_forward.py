"""The forward pass of a GGUF file in NumPy, from metadata and tensors alone, as the graphs of llama.cpp define it.

Written from src/models/{apertus,qwen3,llama,arcee,gpt2,gptneox}.cpp and ggml's operators, independent of the exporter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PAIRS = ("llama", "arcee")  # LLAMA_ROPE_TYPE_NORM: neighbouring pairs; the others rotate halves


def softplus(x: float) -> float:
    return x if x > 20.0 else math.log1p(math.exp(x))


class GgufModel:
    def __init__(self, metadata: dict[str, Any], tensors: dict[str, Array]) -> None:
        self.metadata, self.tensors = metadata, {name: one.astype(np.float64) for name, one in tensors.items()}
        self.arch: str = metadata["general.architecture"]

    def get(self, key: str) -> Any:
        return self.metadata[f"{self.arch}.{key}"]

    def affine(self, name: str, x: Array) -> Array:
        y = x @ self.tensors[f"{name}.weight"].T
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def norm(self, name: str, x: Array) -> Array:
        weight = self.tensors[f"{name}.weight"]
        if self.arch in ("gpt2", "gptneox"):
            centred = x - x.mean(-1, keepdims=True)
            scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.get("attention.layer_norm_epsilon"))
            return scaled * weight + self.tensors[f"{name}.bias"]
        epsilon = self.get("attention.layer_norm_rms_epsilon")
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight

    def rotate(self, x: Array) -> Array:
        """Rotate (T, heads, D)."""
        if self.arch == "gpt2":
            return x
        dim = self.get("rope.dimension_count")
        assert dim == x.shape[-1]
        angles = np.arange(len(x))[:, None] * self.get("rope.freq_base") ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        out = np.empty_like(x)
        first = np.s_[..., ::2] if self.arch in PAIRS else np.s_[..., : dim // 2]
        second = np.s_[..., 1::2] if self.arch in PAIRS else np.s_[..., dim // 2 :]
        out[first], out[second] = x[first] * cos - x[second] * sin, x[first] * sin + x[second] * cos
        return out

    def attention(self, at: str, x: Array, layer: int) -> Array:
        heads, kv_heads = self.get("attention.head_count"), self.get("attention.head_count_kv")
        width = self.get("attention.key_length")
        if f"{at}.attn_qkv.weight" in self.tensors:
            parts = np.split(self.affine(f"{at}.attn_qkv", x), [heads * width, (heads + kv_heads) * width], axis=-1)
        else:
            parts = [self.affine(f"{at}.attn_{name}", x) for name in "qkv"]
        q, k, v = (part.reshape(len(x), -1, width) for part in parts)
        if f"{at}.attn_q_norm.weight" in self.tensors:
            q, k = self.norm(f"{at}.attn_q_norm", q), self.norm(f"{at}.attn_k_norm", k)
        q, k = self.rotate(q), self.rotate(k)
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(width)
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        return self.affine(f"{at}.attn_output", mixed.reshape(len(x), -1))

    def feed_forward(self, at: str, x: Array, layer: int) -> Array:
        up = self.affine(f"{at}.ffn_up", x)
        if self.arch == "apertus":
            alpha_n, alpha_p, beta, eps = (
                self.metadata[f"xielu.{k}"][layer] for k in ("alpha_n", "alpha_p", "beta", "eps")
            )
            # ggml_xielu stores beta + softplus(alpha_n) and softplus(alpha_p) as float32.
            negative, positive = float(np.float32(beta + softplus(alpha_n))), float(np.float32(softplus(alpha_p)))
            below = (np.expm1(np.minimum(up, eps)) - up) * negative + beta * up
            inner = np.where(up > 0, positive * up * up + beta * up, below)
        elif self.arch == "arcee":
            inner = np.maximum(up, 0.0) ** 2
        elif self.arch in ("gpt2", "gptneox"):
            inner = 0.5 * up * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * up * (1.0 + 0.044715 * up * up)))
        else:
            gate = self.affine(f"{at}.ffn_gate", x)
            inner = gate / (1.0 + np.exp(-gate)) * up
        return self.affine(f"{at}.ffn_down", inner)

    def logits(self, ids: list[int]) -> Array:
        """Return the logits (T, V)."""
        x = self.tensors["token_embd.weight"][ids]
        if self.arch == "gpt2":
            x = x + self.tensors["position_embd.weight"][: len(ids)]
        if self.arch == "gptneox":
            assert self.get("use_parallel_residual") is False
        for layer in range(self.get("block_count")):
            at = f"blk.{layer}"
            x = x + self.attention(at, self.norm(f"{at}.attn_norm", x), layer)
            x = x + self.feed_forward(at, self.norm(f"{at}.ffn_norm", x), layer)
        x = self.norm("output_norm", x)
        if self.arch in ("apertus", "gptneox"):
            assert "output.weight" in self.tensors, "the loader requires it"
        return x @ self.tensors.get("output.weight", self.tensors["token_embd.weight"]).T
