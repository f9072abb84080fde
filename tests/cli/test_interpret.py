"""Tests of `lilliput interpret`."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import lilliput as library
from helpers.evaluated_runs import judged_runs
from helpers.small_runs import copy_of_trained, lilliput
from lilliput.cli.interpret import EXAMPLES
from lilliput.evaluation.evaluate import open_evaluation
from lilliput.interpret import ablate, ablate_documents, ablate_each, lens

TEXT = "A bee saw the sea."


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    return Path()


def in_json(*words: str) -> dict[str, Any]:
    result = lilliput("interpret", "mine", *words, "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_the_lens_of_a_text(home: Path) -> None:
    found = in_json(TEXT, "--top", "2")
    assert found["lens"] == lens(library.load("mine").writer, TEXT, 2).as_dict()
    assert found["run"] == "mine" and found["ablated_text"] is found["costs"] is None
    result = lilliput("interpret", "mine", TEXT)
    assert result.code == 0, result.err
    for stage in found["lens"]["stages"]:
        assert f"{stage['loss']:.4f}" in result.out
    assert len(result.out.splitlines()) >= 3 * len(found["lens"]["tokens"])


def test_ablation_in_a_text(home: Path) -> None:
    found = in_json(TEXT, "--ablate", "1.0", "--ablate", "0.1", "--ablation", "mean", "--generate", "5", "--seed", "2")
    expected = ablate(library.load("mine").writer, TEXT, [(0, 1), (1, 0)], "mean", 5, 2).as_dict()
    assert found["ablated_text"] == expected and found["lens"] is None
    result = lilliput("interpret", "mine", TEXT, "--ablate", "1.0", "--temperature", "0", "--lens")
    assert result.code == 0 and f"{expected['loss']:.4f}" in result.out
    every = in_json(TEXT, "--ablate", "all")["costs"]
    assert every == ablate_each(library.load("mine").writer, TEXT).as_dict()


def test_ablation_over_documents(home: Path) -> None:
    evaluation = open_evaluation("mine", "train")
    found = in_json("--on", "train", "--documents", "3", "--seed", "1")
    assert found["costs"] == ablate_documents(evaluation.writer, evaluation.file, documents=3, seed=1).as_dict()
    assert found["on"] == "train" and len(found["costs"]["costs"]) == 4
    result = lilliput("interpret", "mine", TEXT, "--on", "train", "--documents", "3", "--seed", "1", "--ablate", "0.0")
    (cost,) = (one for one in found["costs"]["costs"] if one["heads"] == ["0.0"])
    assert result.code == 0 and f"{cost['difference']:+.4f}" in result.out
    assert f"{cost['interval'][0]:+.4f} to {cost['interval'][1]:+.4f}" in result.out


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ([], ["flag.missing"]),
        (["--lens", "--on", "train"], ["flag.conflict"]),
        (["a", "--ablate", "2.0"], ["interpret.head"]),
        (["a", "--ablate", "first"], ["flag.value"]),
        (["a", "--ablate", "all", "--ablate", "0.0"], ["flag.conflict"]),
        (["a", "--generate", "3", "--documents", "2", "--seed", "1"], ["flag.conflict"] * 3),
        (["a", "--ablate", "all", "--temperature", "1"], ["flag.conflict"]),
        (["a", "--ablate", "0.0", "--top", "2"], ["flag.conflict"]),
        (["a", "--ablation", "mean"], ["flag.conflict"]),
        (["--on", "trian", "--documents", "0"], ["flag.value", "evaluation.set"]),
        ([""], ["interpret.text"]),
    ],
)
def test_errors(home: Path, words: list[str], codes: list[str]) -> None:
    result = lilliput("interpret", "mine", *words)
    assert result.code == 2
    assert [error.code for error in result.errors] == codes


def test_other_models(home: Path) -> None:
    result = lilliput("interpret", str(judged_runs() / "runs" / "classifier"), "the moon")
    assert [(error.code, error.setting) for error in result.errors] == [("model.task", "model.task")]
    assert lilliput("interpret", str(judged_runs() / "runs" / "both"), "the moon", "--ablate", "0.0").code == 0
    assert lilliput("interpret", "nobody", TEXT).error is not None


def test_a_long_text_prints_a_note(home: Path) -> None:
    result = lilliput("interpret", "mine", "The old bear " * 5)
    assert result.code == 0 and "34 tokens are not read" in result.err


def test_every_example_runs(home: Path) -> None:
    for line in EXAMPLES.strip().splitlines():
        words = shlex.split(re.split(r"\s{2,}", line.strip())[0])[1:]
        result = lilliput(*("mine" if word == "demo" else word for word in words))
        assert result.code == 0, result.err
