"""Tests of `lilliput predict`: output of a text and of a file, JSON, notes and errors."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import lilliput
from lilliput.cli.predict import EXAMPLES


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(judged_runs())


@pytest.mark.parametrize("task", ["classifier", "both"])
def test_one_text(task: str) -> None:
    code, out, err = lilliput("predict", task, "A bee hums.", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    (one,) = found["predictions"]
    assert one["text"] == "A bee hums." and one["label"] == max(one["probabilities"], key=one["probabilities"].get)
    code, out, err = lilliput("predict", task, "A bee hums.")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows[0] == [one["label"], f"{one['probability']:.4f}"]
    assert {name: float(value) for name, value in rows} == pytest.approx(one["probabilities"], abs=1e-4)


def test_a_file(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text('A bee, "quoted".\n\n' + "long " * 50 + "\n")
    code, out, err = lilliput("predict", "classifier", "--file", str(texts))
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["number"] for row in rows] == ["1", "2"]
    assert [row["truncated"] for row in rows] == ["0", "1"]
    assert rows[0]["text"] == 'A bee, "quoted".' and "actual" not in rows[0]
    assert "1 of 2 texts are longer than the context" in err
    found = json.loads(lilliput("predict", "classifier", "--file", str(texts), "--json").out)
    for row, one in zip(rows, found["predictions"], strict=True):
        assert row["label"] == one["label"]
        assert {name: float(row[f"probability_{name}"]) for name in found["labels"]} == one["probabilities"]
    target = tmp_path / "labels.csv"
    assert lilliput("predict", "classifier", "--file", str(texts), "--out", str(target)).out == ""
    assert target.read_text() == out


def test_labels_in_a_file_are_not_read_as_text() -> None:
    code, out, err = lilliput("predict", "classifier", "--file", "heard.tsv")
    assert code == 0 and "column actual" in err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 11 and all(row["actual"] for row in rows)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("classifier",), "flag.missing"),
        (("classifier", "text", "--file", "heard.tsv"), "flag.conflict"),
        (("classifier", "text", "--json", "--out", "x.csv"), "flag.conflict"),
        (("classifier", " "), "data.empty"),
        (("classifier", "text", "--out", "no/where.csv"), "file.not-written"),
        (("classifier", "--file", "gone.txt"), "file.missing"),
        (("words", "text"), "model.task"),
        (("nothing", "text"), "run.missing"),
    ],
)
def test_errors(words: tuple[str, ...], code: str) -> None:
    result = lilliput("predict", *words)
    assert result.code == 2 and result.error is not None
    assert result.error.code == code


def test_every_example_runs(tmp_path: Path) -> None:
    for line in EXAMPLES.strip().splitlines():
        words = shlex.split(re.split(r"\s{2,}", line.strip())[0])[1:]
        words = [
            word.replace("speech-classifier", "classifier").replace("labels.csv", str(tmp_path / "l.csv"))
            for word in words
        ]
        assert lilliput(*words).code == 0, line
