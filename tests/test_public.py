"""Tests of the public names, which are imported on first use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lilliput
from helpers.small_runs import SETTINGS, small_config, trained
from helpers.user_errors import refused


def python(code: str, *options: str) -> str:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True).stdout


def test_every_public_name_is_there() -> None:
    functions = ["evaluate", "load", "load_config", "predict", "prepare", "register", "runs", "study", "train"]
    assert lilliput.__all__ == ["Config", "GenerateSettings", "Run", "UserError", *functions]
    for name in lilliput.__all__:
        assert getattr(lilliput, name).__name__ == name
        assert name in dir(lilliput)
    assert lilliput.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="has no attribute 'tarin'"):
        lilliput.tarin  # noqa: B018


def test_importing_is_fast() -> None:
    heavy = ["torch", "numpy", "pydantic", "rich", "tokenizers", "safetensors", "argparse"]
    assert python(f"import sys, lilliput; print([m for m in {heavy!r} if m in sys.modules])").strip() == "[]"


def test_train_and_generate_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytext.txt").write_text("A bee sat on a pea. " * 60)
    run = lilliput.train(lilliput.load_config("mytext.txt", SETTINGS))
    assert run.folder == Path("runs/mytext")
    text = lilliput.load("runs/mytext").generate("A bee", tokens=8, seed=1)
    assert text == lilliput.load("mytext").generate("A bee", tokens=8, seed=1), "a run's name is as good as its path"
    assert lilliput.load(run.checkpoint.folder).generate("A bee", tokens=8, seed=1) == text
    greedy = lilliput.GenerateSettings(tokens=8, temperature=0.0)
    assert run.generate("A bee", settings=greedy) == run.generate("A bee", tokens=8, temperature=0.0)
    assert refused(lambda: lilliput.load("yours")).code == "run.missing"


def test_prepare_from_python(tmp_path: Path) -> None:
    prepared = lilliput.prepare(small_config(tmp_path))
    assert prepared.documents == {"train": 11, "validation": 1}


def test_types_travel_with_the_package() -> None:
    assert (Path(lilliput.__file__).parent / "py.typed").is_file()


def test_settings_from_python() -> None:
    config = lilliput.Config(name="mine")
    assert config.model.dim == 256
    error = refused(lambda: lilliput.load_config("demo", {"model.dim": "0"}))
    assert (error.code, error.setting) == ("setting.value", "model.dim")


def test_another_process_generates_the_same_text() -> None:
    """The text of a seed does not depend on the process."""
    folder = trained() / "runs" / "mine"
    code = f"import lilliput; print(repr(lilliput.load({str(folder)!r}, device='cpu').generate('Once', seed=4)))"
    assert python(code).strip() == repr(lilliput.load(folder, device="cpu").generate("Once", seed=4))
