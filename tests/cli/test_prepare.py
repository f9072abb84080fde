"""Tests of the output of `lilliput prepare`: table, near duplicates, labels, vectors, interruption."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from helpers.shared_data import DATA, needs_data
from helpers.small_runs import lilliput
from helpers.text_corpora import write
from lilliput.cli.output import progress
from lilliput.data.prepare import corpus_pass
from lilliput.data.prepare.work_folder import WorkFolder
from lilliput.data.tokenizers import Tokenizer

STORY = "the old king of the far hills lost his golden ring in the deep lake and {} it for a year and a day"

PUBLISHED_IDS = [
    3198, 1110, 11, 257, 1310, 2576, 3706, 20037, 1043, 257, 17598, 287, 607, 2119, 13, 1375, 2993, 340, 373, 2408,
    284, 711, 351, 340, 780, 340, 373, 7786, 13, 20037, 2227, 284, 2648, 262, 17598, 351, 607, 1995, 11, 523,
    673, 714, 34249, 257, 4936, 319, 607, 10147, 13, 198, 43, 813, 1816, 284, 607, 1995, 290, 531, 11, 366,
    29252, 11, 314, 1043, 428, 17598, 13, 1680, 345, 2648, 340, 351, 502, 290, 34249, 616, 10147, 1701, 2332,
    1995, 13541, 290, 531, 11, 366, 5297, 11, 20037, 11, 356, 460, 2648, 262, 17598, 290, 4259, 534, 10147, 526,
]  # fmt: skip


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
    """Return the rows of the table by name."""
    return {line[:45].strip(): line[45:].split() for line in out.splitlines() if line[45:].strip()}


def test_the_table_and_its_sentences() -> None:
    out = prepare("--tokenizer.kind", "word", "--model.context", "8")
    figures = {name.split("  ")[0]: values for name, values in rows(out).items()}
    assert figures["documents"] == ["12", "3"]
    assert figures["repeated documents within the split"] == ["1", "0"]
    assert figures["documents that are also in the training split"] == ["1"]
    assert figures["tokens in the vocabulary"] == ["100.00%", "86.67%"]
    lengths = [24, 3, 3] + [2] * 9, [24, 3, 3]
    assert figures["tokens per document (without end token): mean"] == [f"{np.mean(one):.1f}" for one in lengths]
    for name, percent in (("5th percentile", 5), ("median", 50), ("95th percentile", 95), ("longest", 100)):
        assert figures[name] == [f"{np.percentile(one, percent):,.0f}" for one in lengths]
    assert "most frequent unknown words in validation: an 1, missed 1, unheard 1, word 1" in out
    assert (
        "longest documents (tokens): 24 (train, document 0), 24 (validation, document 0), 3 (train, document 1)" in out
    )
    assert "lossy" in out
    assert "prepared data: prepared" in out


def test_the_table_shows_coverage_only_with_an_unknown_token() -> None:
    assert "tokens in the vocabulary" not in rows(prepare("--tokenizer.kind", "byte"))
    found = json.loads(prepare("--tokenizer.kind", "word", "--json"))
    assert found["coverage"] == {"train": 1.0, "validation": 1 - found["unknown_rate"]["validation"]}
    assert json.loads(prepare("--json"))["coverage"] == {"train": None, "validation": None}


def test_a_table_in_a_pipe_has_one_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = prepare("--tokenizer.kind", "word", "--model.context", "8")
    monkeypatch.setenv("COLUMNS", "40")
    assert prepare("--tokenizer.kind", "word", "--model.context", "8") == wide


def test_single_documents_have_no_percentiles() -> None:
    write(Path("train.txt"), ["one document"])
    write(Path("heldout.txt"), ["another"])
    assert not {"median", "longest"} & rows(prepare("--tokenizer.kind", "word")).keys()


def test_first_characters_and_ids() -> None:
    flags = ["--tokenizer.kind", "word", "--show", "125", "--ids", "27"]
    text = f"{STORY.format('sought')}\n<|endoftext|>\na short one"[:125]
    assert len(text) == 125
    found = json.loads(prepare(*flags, "--json"))
    assert found["text"] == text
    tokenizer = Tokenizer.load(Path(found["folder"]))
    assert found["ids"] == [*tokenizer.encode(STORY.format("sought")), tokenizer.end, *tokenizer.encode("a short")]
    report, shown, ids = (part.splitlines() for part in prepare(*flags).split("\n\nfirst "))
    assert "prepared data: " in report[-1]
    assert shown[2:] == text.split("\n")
    assert [int(one) for line in ids[2:] for one in line.split()] == found["ids"]
    assert len({len(line) for line in ids[2:-1]}) == 1, "columns are aligned"


@pytest.mark.parametrize("order", [("--show", "--ids", "train.txt"), ("--ids", "train.txt", "--show")])
def test_numbers_of_characters_and_ids_are_optional(order: tuple[str, ...]) -> None:
    write(Path("train.txt"), ["x" * 3000, "y"])
    result = lilliput("prepare", *order, "--tokenizer.kind", "byte", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["text"] in ("x" * 1000, "y") and len(found["ids"]) == min(100, found["tokens"]["train"])


@pytest.mark.parametrize("number", ["0", "-1", "1k", "1.5", "", "٣x"])
def test_numbers_that_are_not_counts_raise(number: str) -> None:
    result = lilliput("prepare", "train.txt", f"--show={number}", f"--ids={number}")
    assert (result.code, result.out) == (2, "")
    assert [(one.code, one.what.split()[0]) for one in result.errors] == [
        ("flag.value", "--show"),
        ("flag.value", "--ids"),
    ]
    assert not Path("prepared").exists()


def test_a_negative_number_after_a_space_raises() -> None:
    (error,) = lilliput("prepare", "train.txt", "--ids", "-1").errors
    assert error.code == "flag.value" and error.what.startswith("--ids ")


def test_shown_text_has_no_control_characters_or_markup() -> None:
    write(Path("train.txt"), ["a\tb :smile: [bold]\u00a0\u3000x\r\n\x1b[31mred\u202e", "another text"])
    write(Path("heldout.txt"), ["one"])
    out = prepare("--tokenizer.kind", "byte", "--show")
    assert "a       b :smile: [bold]\u00a0\u3000x\n\ufffd[31mred\ufffd\n<|endoftext|>\nanother text\n" in out
    assert not {"\x1b", "\r", "\t", "\u202e"} & {*out}


@needs_data
def test_the_published_first_ids_of_tinystories() -> None:
    source = DATA / "tinystories" / "train-head-2316.txt"
    flags = ["--data.documents", "20", "--tokenizer.kind", "gpt2", "--show", "--ids", "--json"]
    result = lilliput("prepare", str(source), *flags)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["text"] == source.read_text()[:1000]
    # As published, without the second line end of each paragraph (198), which these files do not have.
    assert found["ids"][:99] == PUBLISHED_IDS


def test_near_duplicates() -> None:
    found: dict[str, Any] = json.loads(prepare("--tokenizer.kind", "byte", "--duplicates", "near", "--json"))
    # Only the exact duplicate: one changed word of 24 is too much.
    assert found["near_duplicates"]["across"] == {"validation": 1}
    out = prepare("--tokenizer.kind", "byte", "--duplicates", "near")
    assert "near duplicates (similarity 0.8 or more): 1 within train, 0 within validation" in out
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


def test_rebuild_includes_the_vectors(tmp_path: Path) -> None:
    Path("words.vec").write_text("1 2\nking 1 0\n")
    flags = ["--tokenizer.kind", "word", "--vectors.source", "words.vec"]
    prepare(*flags)
    (manifest,) = tmp_path.glob("prepared/vectors-*/manifest.json")
    before = manifest.stat().st_mtime_ns
    prepare(*flags)
    assert manifest.stat().st_mtime_ns == before
    prepare(*flags, "--rebuild")
    assert manifest.stat().st_mtime_ns > before


def test_control_characters_are_not_printed() -> None:
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
    found = json.loads(prepare(*flags, "--json"))
    assert found["vectors"]["rows"] == 3


def test_resumed_preparation_prints_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
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
    code, out, err = lilliput(*command)
    assert code == 0 and err.count("\n") == 1 and "0 MB" in err


def test_the_progress_bar_shows_the_speed() -> None:
    """On a terminal: one bar at a time, with MB/s; elsewhere only notes."""
    terminal, file = io.StringIO(), io.StringIO()
    for target, is_terminal in ((terminal, True), (file, False)):
        with progress(Console(file=target, force_terminal=is_terminal, width=100)) as report:
            report("first", 1_000_000, 4_000_000)
            report("second", 0, 4_000_000)
            report("second", 2_000_000, 4_000_000)
            report("second", 3_000_000, 4_000_000)
            report("a sentence", 0, 0)
    assert file.getvalue() == "note: a sentence\n"
    assert "a sentence" in terminal.getvalue()
    assert "MB/s" in terminal.getvalue()
    assert "75%" in terminal.getvalue()


def test_force_color_does_not_make_a_pipe_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in prepare("--tokenizer.kind", "byte")


def test_annotated_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lilliput.data.corpora.conllu import read_conllu
    from lilliput.data.storybook import stories

    monkeypatch.chdir(tmp_path)
    words = (
        "prepare",
        "storybook",
        "--data.documents",
        "20",
        "--tokenizer.kind",
        "byte",
        "--conllu",
        "s.conllu",
        "--json",
    )
    result = lilliput(*words)
    assert result.code == 0, result.err
    found = read_conllu("s.conllu")
    assert json.loads(result.out)["conllu"] == {"file": "s.conllu", "documents": len(found)}
    assert [document.text for document in found] == [
        text for text, _ in zip(stories("validation", 1), found, strict=False)
    ]
    Path("mytext.txt").write_text("A bee.")
    assert lilliput("prepare", "mytext.txt", "--conllu", "s.conllu").errors[0].code == "flag.conflict"
    assert lilliput("prepare", "storybook", "--conllu", "no/s.conllu").errors[0].code == "file.not-written"
