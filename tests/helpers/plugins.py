"""A plugin with one choice of each kind, and a scope that ends its registration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lilliput.settings import plugins
from lilliput.settings.choice_tables import TABLES

PLUGIN = '''
"""One choice of each kind, each by one class and one call."""

import math

import numpy as np
import torch
from tokenizers import Tokenizer as Library, models, pre_tokenizers, decoders
from torch import nn

import lilliput
from lilliput.data.tokenizers import Tokenizer
from lilliput.model.layers import FeedForward
from lilliput.model.positions import Positions


class ScaleNorm(nn.Module):
    """One learned length for the whole vector (Nguyen and Salazar 2019)."""

    def __init__(self, dim):
        super().__init__()
        self.length = nn.Parameter(torch.full((1,), math.sqrt(dim)))

    def forward(self, x):
        return self.length * nn.functional.normalize(x, dim=-1)


class Alibi(Positions):
    """A penalty on the score that grows with the distance, in each head with a slope of its own (Press et al. 2022)."""

    def __init__(self, settings):
        super().__init__()
        slopes = 2.0 ** (-8.0 * torch.arange(1, settings.heads + 1, dtype=torch.float64) / settings.heads)
        self.register_buffer("slopes", slopes, persistent=False)

    def bias(self, q_pos, k_pos):
        distance = (q_pos[:, None, :, None] - k_pos[:, None, None, :]).abs()
        return -self.slopes[:, None, None] * distance


class SineFeedForward(FeedForward):
    def activate(self, x):
        return torch.sin(x)


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum (Chen et al. 2023)."""

    def __init__(self, groups, lr, betas=(0.9, 0.99)):
        super().__init__(groups, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                first, second = group["betas"]
                update = torch.lerp(parameter.grad, momentum, first).sign()
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(update, alpha=0.1 * group["lr"])
                momentum.lerp_(parameter.grad, 1.0 - second)


class Halves(Tokenizer):
    """Characters in lower case order, found in the training split; everything else is unknown."""

    def __init__(self, settings, documents):
        found = sorted({letter for text in documents for letter in text})
        vocabulary = {"<unk>": 0, "<|endoftext|>": 1} | {letter: 2 + at for at, letter in enumerate(found)}
        inner = Library(models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        inner.decoder = decoders.Fuse()
        super().__init__(inner)


class NoLetterE:
    """A processor that rules out every token that contains an e."""

    def __init__(self, tokenizer):
        pieces = (tokenizer.token(number) for number in range(tokenizer.vocab_size))
        self.banned = [number for number, piece in enumerate(pieces) if "e" in piece]

    def __call__(self, texts, logits):
        logits = logits.clone()
        logits[:, self.banned] = -torch.inf
        return logits


lilliput.register("model.norm", "scale", ScaleNorm)
lilliput.register("model.positions", "alibi", Alibi)
lilliput.register("model.feed_forward", "sine", SineFeedForward)
lilliput.register("optimizer.kind", "lion", Lion, moments=lambda config, parameters: parameters.trainable)
lilliput.register("tokenizer.kind", "halves", Halves)
lilliput.register("generate.processors", "no-e", NoLetterE)
'''


def write_plugin(folder: Path) -> Path:
    path = folder / "plugin.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


@contextmanager
def plugins_end_here() -> Iterator[None]:
    """Remove what plugins register inside."""
    for table in TABLES.values():
        len(table)  # loads the built-in entries before they are copied
    before, loaded = {name: dict(table._entries) for name, table in TABLES.items()}, list(plugins.LOADED)
    try:
        yield
    finally:
        for name, table in TABLES.items():
            table._entries = before[name]
        plugins.LOADED[:] = loaded
