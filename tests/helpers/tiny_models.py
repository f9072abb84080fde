"""Small models with every choice, in float64, with random weights.

`VARIANTS` is a covering set: every pair of choices of `AXES` occurs in a variant.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from torch import Tensor

from lilliput.model.transformer import Transformer, build_model
from lilliput.settings.tree import ModelSettings, VectorSettings

AXES: dict[str, tuple[Any, ...]] = {
    "norm": ("layer", "layer-unbiased", "rms"),
    "norm_placement": ("pre", "post"),
    "positions": ("sinusoidal", "learned", "rotary", None),
    "window": (None, 4, (3, None)),
    "feed_forward": ("relu", "gelu", "relu2", "swiglu"),
    "kv_heads": (4, 2, 1),
    "head_dim": (None, 6, 2),  # heads * head_dim equal to, above and below dim
    "qk_norm": (False, True),
    "tied": (False, True),
    "final_norm": (False, True),
    "biases": ("none", "all", "output"),
    "soft_cap": (None, 3.0),
    "value_embeddings": (None, "ends", "alternate", "all"),
}
BIASES = ("bias_attention_input", "bias_attention_output", "bias_feed_forward", "bias_head")
# "output": the published models of the issues; "blocks": GPT-2
BIASES_ON = {"none": (), "all": BIASES, "output": BIASES[1:], "blocks": BIASES[:-1]}

Choice = tuple[str, Any]


def pairs(case: dict[str, Any]) -> set[tuple[Choice, Choice]]:
    return set(itertools.combinations(case.items(), 2))


def covering_set(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Add the random case with the most new pairs of choices until all pairs are covered."""
    draw = random.Random(0)
    left = {
        pair
        for (a, xs), (b, ys) in itertools.combinations(axes.items(), 2)
        for pair in itertools.product([(a, x) for x in xs], [(b, y) for y in ys])
    }
    cases: list[dict[str, Any]] = []
    while left:
        fixed = dict(min(left, key=repr))
        tries = [{name: fixed.get(name, draw.choice(values)) for name, values in axes.items()} for _ in range(50)]
        best = max(tries, key=lambda case: len(pairs(case) & left))
        left -= pairs(best)
        cases.append(best)
    return cases


VARIANTS = covering_set(AXES)


def name_variant(case: dict[str, Any]) -> str:
    return "-".join(str(value).lower().replace(" ", "") for value in case.values())


def tiny_settings(**changes: Any) -> ModelSettings:
    """Return a language model of 3 layers and 17 tokens; xavier, because zero-residual blocks are the identity."""
    biases = dict.fromkeys(BIASES_ON[changes.pop("biases", "none")], True)
    shape = {"vocab_size": 17, "dim": 16, "layers": 3, "heads": 4, "kv_heads": 4, "hidden": 24, "context": 24}
    plain = {"qk_norm": False, "initialisation": "xavier"}
    return ModelSettings(**(shape | plain | biases | changes))


def tiny_model(seed: int = 0, vectors: VectorSettings | None = None, **changes: Any) -> Transformer:
    """Return a float64 model with random changes of all weights, so that no bias is 0 and no norm is 1."""
    model = build_model(tiny_settings(**changes), vectors, seed=seed).double().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return model


def draw_ids(*shape: int, seed: int = 0, vocab_size: int = 17) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


def gradients(model: Transformer) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
