"""Tests of `train --portable`: settings that cannot be exported are refused before training."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.small_runs import FLAGS, lilliput, write_text
from helpers.user_errors import refused
from lilliput.exporting.portability import check_portable
from lilliput.settings.loading import load_config
from lilliput.settings.recipes import shipped_recipes

# Recipe -> the setting that prevents each export; None: it can be exported.
SHIPPED = {
    "demo": (None, None),
    "small-stories": (None, None),
    "stories": ("model.value_embeddings", "model.window"),
    "word-vectors": (None, "tokenizer.kind"),
    "speech-lm": ("model.bias_head", "model.feed_forward"),
    "speech-classifier": ("model.task", "model.task"),
    "published-gpt2": ("model.final_norm", "model.norm_placement"),
}


@pytest.mark.parametrize("recipe", SHIPPED)
def test_shipped_recipes(recipe: str) -> None:
    assert recipe in shipped_recipes()
    config = load_config(recipe)
    for target, setting in zip(("huggingface", "gguf"), SHIPPED[recipe], strict=True):
        if setting is None:
            check_portable(config, target)
        else:
            error = refused(lambda target=target: check_portable(config, target))
            assert error.setting is not None and setting in f"{error.what} {error.fix} {error.setting}"


def test_train_refuses_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = write_text(tmp_path)
    result = lilliput("train", str(text), *FLAGS, "--portable", "huggingface", "--model.soft_cap", "15")
    assert result.code == 2 and result.errors[0].setting == "model.soft_cap"
    result = lilliput("train", str(text), *FLAGS, "--portable", "gguf", "--tokenizer.kind", "word")
    assert result.code == 2 and result.errors[0].setting == "tokenizer.kind"
    assert [path.name for path in tmp_path.iterdir()] == [text.name]
    both = ("--portable", "gguf", "--portable", "huggingface")
    assert lilliput("train", str(text), *FLAGS, *both, "--dry-run").code == 0


def test_the_command_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "exporting.md").read_text("utf-8")
    (words,) = re.findall(r"^\$ lilliput (train .*)$", page, re.MULTILINE)
    assert lilliput(*words.split()).code == 0
