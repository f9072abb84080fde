"""The compiled engine supports an allow-list of exact types: a model with any other part uses the torch engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.tiny_models import tiny_model
from lilliput.decoding.engines.compiled_weights import SUPPORTED, refusal
from lilliput.decoding.engines.selection import choose_engine
from lilliput.errors import UserError
from lilliput.model.part_support import parts_of
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import GenerateSettings


def whole_model() -> Transformer:
    return tiny_model(value_embeddings="ends", soft_cap=5.0).float().eval()


def subclassed(part: nn.Module) -> nn.Module:
    """Change the part to a subclass of its type, which may compute anything."""
    part.__class__ = type(f"Unknown{type(part).__name__}", (type(part),), {})
    return part


@pytest.mark.parametrize("role", SUPPORTED)
def test_an_unknown_part_of_any_role_requires_torch(role: str) -> None:
    model = whole_model()
    assert choose_engine(model, GenerateSettings(engine="auto"))[0].name == "numba"
    part = [part for name, part in parts_of(model) if name == role][-1]
    subclassed(part)
    assert refusal(model) is not None
    assert choose_engine(model, GenerateSettings(engine="auto"))[0].name == "torch"
    with pytest.raises(UserError):
        choose_engine(model, GenerateSettings(engine="numba"))


def test_every_part_of_a_model_has_a_role() -> None:
    """A module without a role is inside a part of a listed type."""
    model = whole_model()
    listed = {id(part) for _, part in parts_of(model)}
    inside = {id(child) for _, part in parts_of(model) for child in part.modules()}
    outside = [name for name, module in model.named_modules() if id(module) not in listed | inside]
    assert outside == ["", "dropout", "blocks"]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.blocks[1].feed_forward, "norm", nn.LayerNorm(model.settings.dim)),
        lambda model: setattr(model, "norm", nn.LayerNorm(model.settings.dim)),
    ],
)
def test_parts_that_differ_between_blocks_require_torch(change: Callable[[Any], None]) -> None:
    model = whole_model()
    change(model)
    assert choose_engine(model, GenerateSettings(engine="auto"))[0].name == "torch"


def test_an_unknown_part_would_have_changed_the_text() -> None:
    """Without the check, a subclass that computes something else would be packed as its base class."""
    model = whole_model()

    class Shifted(type(model.positions)):  # type: ignore[misc]
        def embed(self, x: Tensor, pos: Tensor) -> Tensor:
            return x + 1.0

    engine, _ = choose_engine(model, GenerateSettings(engine="numba"))
    before, _ = engine.prefill([[3, 1, 4]])
    model.positions.__class__ = Shifted
    with torch.inference_mode():
        after = model(torch.tensor([[3, 1, 4]]))[:, -1]
    assert (before - after).abs().max() > 1e-3
    assert refusal(model) is not None
