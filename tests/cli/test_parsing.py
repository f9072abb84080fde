"""Errors of flags: missing and wrong values, unknown flags, words after switches."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_runs import lilliput, write_text
from lilliput.errors import UserError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)


def error_of(*words: str) -> UserError:
    result = lilliput(*words)
    assert result.code == 2
    (error,) = result.errors
    return error


@pytest.mark.parametrize(
    ("words", "code", "what", "fix"),
    [
        ("prepare storybook --conllu", "flag.missing", "a file name", "use --conllu stories.conllu"),
        ("generate demo --tokens", "flag.missing", "--tokens requires a number", "use --tokens 5"),
        ("generate demo --stop", "flag.missing", "--stop requires a text", 'use --stop "The end"'),
        ("reproduce speeches --minutes x", "flag.value", "must be a number (got 'x')", "--minutes"),
        ("evaluate demo --device gpuu", "flag.value", "auto, cpu, cuda or mps (got 'gpuu')", "--device"),
        ("generate demo --json=yes", "flag.value", "--json", "use --json"),
        ("generate demo --sample-beams=1", "flag.value", "no value", "use --sample-beams or --no-sample-beams"),
        ("attention demo a --layer 7", "flag.unknown", "--layer", "use --layers"),
        ("generate demo --prompt-file a.txt", "flag.unknown", "--prompt-file", "use --prompt or --prompts"),
        ("chat demo --samples 4", "flag.unknown", "--samples", "run lilliput chat --help to list the flags"),
        ("info demo --step 77", "flag.unknown", "--step", "checkpoints/step-"),
        ("train mytext.txt --dim 8", "flag.unknown", "--dim", "use --model.dim"),
        ("train mytext.txt --log.wandb maybe", "setting.value", "true or false (got 'maybe')", "--log.wandb true"),
        ("info demo mine --json --schema --folder", "flag.missing", "--folder requires a", "--folder"),
    ],
)
def test_errors_of_flags(words: str, code: str, what: str, fix: str) -> None:
    error = error_of(*words.split())
    assert error.code == code
    assert what in error.what and fix in error.fix


def test_a_mistyped_command_keeps_its_other_words() -> None:
    assert error_of("trian", "my text.txt").fix == "run lilliput train 'my text.txt'"


def test_resume_with_another_name(tmp_path: Path) -> None:
    for name in ("config.json", "checkpoints"):
        target = tmp_path / "runs" / "mytext" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if name == "checkpoints" else target.write_text("{}")
    error = error_of("train", "mytext.txt", "--resume", "--name", "other")
    assert error.code == "run.missing" and "remove --name" in error.fix and "runs/mytext" in error.fix
    assert "--name" not in error_of("train", "mytext.txt", "--resume", "--log.folder", "elsewhere").fix


def test_an_unknown_model_lists_the_shipped_recipes() -> None:
    assert "demo" in error_of("inspect", "nothing").fix
