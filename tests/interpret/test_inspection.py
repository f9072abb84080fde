"""`inspect`: what it shows equals the model's own tensors, and each check fails for a model that breaks what it checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.small_runs import copy_of_trained, lilliput
from helpers.tiny_models import VARIANTS, name_variant, tiny_model
from lilliput.interpret.inspection import Check, inspect_model, mask_text
from lilliput.model.positions import Sinusoidal, angle_table
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import ModelSettings, VectorSettings


def checks(model: Transformer) -> dict[str, Check]:
    return {check.name: check for check in inspect_model(model).checks}


@pytest.mark.parametrize("variant", VARIANTS, ids=name_variant)
def test_every_variant_passes_all_checks(variant: dict[str, Any]) -> None:
    found = checks(tiny_model(**variant))
    assert [check for check in found.values() if not check.passed] == []
    assert "parameters: total" in found and "attention rows sum to one" in found


def test_what_is_shown_are_the_tensors_of_the_model() -> None:
    settings = ModelSettings(
        dim=16, heads=2, kv_heads=2, layers=2, hidden=32, context=10, vocab_size=50, positions="sinusoidal"
    )
    model = Transformer(settings, VectorSettings())
    found = inspect_model(model)
    assert torch.equal(found.embedding, model.embedding.table.weight)
    angles = angle_table(10, 16, 10_000.0)
    assert found.positions is not None and torch.equal(found.positions[:, ::2], angles.sin())
    assert isinstance(model.positions, Sinusoidal)
    shapes = {stage.name: stage.shape for stage in found.stages}
    assert shapes["token ids"] == (2, 10)
    assert shapes["block 0: attention weights"] == (2, 2, 10, 10)
    assert shapes["logits"] == (2, 10, 50)
    assert sum(part.parameters for part in found.parts if ": " not in part.name) == sum(
        weight.numel() for weight in model.parameters()
    )


def test_a_mask_as_text() -> None:
    settings = ModelSettings(dim=8, heads=1, kv_heads=1, layers=2, hidden=8, context=4, vocab_size=9, window=(2, None))
    found = inspect_model(Transformer(settings, VectorSettings()))
    assert list(found.masks) == [2, None]
    assert mask_text(found.masks[2]).splitlines() == ["x . . .", "x x . .", ". x x .", ". . x x"]
    assert mask_text(found.masks[None]).splitlines() == ["x . . .", "x x . .", "x x x .", "x x x x"]


class Leaking(nn.Module):
    """Adds the mean over all positions: every token sees later ones, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(dim=1, keepdim=True)


def test_a_model_that_sees_later_tokens_fails() -> None:
    model = tiny_model()
    model.norm = Leaking()
    found = checks(model)
    failed = {name for name, check in found.items() if not check.passed}
    assert {"causality", "cache equals no cache", "padding is not seen"} <= failed


def test_weights_that_do_not_sum_to_one_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from lilliput.model import attention

    original = attention.attention_weights
    monkeypatch.setattr(attention, "attention_weights", lambda *arguments: 1.1 * original(*arguments))
    assert not checks(tiny_model())["attention rows sum to one"].passed


def test_a_part_that_is_not_counted_fails() -> None:
    model = tiny_model()
    model.norm = nn.Sequential(model.norm, nn.Linear(model.settings.dim, model.settings.dim).double())
    found = checks(model)
    assert not found["parameters: norm"].passed and not found["parameters: total"].passed
    assert found["parameters: blocks"].passed


# The command ---------------------------------------------------------------------------------------------------------


def test_a_run_and_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    from lilliput.decoding.writer import load

    code, out, err = lilliput("inspect", "mine", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["embedding"][0] == load("mine").model.embedding.table.weight[0, :8].tolist()
    assert all(check["passed"] for check in found["checks"])
    code, out, _ = lilliput("inspect", "speech-lm", "--model.window", "4", "--html", "page.html")
    assert code == 0 and "863,243" in out and "x x x x" in out
    assert "863,243" in Path("page.html").read_text()
    assert sorted(path.name for path in Path("page-figures").iterdir()) == ["mask-0.png", "positions.png"]


def test_a_failed_check_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from lilliput.interpret import inspection

    monkeypatch.setattr(inspection, "ROUNDING", -1.0)
    code, out, _ = lilliput("inspect", "speech-lm")
    assert code == 1 and "failed" in out
