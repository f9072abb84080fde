"""Tests of `lilliput attention`."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from helpers.evaluated_runs import judged_runs
from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import copy_of_trained, lilliput, small_config, train_small, trained
from lilliput.cli.attention import EXAMPLES

SCORES = ["entropy", "distance", "previous", "first", "punctuation", "same", "induction"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copy_of_trained(tmp_path))
    return Path()


def test_a_text_creates_a_folder_of_files(home: Path) -> None:
    code, out, err = lilliput("attention", "mine", "A bee saw the sea.", "--sort", "previous")
    assert code == 0, err
    folder = Path("attention/mine")
    assert sorted(path.name for path in folder.iterdir()) == [
        "attention.html",
        "attention.npz",
        "heads.csv",
        "layer-0.png",
        "layer-1.png",
    ]
    rows = list(csv.DictReader((folder / "heads.csv").read_text().splitlines()))
    previous = [float(row["previous"]) for row in rows[:4]]
    assert previous == sorted(previous, reverse=True)
    assert [row["head"] for row in rows[4:]] == ["even", "even"]
    assert list(rows[0]) == ["layer", "head", *SCORES]
    for row in rows[:4]:
        assert f"{float(row['entropy']):.3f}" in out
    assert "head scores over this text (19 tokens with start tokens), sorted by previous" in out
    assert "page: attention/mine/attention.html (" in err


def test_saved_arrays_equal_the_weights_of_the_model(home: Path) -> None:
    import lilliput as library
    from lilliput.interpret import capture_text

    assert lilliput("attention", "mine", "A bee.", "--layers", "1", "--heads", "1", "--pictures", "none").code == 0
    with np.load("attention/mine/attention.npz") as arrays:
        found = capture_text(library.load("mine").writer, "A bee.")
        assert np.array_equal(arrays["layer_1"], found.weights[1][[1]])
        assert np.array_equal(arrays["visible_1"], found.mask(1))
        assert arrays["tokens"].tolist() == list(found.tokens)
        assert arrays["heads"].tolist() == [1] and arrays["ids"].tolist() == found.ids
        assert "layer_0" not in arrays


def test_a_second_text_replaces_the_files_of_the_first(home: Path) -> None:
    result = lilliput("attention", "mine", "A bee.", "--pictures", "heads", "--svg", "--out", "there")
    assert result.code == 0, result.err
    first = {path.name: path.read_bytes() for path in Path("there").iterdir()}
    assert {"layer-0.svg", "layer-1-head-1.svg"} < first.keys()
    assert lilliput("attention", "mine", "A bee.", "--pictures", "heads", "--svg", "--out", "there").code == 0
    again = {path.name: path.read_bytes() for path in Path("there").iterdir()}
    assert {name for name in first if first[name] != again[name]} <= {"attention.npz"}, "a zip has the time in it"
    Path("there/mine.txt").write_text("stays")
    assert lilliput("attention", "mine", "An owl.", "--layers", "1", "--out", "there").code == 0
    left = {path.name for path in Path("there").iterdir()}
    assert left == {"attention.html", "attention.npz", "heads.csv", "layer-1.png", "mine.txt"}


def test_json_with_generated_tokens(home: Path) -> None:
    code, out, err = lilliput(
        "attention", "mine", "A bee", "--generate", "5", "--temperature", "0", "--pictures", "none", "--json"
    )
    assert code == 0, err
    result = json.loads(out)
    written = json.loads(
        lilliput("generate", "mine", "--prompt", "A bee", "--tokens", "5", "--temperature", "0", "--json").out
    )["samples"][0]
    assert result["run"] == "mine"
    assert len(result["text"]["written"]) == written["tokens"]
    assert "".join(result["text"]["written"]).startswith(written["text"][:1])
    assert result["text"]["prompt"] == 6
    assert [(one["layer"], one["head"]) for one in result["even"]] == [(0, None), (1, None)]
    assert len(result["heads"]) == 4 and list(result["heads"][0]) == ["layer", "head", *SCORES]
    assert result["files"]["attention.html"] == Path("attention/mine/attention.html").stat().st_size


def test_generated_text_is_printed_with_its_spaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tokens of a word tokenizer have no spaces."""
    monkeypatch.chdir(judged_runs())
    words = ("A bee saw", "--generate", "9", "--seed", "7")
    result = lilliput("attention", "words", *words, "--pictures", "none", "--out", str(tmp_path))
    assert result.code == 0, result.err
    flags = ("--prompt", "A bee saw", "--tokens", "9", "--seed", "7", "--json")
    (written,) = json.loads(lilliput("generate", "words", *flags).out)["samples"]
    assert written["text"].count(" ") >= 4
    assert result.out.splitlines()[0] == f"generated text: {written['text']}"


def test_flags_may_come_before_the_text(home: Path) -> None:
    one, two = (("mine", "--pictures", "none", "The bear"), ("mine", "The bear", "--pictures", "none"))
    assert lilliput("attention", *one, "--json") == lilliput("attention", *two, "--json")


