"""A second implementation of the language model: plain loops over heads, full attention weights, no cache, float64.

It reads only the settings and the weights of a model, and calls none of its modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from lilliput.model.transformer import Transformer


@dataclass
class PlainPass:
    logits: Tensor  # (T, V)
    streams: list[Tensor] = field(default_factory=list)  # (T, C): after the embedding and after each block
    outputs: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # by layer and head: (T, D), before ablation


class PlainTransformer:
    def __init__(self, model: Transformer) -> None:
        self.settings = model.settings
        self.weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self.layers, self.heads = model.settings.layers, model.settings.heads
        self.width = model.settings.head_dim or model.settings.dim // model.settings.heads

    def run(self, ids: list[int], replaced: Mapping[tuple[int, int], Tensor] | None = None) -> PlainPass:
        """`replaced`: by layer and head, the vector (D,) that replaces the head's output."""
        settings, found = self.settings, PlainPass(torch.zeros(0))
        x = self.weights["embedding.table.weight"][ids]
        if settings.positions == "sinusoidal":
            x = x * math.sqrt(settings.dim) + self.sinusoids(len(ids))
        elif settings.positions == "learned":
            x = x + self.weights["positions.table.weight"][: len(ids)]
        found.streams.append(x)
        for layer in range(self.layers):
            for half, function in (("attention", self.attention), ("feed_forward", self.feed_forward)):
                norm = f"blocks.{layer}.{half}.norm"
                if settings.norm_placement == "pre":
                    x = x + function(layer, self.norm(norm, x), ids, found, replaced or {})
                else:
                    x = self.norm(norm, x + function(layer, x, ids, found, replaced or {}))
            found.streams.append(x)
        found.logits = self.output(x)
        return found

    def output(self, x: Tensor) -> Tensor:
        x = self.norm("norm", x) if self.settings.final_norm else x
        logits = self.linear("head.project", x)
        cap = self.settings.soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = x @ self.weights[f"{name}.weight"].T
        return out + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else out

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        if self.settings.norm == "rms":
            return root_mean_square(x, weight)
        centred = x - x.mean(dim=-1, keepdim=True)
        if self.settings.norm == "layer":
            scale = (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        else:
            scale = x.std(dim=-1, keepdim=True) + 1e-6
        return centred / scale * weight + self.weights[f"{name}.bias"]

    def attention(
        self, layer: int, x: Tensor, ids: list[int], found: PlainPass, replaced: Mapping[tuple[int, int], Tensor]
    ) -> Tensor:
        name, groups = f"blocks.{layer}.attention.inner", self.settings.kv_heads
        assert groups is not None
        pieces = self.linear(f"{name}.qkv", x).split(self.width, dim=-1)  # queries, keys, values by head
        queries, keys, values = (pieces[: self.heads], pieces[self.heads : -groups], pieces[-groups:])
        parts = []
        for head in range(self.heads):
            group = head * groups // self.heads
            q, k, v = queries[head], keys[group], values[group]
            if self.settings.qk_norm:
                q = root_mean_square(q, self.weights[f"{name}.qk_norm.q"])
                k = root_mean_square(k, self.weights[f"{name}.qk_norm.k"])
            if self.settings.positions == "rotary":
                q, k = self.rotate(q), self.rotate(k)
            if f"{name}.values.table.weight" in self.weights:
                own, other = self.weights[f"{name}.values.shares"]
                table = self.weights[f"{name}.values.table.weight"][ids].split(self.width, dim=-1)[group]
                v = own * v + other * table
            scores = q @ k.T / math.sqrt(self.width)
            for query in range(len(ids)):
                for key in range(len(ids)):
                    window = self.window(layer)
                    if key > query or (window is not None and query - key >= window):
                        scores[query, key] = -torch.inf
            out = scores.softmax(dim=-1) @ v
            found.outputs[layer, head] = out
            vector = replaced.get((layer, head))
            parts.append(out if vector is None else vector.expand(len(ids), -1))
        return self.linear(f"{name}.out", torch.cat(parts, dim=-1))

    def window(self, layer: int) -> int | None:
        window = self.settings.window
        return window[layer % len(window)] if isinstance(window, tuple) else window

    def feed_forward(self, layer: int, x: Tensor, *_: object) -> Tensor:
        name = f"blocks.{layer}.feed_forward.inner"
        up = self.linear(f"{name}.up", x)
        kind = self.settings.feed_forward
        if kind == "swiglu":
            gate, value = up.chunk(2, dim=-1)
            inside = gate * torch.sigmoid(gate) * value
        else:
            inside = {"relu": F.relu, "gelu": F.gelu, "relu2": lambda y: F.relu(y) ** 2}[kind](up)
        return self.linear(f"{name}.down", inside)

    def sinusoids(self, tokens: int) -> Tensor:
        table = torch.zeros(tokens, self.settings.dim, dtype=torch.float64)
        for position in range(tokens):
            for at in range(0, self.settings.dim, 2):
                angle = position / 10_000 ** (at / self.settings.dim)
                table[position, at], table[position, at + 1] = math.sin(angle), math.cos(angle)
        return table

    def rotate(self, x: Tensor) -> Tensor:
        half, turned = self.width // 2, torch.zeros_like(x)
        for position in range(len(x)):
            for at in range(half):
                angle = position / self.settings.rotary_base ** (2 * at / self.width)
                a, b = x[position, at], x[position, at + half]
                turned[position, at] = a * math.cos(angle) - b * math.sin(angle)
                turned[position, at + half] = b * math.cos(angle) + a * math.sin(angle)
        return turned


def root_mean_square(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight
