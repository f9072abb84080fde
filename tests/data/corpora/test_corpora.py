"""Documents and splits: known results, streaming, reproducible splits, and errors of bad sources."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from lilliput.data.corpora import END_OF_TEXT, Document, open_corpus
from lilliput.data.corpora import decompression as pieces
from lilliput.settings.tree import DataSettings


def texts(source: Path | str, split: str = "train", seed: int = 1, **settings: object) -> list[str]:
    corpus = open_corpus(DataSettings(source=str(source), seed=seed, **settings))
    return [document.text for document in corpus.documents(split)]


def both(source: Path | str, seed: int = 1, **settings: object) -> list[str]:
    return texts(source, "train", seed, **settings) + texts(source, "validation", seed, **settings)


def file(folder: Path, content: str | bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Splitting into documents ------------------------------------------------------------------------------------------


def test_documents_end_at_the_separator_and_are_stripped(tmp_path: Path) -> None:
    path = file(tmp_path, f"\n one \n{END_OF_TEXT}\ntwo\n\nstill two{END_OF_TEXT}three\n")
    corpus = open_corpus(DataSettings(source=str(path)))
    assert sorted(both(path)) == ["one", "three", "two\n\nstill two"]
    assert corpus.name == "text.txt"
    assert corpus.sources == [path]
    assert corpus.describe == "1 file, documents end at <|endoftext|>; 10% of the documents are used for validation"


@pytest.mark.parametrize("chunk", [1, 2, 5, 13, 14, 1000])
def test_separators_across_chunks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(pieces, "CHUNK", chunk)
    path = file(tmp_path, f"é{END_OF_TEXT}<|endof{END_OF_TEXT}世界 x{END_OF_TEXT}\n")
    assert sorted(both(path)) == sorted(["é", "<|endof", "世界 x"])


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("line", ["a", "b c", "d", "e"]),
        ("blank-line", ["a\nb c", "d\ne"]),
        ("file", ["a\nb c\n\n  \nd\ne"]),
        ("endoftext", ["a\nb c\n\n  \nd\ne"]),
    ],
)
def test_separators(tmp_path: Path, separator: str, expected: list[str]) -> None:
    path = file(tmp_path, "a\r\nb c\r\n\r\n  \r\nd\ne\n")
    other = file(tmp_path, "other", "other.txt")
    assert texts(path, separator=separator, validation_source=str(other)) == expected
    for ends in ("\n", "\r", "\r\n"):
        path = file(tmp_path, "a\nb\n\nc\n".replace("\n", ends))
        listed = {"line": ["a", "b", "c"], "blank-line": ["a\nb", "c"]}.get(separator, ["a\nb\n\nc"])
        assert texts(path, separator=separator, validation_source=str(other)) == listed


def test_empty_documents_are_dropped_and_counted_once(tmp_path: Path) -> None:
    path = file(tmp_path, f"a{END_OF_TEXT} \n{END_OF_TEXT}b{END_OF_TEXT}\u3000{END_OF_TEXT}\n")
    corpus = open_corpus(DataSettings(source=str(path)))
    counted: list[str] = []
    kept = list(corpus.documents("train", lambda: counted.append("train")))
    kept += corpus.documents("validation", lambda: counted.append("validation"))
    assert sorted(kept) == [Document("a"), Document("b")]
    assert counted == ["train", "train"]
    assert len(list(corpus.stream(counted.append))) == 2
    assert counted == ["train"] * 4


def test_line_ends_inside_a_document_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = file(tmp_path, b"\xef\xbb\xbfone\r\ntwo\r\n" + END_OF_TEXT.encode() + b"\r\nthree\rfour")
    assert sorted(both(path)) == ["one\ntwo", "three\nfour"]
    assert sorted(both(path, line_ends="keep")) == ["one\r\ntwo", "three\rfour"]


def test_jsonl(tmp_path: Path) -> None:
    lines = [{"story": f"text {n}\nwith <|endoftext|> inside", "n": n} for n in range(3)]
    path = file(tmp_path, "\ufeff" + "\n\n".join(json.dumps(line) for line in lines) + "\r\n", "a.jsonl")
    assert sorted(both(path, text_field="story")) == [line["story"] for line in lines]
    assert (
        "one document per line (field 'story')"
        in open_corpus(DataSettings(source=str(path), text_field="story")).describe
    )


def test_folders_are_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name, text in {
        "b.txt": "b1",
        "a/z.TXT": "z",
        "a/b/c.txt": "c",
        ".x.txt": "no",
        ".git/y.txt": "no",
        "e.py": "e",
        "LICENSE": "l",
    }.items():
        file(tmp_path, text, name)
    file(tmp_path, '{"text": "d"}\n', "d.jsonl")
    for name, raw in {"a.png": b"\x89PNG\x00", "b.o": b"caf\xe9", "c.pdf": b"%PDF-1.4\n", "z": b"a\xff"}.items():
        file(tmp_path, raw, name)
    other = file(tmp_path.parent, "v", f"{tmp_path.name}-other.txt")
    settings = DataSettings(source=str(tmp_path), validation_source=str(other))
    corpus = open_corpus(settings)
    assert [document.text for document in corpus.documents("train")] == ["l", "c", "z", "b1", "d", "e"]
    assert list(corpus.documents("validation")) == [Document("v")]
    assert [path.name for path in corpus.sources] == [
        "LICENSE", "c.txt", "z.TXT", "b.txt", "d.jsonl", "e.py", other.name
    ]  # fmt: skip
    assert corpus.describe == (
        "5 text files, documents end at <|endoftext|> or at the end of a file; "
        "1 .jsonl file, one document per line (field 'text'); "
        "4 files skipped because not UTF-8 text: a.png, b.o, c.pdf, z; "
        "validation: 1 file, one document (it contains no <|endoftext|>; set data.separator to line or blank-line to split it)"
    )
    for patterns, names in {
        ("*.txt",): ["c.txt", "z.TXT", "b.txt"],
        ("a/*.txt", "*.py"): ["c.txt", "z.TXT", "e.py"],
        ("LICEN?E",): ["LICENSE"],
    }.items():
        chosen = open_corpus(DataSettings(source=str(tmp_path), validation_source=str(other), files=patterns))
        assert [path.name for path in chosen.sources[:-1]] == names
        assert "skipped" not in chosen.describe
    error = refused(lambda: texts(tmp_path, files=("*.rs",)))
    assert (error.code, error.setting) == ("file.format", "data.files")


@pytest.mark.parametrize("name", ["a.py", "a.md", "page.html", "paper.tex", "README", "a.raw", "a.json"])
@pytest.mark.parametrize("form", ["", ".xz", ".gz"])
def test_files_of_other_suffixes_are_plain_text(tmp_path: Path, name: str, form: str) -> None:
    raw = f"one{END_OF_TEXT}two".encode()
    packed = {"": raw, ".xz": lzma.compress(raw), ".gz": gzip.compress(raw)}[form]
    assert sorted(both(file(tmp_path, packed, name + form))) == ["one", "two"]


def test_text_in_a_folder_is_recognised_at_the_border_of_the_first_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "CHUNK", 4)
    path = file(tmp_path, "abc\u00e9 and more", "a.md")  # the first part ends inside a character
    assert open_corpus(DataSettings(source=str(tmp_path))).sources == [path]


def test_the_cache_inside_a_folder_is_not_searched(tmp_path: Path) -> None:
    for name in ("a.txt", "cache/b.txt", "cache/c.tokens", "other/cache/d.txt"):
        file(tmp_path, name, name)
    corpus = open_corpus(DataSettings(source=str(tmp_path), cache=str(tmp_path / "cache"), seed=1))
    assert [path.relative_to(tmp_path).as_posix() for path in corpus.sources] == ["a.txt", "other/cache/d.txt"]
    assert "ignored" not in corpus.describe


def test_first_documents_only(tmp_path: Path) -> None:
    path = file(tmp_path, "\n".join(f"d{n}" for n in range(100)))
    assert sorted(both(path, separator="line", documents=7)) == [f"d{n}" for n in range(7)]
    assert (
        "the first 7 documents" in open_corpus(DataSettings(source=str(path), separator="line", documents=7)).describe
    )


def test_documents_stream(tmp_path: Path) -> None:
    path = file(tmp_path, b"good\n" * 300_000 + b"\xff\n")
    documents = open_corpus(DataSettings(source=str(path), separator="line")).documents("train")
    assert next(documents) == Document("good")  # the invalid byte is a megabyte later
    error = refused(lambda: list(documents))
    assert (error.code, error.setting) == ("file.not-utf8", "data.source")
    assert "byte 1500000" in (error.where or "")


# Splits ----------------------------------------------------------------------------------------------------------


def test_splits_are_disjoint_stable_and_moved_by_the_seed(tmp_path: Path) -> None:
    path = file(tmp_path, END_OF_TEXT.join(f"document {n}" for n in range(1000)))
    train, validation = texts(path), texts(path, "validation")
    assert (len(train), len(validation)) == (900, 100)
    assert not set(train) & set(validation)
    assert (train, validation) == (texts(path), texts(path, "validation"))
    assert validation != texts(path, "validation", seed=2)
    numbers = [int(text.split()[1]) for text in validation]
    assert len({number % 10 for number in numbers}) == 10  # not at a fixed position in a block


def test_appending_documents_moves_none(tmp_path: Path) -> None:
    short = file(tmp_path, "\n".join(f"d{n}" for n in range(50)), "short.txt")
    long = file(tmp_path, "\n".join(f"d{n}" for n in range(90)), "long.txt")
    assert set(texts(short, "validation", separator="line")) < set(texts(long, "validation", separator="line"))
    assert set(texts(short, separator="line")) < set(texts(long, separator="line"))


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_few_documents_still_fill_both_splits(tmp_path: Path, count: int, share: float) -> None:
    path = file(tmp_path, "\n".join("abcdefghij"[:count]))
    for seed in range(20):
        assert texts(path, "train", seed, separator="line", validation_share=share)
        assert texts(path, "validation", seed, separator="line", validation_share=share)


@pytest.mark.parametrize(
    ("text", "border"),
    [
        ("aaa\n" * 10 + "\n" + "bbb bb\n" * 3, "a paragraph"),
        ("aaa aa\n" * 20, "a line"),
        ("a " * 50, "white space"),
        ("a" * 50, "a character"),
    ],
)
def test_the_end_of_a_single_document_is_used_for_validation(tmp_path: Path, text: str, border: str) -> None:
    path = file(tmp_path, text)
    train, validation = texts(path, validation_share=0.3), texts(path, "validation", validation_share=0.3)
    assert len(train) == len(validation) == 1
    assert "".join((train[0] + validation[0]).split()) == "".join(text.split())
    assert open_corpus(DataSettings(source=str(path), validation_share=0.3)).describe.endswith(
        f"; its last 30% are used for validation, split at {border}"
    )


def test_storybook() -> None:
    settings = DataSettings(source="storybook", documents=600, seed=3)
    corpus = open_corpus(settings)
    train, validation = list(corpus.documents("train")), list(corpus.documents("validation"))
    assert (len(train), len(validation)) == (600, 500)
    assert not set(train) & set(validation)
    assert train == list(open_corpus(settings).documents("train"))
    assert train[:5] != list(open_corpus(replace(settings, seed=4)).documents("train"))[:5]
    assert list(corpus.stream()) == [("train", story) for story in train] + [
        ("validation", story) for story in validation
    ]
    assert 0.9 < sum(len(story.text.encode()) for story in train + validation) / corpus.size < 1.1
    assert (
        corpus.describe
        == "600 stories of the built-in storybook; validation: 500 other stories of the built-in storybook"
    )
    assert {path.suffix for path in corpus.sources} == {".py"}
    assert (
        "20,000 stories of the built-in storybook; validation: 1,000 other stories"
        in open_corpus(DataSettings()).describe
    )


@pytest.mark.parametrize(
    "settings", [{"separator": "line"}, {"separator": "line", "documents": 20}, {"separator": "file"}]
)
def test_the_stream_contains_all_splits_and_reads_each_source_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    path = file(tmp_path, "\n".join(f"{n} is here" for n in range(50)))
    book = file(tmp_path, "one\n\ntwo", "book.txt")
    corpus = open_corpus(DataSettings(source=str(path), tests=(f"b-1={book}", f"self={path}"), **settings))
    assert corpus.splits == ("train", "validation", "b-1", "self")
    assert corpus.sources == [path, book]
    assert corpus.size == 2 * path.stat().st_size + book.stat().st_size
    opened = []
    real = pieces.read_bytes
    monkeypatch.setattr(pieces, "read_bytes", lambda found: [opened.append(found), real(found)][1])
    streamed = list(corpus.stream())
    assert opened == [path, book, path]
    for split in corpus.splits:
        assert [document for name, document in streamed if name == split] == list(corpus.documents(split))
    assert streamed == list(corpus.stream())
    assert {split for split, _ in streamed} == set(corpus.splits)
    assert "; b-1: 1 file, " in corpus.describe


def test_test_sets_ignore_the_limit_of_documents(tmp_path: Path) -> None:
    path = file(tmp_path, "\n".join("abcdefgh"))
    found = texts(path, "mine", separator="line", documents=3, tests=(f"mine={path}",))
    assert found == list("abcdefgh")
    error = refused(lambda: texts(path, tests=("mine=gone.txt",)))
    assert (error.code, error.setting, error.where) == ("file.missing", "data.tests", "gone.txt")


def test_a_test_set_of_the_storybook_has_other_stories() -> None:
    corpus = open_corpus(DataSettings(documents=50, tests=("book=storybook",)))
    assert corpus.splits == ("train", "validation", "book")
    seen = [{document.text for document in corpus.documents(split)} for split in corpus.splits]
    assert [len(found) for found in seen] == [50, 50, 50]
    assert len(set.union(*seen)) == 150
    error = refused(lambda: open_corpus(DataSettings(labelled=True)))
    assert (error.code, error.setting) == ("data.label", "data.labelled")


def test_labels_stay_with_their_texts_through_a_split(tmp_path: Path) -> None:
    path = file(tmp_path, "\n".join(f"{n % 3}\ttext {n}" for n in range(40)))
    corpus = open_corpus(DataSettings(source=str(path), labelled=True))
    found = [document for _, document in corpus.stream()]
    assert sorted(found) == sorted(Document(f"text {n}", str(n % 3)) for n in range(40))
    lone = file(tmp_path, "2\tone text of many words", "lone.txt")
    corpus = open_corpus(DataSettings(source=str(lone), labelled=True, validation_share=0.3))
    assert [(split, document.label) for split, document in corpus.stream()] == [("train", "2"), ("validation", "2")]


@needs_data
def test_speeches() -> None:
    speeches = DATA / "speeches"
    tests = tuple(f"{name}={speeches}/test_LM_{name}.txt" for name in ("obama", "wbush", "hbush"))
    corpus = open_corpus(DataSettings(source=str(speeches / "train_LM.txt"), separator="line", tests=tests))
    assert corpus.splits == ("train", "validation", "obama", "wbush", "hbush")
    assert [len(list(corpus.documents(split))) for split in corpus.splits[2:]] == [250, 250, 250]
    settings = DataSettings(
        source=str(speeches / "train_CLS.tsv"), labelled=True, validation_source=str(speeches / "test_CLS.tsv")
    )
    corpus = open_corpus(settings)
    train, validation = list(corpus.documents("train")), list(corpus.documents("validation"))
    assert (len(train), len(validation)) == (2_092, 750)
    assert Counter(document.label for document in validation) == {"0": 250, "1": 250, "2": 250}
    plain = texts(speeches / "train_CLS.tsv", validation_source=str(speeches / "test_CLS.tsv"))
    assert plain == [document.text for document in train]
    assert "no header: column 2 is the text, column 1 the label" in corpus.describe


@needs_data
@pytest.mark.parametrize(
    ("name", "documents"), [("mixed-train", 10_140), ("mixed-heldout", 3_117), ("train-head-2316", 2_316)]
)
def test_real_stories(name: str, documents: int) -> None:
    path = DATA / "tinystories" / f"{name}.txt"
    train, validation = texts(path), texts(path, "validation")
    assert len(train) + len(validation) == documents
    assert abs(len(validation) - documents / 10) <= 1
    assert not set(train) & set(validation)
    # The files contain each story, a line end, the separator, a line end, and nothing else.
    assert sum(len(text.encode()) for text in train + validation) + documents * 15 <= path.stat().st_size


# Errors ----------------------------------------------------------------------------------------------------------

GOOD = '{"text": "good"}\n'


@pytest.mark.parametrize(
    ("name", "content", "code", "setting", "facts"),
    [
        ("a.txt", b"", "data.empty", "data.source", []),
        ("a.txt", b" \n\t\r\n", "data.empty", "data.source", []),
        ("a.txt", b"\n<|endoftext|>\n<|endoftext|>\n", "data.empty", "data.source", []),
        ("a.txt", b"text\n\x00\x01", "file.binary", "data.source", ["byte 5"]),
        ("a.txt", "grün\n".encode() + "grün".encode("latin1"), "file.not-utf8", "data.source", ["line 2, byte 8", "latin1"]),
        ("a.txt", b"ok" + END_OF_TEXT.encode() + b"\xe4\xb8", "file.not-utf8", "data.source", ["byte 0xe4", "line 1, byte 15"]),
        ("a.txt", b"\xef\xbb\xbfab\xff", "file.not-utf8", "data.source", ["byte 0xff", "line 1, byte 5"]),
        ("a.txt", "text".encode("utf-16"), "file.not-utf8", "data.source", ["byte 0", "iconv -f utf-16"]),
        ("a.txt", b"x", "data.no-validation", "data.source", []),
        ("a.jsonl", GOOD + "{oops\n", "file.syntax", "data.source", ["line 2"]),
        ("a.jsonl", GOOD + "\n" + "[" * 100_000, "file.syntax", "data.source", ["line 3"]),
        ("a.jsonl", GOOD + '{"text": 1' + "0" * 5000 + "}", "file.syntax", "data.source", ["line 2"]),
        ("a.jsonl", GOOD + "[1]\n", "file.syntax", "data.source", ["line 2"]),
        ("a.jsonl", GOOD + '{"texts": "x"}\n', "data.column", "data.text_field", ["line 2", "texts"]),
        ("a.jsonl", GOOD + '{"a\\nb": 1}\n', "data.column", "data.text_field", ["line 2"]),
        ("a.jsonl", GOOD + "{}\n", "data.column", "data.text_field", ["line 2"]),
        ("a.jsonl", GOOD + '{"text": 3}\n', "data.column", "data.text_field", ["line 2"]),
        ("a.jsonl", GOOD + '{"text": "\\ud83d"}\n', "file.not-utf8", "data.source", ["line 2", "ud83d"]),
        ("a.jsonl", GOOD.encode() + b'{"text": "\xe9"}\n', "file.not-utf8", "data.source", ["line 2, byte 27", "0xe9"]),
        ("a.jsonl", b"\n\n", "data.empty", "data.source", []),
        ("a.pdf", b"%PDF-1.7\n%\xe2\xe3", "file.binary", "data.source", ["pdftotext"]),
        ("a.docx", b"PK\x03\x04text", "file.binary", "data.source", []),
        ("a.txt.bz2", b"BZh91AY&SYtext", "file.binary", "data.source", ["bunzip2"]),
        ("story", b"te\x00xt", "file.binary", "data.source", ["byte 2"]),
        ("a.py", b"caf\xe9", "file.not-utf8", "data.source", ["line 1, byte 3"]),
    ],
)  # fmt: skip
def test_errors_in_files(
    tmp_path: Path, name: str, content: str | bytes, code: str, setting: str, facts: list[str]
) -> None:
    path = file(tmp_path, content, name)
    error = refused(lambda: both(path))
    assert (error.code, error.setting) == (code, setting)
    for fact in (*facts, str(path)):
        assert fact in str(error)


def test_errors_in_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(tmp_path, "text", "stories/mine.txt")
    error = refused(lambda: both(tmp_path / "stories" / "nine.txt"))
    assert (error.code, error.setting) == ("file.missing", "data.source")
    assert str(path) in (error.fix or "")  # the nearest name
    error = refused(lambda: both(tmp_path / "x" / "y.txt"))
    assert (error.code, error.setting) == ("file.missing", "data.source")
    error = refused(lambda: both("storybok"))
    assert (error.code, error.setting) == ("data.source", "data.source")
    assert "storybook" in (error.fix or "")
    error = refused(lambda: both(path, validation_source=str(tmp_path / "v.txt")))
    assert (error.code, error.setting) == ("file.missing", "data.validation_source")
    file(tmp_path, b"\x00", "other/code.pyc")
    error = refused(lambda: both(tmp_path / "other"))
    assert error.code == "file.format"
    assert ".pyc" in error.what
    (tmp_path / "empty").mkdir()
    error = refused(lambda: both(tmp_path / "empty"))
    assert error.code == "file.format"
    assert all(
        ending in (error.fix or "") for ending in (".txt", ".jsonl", ".csv", ".tsv", ".parquet", ".gz", ".zst", ".xz")
    )
    os.mkfifo(tmp_path / "pipe.txt")
    assert refused(lambda: both(tmp_path / "pipe.txt")).code == "data.source"

    def forbidden(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", forbidden)  # root may read every file
    error = refused(lambda: both(path))
    assert (error.code, error.where) == ("file.unreadable", str(path))
    monkeypatch.setattr("os.scandir", forbidden)
    monkeypatch.setattr("os.listdir", forbidden)
    assert refused(lambda: both(path.parent)).code == "file.unreadable"
