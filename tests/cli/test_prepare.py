"""What `lilliput prepare` tells: the table, its sentences, near duplicates, labels, vectors, and interrupted work."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.small_runs import lilliput
from helpers.text_corpora import write
from lilliput.cli.output import progress
from lilliput.data.prepare import corpus_pass
from lilliput.data.prepare.work_folder import WorkFolder

STORY = "the old king of the far hills lost his golden ring in the deep lake and {} it for a year and a day"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write(Path("train.txt"), [STORY.format("sought"), "a short one", "a short one", *(f"number {n}" for n in range(9))])
    write(Path("heldout.txt"), [STORY.format("missed"), "a short one", "an unheard word"])


def prepare(*flags: str) -> str:
    code, out, err = lilliput("prepare", "train.txt", "--data.validation-source", "heldout.txt", *flags)
    assert (code, err) == (0, ""), err
    return out


def rows(out: str) -> dict[str, list[str]]:
    """The table: figures of each split by the figure's name."""
    return {line[:45].strip(): line[45:].split() for line in out.splitlines() if line[45:].strip()}


def test_the_table_and_its_sentences() -> None:
    out = prepare("--tokenizer.kind", "word", "--model.context", "8")
    figures = {name.split("  ")[0]: values for name, values in rows(out).items()}
    assert figures["documents"] == ["12", "3"]
    assert figures["documents equal to an earlier one"] == ["1", "0"]
    assert figures["documents equal to one of train"] == ["1"]
    assert figures["unknown tokens"] == ["0.00%", "13.33%"]
    assert "unknown in validation: an 1, missed 1, unheard 1, word 1" in out
    assert "longest documents, in tokens: 24 (train 0), 24 (validation 0), 3 (train 1)" in out
    assert "lossy" in out
    assert "kept in prepared" in out


def test_near_duplicates() -> None:
    told: dict[str, Any] = json.loads(prepare("--tokenizer.kind", "byte", "--duplicates", "near", "--json"))
    assert told["near_duplicates"]["across"] == {"validation": 1}  # those that are equal; one word of 24 is too much
    out = prepare("--tokenizer.kind", "byte", "--duplicates", "near")
    assert "near duplicates (similarity 0.8 or more): 1 of train, 0 of validation have an earlier twin" in out
    assert " MB/s" in out
    longer = " ".join(f"word{n}" for n in range(60))
    write(Path("train.txt"), [f"{longer} one", "another"])
    write(Path("heldout.txt"), [f"{longer} two"])
    out = prepare("--tokenizer.kind", "byte", "--duplicates", "near")
    assert "train 0: word0 word1" in out
    assert "validation 0: word0 word1" in out


def test_rebuild(tmp_path: Path) -> None:
    prepare("--tokenizer.kind", "byte")
    (manifest,) = tmp_path.glob("prepared/*/manifest.json")
    before = manifest.stat().st_mtime_ns
    prepare("--tokenizer.kind", "byte")
    assert manifest.stat().st_mtime_ns == before
    prepare("--tokenizer.kind", "byte", "--rebuild")
    assert manifest.stat().st_mtime_ns > before


def test_rebuilding_means_the_vectors_too(tmp_path: Path) -> None:
    Path("words.vec").write_text("1 2\nking 1 0\n")
    flags = ["--tokenizer.kind", "word", "--vectors.source", "words.vec"]
    prepare(*flags)
    (manifest,) = tmp_path.glob("prepared/vectors-*/manifest.json")
    before = manifest.stat().st_mtime_ns
    prepare(*flags)
    assert manifest.stat().st_mtime_ns == before
    prepare(*flags, "--rebuild")
    assert manifest.stat().st_mtime_ns > before


def test_a_text_cannot_speak_to_the_terminal() -> None:
    Path("vocabulary.txt").write_text("<pad>\n<unk>\n")
    write(Path("train.txt"), ["a red\x1b[31mword and more"] * 3)
    out = prepare("--tokenizer.kind", "word", "--tokenizer.split", "spaces", "--tokenizer.vocabulary", "vocabulary.txt")
    assert "red\ufffd[31mword 3" in out
    assert "\x1b" not in out


def test_labels_and_test_sets() -> None:
    Path("lines.tsv").write_text("".join(f"{'yes' if n % 3 else 'no'}\ttext {n}\n" for n in range(20)))
    Path("more.tsv").write_text("no\tsomething else\n")
    flags = ["--data.labelled", "true", "--data.tests", "odd=more.tsv", "--tokenizer.kind", "byte"]
    code, out, err = lilliput("prepare", "lines.tsv", *flags)
    assert (code, err) == (0, "")
    assert "labels of odd: no 1, yes 0" in out
    Path("more.tsv").write_text("perhaps\tsomething else\n")
    result = lilliput("prepare", "lines.tsv", *flags)
    assert (result.code, result.out) == (2, "")
    (error,) = result.errors
    assert error.code == "data.label" and "perhaps" in error.what and "odd" in f"{error.what} {error.where}"
    assert len(result.err.splitlines()) <= 3


def test_vectors(tmp_path: Path) -> None:
    Path("words.vec").write_text("3 2\nking 1 0\nring 0.9 0.1\nlake 0 1\n")
    flags = ["--tokenizer.kind", "word", "--vectors.source", "words.vec"]
    out = prepare(*flags)
    assert "vectors: 3 of width 2" in out
    assert "without a vector: " in out
    told = json.loads(prepare(*flags, "--json"))
    assert told["vectors"]["rows"] == 3


def test_going_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_pass, "SHARD", 100)
    keep = WorkFolder.keep_splits

    def stop(self: WorkFolder, mark: corpus_pass.Mark) -> None:
        keep(self, mark)
        raise KeyboardInterrupt

    command = ["prepare", "train.txt", "--tokenizer.kind", "byte"]
    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "keep_splits", stop)
        code, out, err = lilliput(*command)
    assert (code, out) == (130, "")
    assert "run the same command again to resume" in err
    code, out, err = lilliput(*command)
    assert (code, err) == (0, "resuming after 0 MB\n")


def test_a_bar_tells_speed() -> None:
    """On a terminal: one bar at a time, with megabytes a second; elsewhere only sentences."""
    terminal, file = io.StringIO(), io.StringIO()
    for target, is_terminal in ((terminal, True), (file, False)):
        with progress(Console(file=target, force_terminal=is_terminal, width=100)) as report:
            report("first", 1_000_000, 4_000_000)
            report("second", 0, 4_000_000)
            report("second", 2_000_000, 4_000_000)
            report("second", 3_000_000, 4_000_000)
            report("a sentence", 0, 0)
    assert file.getvalue() == "a sentence\n"
    assert "a sentence" in terminal.getvalue()
    assert "MB/s" in terminal.getvalue()
    assert "75%" in terminal.getvalue()


def test_force_color_makes_no_terminal_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in prepare("--tokenizer.kind", "byte")