def test_over_documents(home: Path) -> None:
    code, out, err = lilliput("attention", "mine", "--on", "train", "--documents", "3", "--sort", "layer", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert (result["texts"], result["tokens"], result["text"], result["on"]) == (3, 96, None, "train")
    assert [(one["layer"], one["head"]) for one in result["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(result["files"]) == ["heads.csv"]
    Path("attention/mine/attention.html").write_text("of an earlier text")
    table = Path("attention/mine/heads.csv").read_bytes()
    assert lilliput("attention", "mine", "--on", "validation", "--documents", "1").out.startswith(
        "head scores over 1 document of"
    )
    assert Path("attention/mine/attention.html").read_text() == "of an earlier text"
    assert Path("attention/mine/heads.csv").read_bytes() == table
    assert Path("attention/mine/heads-documents.csv").read_bytes() != table
    code, out, err = lilliput(
        "attention", "mine", "A bee.", "--on", "mytext.txt", "--documents", "2", "--pictures", "none"
    )
    assert code == 0, err
    assert "head scores over 2 documents of mytext.txt (64 tokens with start tokens)" in out
    assert '"surveyed":{"texts":2,"tokens":64}' in Path("attention/mine/attention.html").read_text()


def test_a_text_longer_than_the_context_prints_a_note(home: Path) -> None:
    result = lilliput("attention", "mine", "The old bear " * 5, "--pictures", "none")
    assert result.code == 0
    assert "34 tokens after it are not shown" in result.err
    result = lilliput("attention", "mine", "The old bear " * 5, "--pictures", "none", "--generate", "3")
    assert "50 tokens before it are not shown" in result.err


def test_a_classifier_padded_as_in_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train_small(small_config(tmp_path, **labelled_changes(tmp_path), train__steps="2"))
    code, out, err = lilliput("attention", "mine", "the honey the moon", "--pad", "--json")
    assert code == 0, err
    text = json.loads(out)["text"]
    assert text["padding"] == 4 and len(text["tokens"]) == 8
    assert text["tokens"][:4] == ["the", "honey", "the", "moon"]
    result = lilliput("attention", "mine", "the honey", "--generate", "4")
    assert result.code == 2
    assert [(error.code, error.setting) for error in result.errors] == [("model.task", "model.task")]
    code, out, err = lilliput("attention", "mine", "--on", "heard", "--json")
    assert code == 0 and json.loads(out)["texts"] == 11, err


def test_every_example_runs(home: Path) -> None:
    """Run with the small run, which has two layers."""
    for line in EXAMPLES.strip().splitlines():
        words = shlex.split(re.split(r"\s{2,}", line.strip())[0])[1:]
        words = ["mine" if word == "demo" else "0,1" if word == "0,2" else word for word in words]
        words += [] if "--pictures" in words else ["--pictures", "none"]  # other tests draw them
        result = lilliput(*words)
        assert result.code == 0, result.err


def test_nothing_is_written_into_the_run(home: Path) -> None:
    before = sorted(Path("runs").rglob("*"))
    assert lilliput("attention", str(trained() / "runs" / "mine"), "A bee.", "--pictures", "none").code == 0
    assert lilliput("attention", "runs/mine/checkpoints/step-000008", "A bee.", "--pictures", "none").code == 0
    assert sorted(Path("runs").rglob("*")) == before
    assert sorted(path.name for path in Path("attention").iterdir()) == ["mine"]


# Annotated text ---------------------------------------------------------------------------------------------------------


def test_functions_of_heads_on_a_conllu_file(home: Path) -> None:
    import lilliput as library
    from lilliput.data.corpora.conllu import format_conllu, read_conllu
    from lilliput.data.storybook.annotations import annotated_stories
    from lilliput.interpret import measure_functions

    Path("s.conllu").write_text("".join(format_conllu(annotated_stories(3))), "utf-8")
    words = ["attention", "mine", "--conllu", "s.conllu", "--documents", "2", "--seed", "1", "--layers", "0"]
    result = lilliput(*words, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    expected = measure_functions(library.load("mine").writer, read_conllu("s.conllu"), 2, 1, [0])
    assert found["functions"] == [one.as_dict() for one in expected]
    assert (found["texts"], found["files"].keys()) == (0, {"functions.csv"})
    rows = list(csv.DictReader(Path("attention/mine/functions.csv").read_text().splitlines()))
    assert len(rows) == 2 * 13
    assert [float(row["score"]) for row in rows if row["function"] == "first"] == [
        one.scores["first"].score for one in expected if one.scores["first"] is not None
    ]
    result = lilliput(*words)
    assert result.code == 0 and "functions of heads over annotated documents of s.conllu" in result.out
    table = dict(line.split(maxsplit=1) for line in result.out.splitlines() if " " in line)
    assert table["head"].split() == ["0.0", "0.1"], "no column is truncated"
    for name, score in expected[0].scores.items():
        shown = "-" if score is None else f"{score.score:.3f}" + "*" * score.significant
        assert table[name].split()[0] == shown
    assert f"0.0 {expected[0].pattern}" in result.out
    result = lilliput(
        "attention", "mine", "A bee.", "--conllu", "storybook", "--documents", "2", "--pictures", "none", "--json"
    )
    assert result.code == 0, result.err
    assert {"functions.csv", "heads.csv", "attention.html"} <= json.loads(result.out)["files"].keys()


def test_errors_of_annotated_text(home: Path) -> None:
    Path("bad.conllu").write_text("1\tword\n")
    (error,) = lilliput("attention", "mine", "--conllu", "bad.conllu").errors
    assert (error.code, error.where) == ("conllu.syntax", "bad.conllu, line 1")
    assert lilliput("attention", "mine", "--conllu", "none.conllu").errors[0].code == "file.unreadable"
