"""Plain text and .jsonl, with and without labels; suffixes; errors of bad lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.user_errors import refused
from lilliput.data.corpora import Document, open_corpus
from lilliput.data.corpora.formats import FORMATS, ending_of, text_size
from lilliput.errors import UserError
from lilliput.settings.tree import DataSettings

VALIDATION = "0\tvalidation"


def read(folder: Path, name: str, content: str | bytes, **settings: object) -> list[Document]:
    path, other = folder / name, folder.parent / f"{folder.name}-validation.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    other.write_text(VALIDATION, "utf-8")
    corpus = open_corpus(DataSettings(source=str(path), validation_source=str(other), **settings))
    return list(corpus.documents("train"))


def refused_file(folder: Path, name: str, content: str | bytes, **settings: object) -> UserError:
    return refused(lambda: read(folder, name, content, **settings))


def test_suffixes_of_compressed_files() -> None:
    names = {"a.txt": ".txt", "a.TXT.GZ": ".txt", "a.b.jsonl.zst": ".jsonl", "a.parquet.xz": ".parquet"}
    assert {name: ending_of(Path(name)) for name in names} == names
    assert [ending_of(Path(name)) for name in ("a.gz", "txt", "a.txt.bz2", ".txt")] == [None] * 4


def test_estimates_of_the_size_of_text(tmp_path: Path) -> None:
    for ending in FORMATS:
        for form in ("", ".gz", ".zst", ".xz"):
            path = tmp_path / f"a{ending}{form}"
            path.write_bytes(b"x" * 100)
            assert text_size(path) >= 100
            assert (text_size(path) == 100) == (ending != ".parquet" and not form)


@pytest.mark.parametrize("separator", ["auto", "line"])
def test_labelled_lines(tmp_path: Path, separator: str) -> None:
    content = "\ufeffgood\t one\ttwo \r\n\r\n bad \tthree\r\ngood\t \r\ngood\tfour"
    expected = [Document("one\ttwo", "good"), Document("three", "bad"), Document("four", "good")]
    assert read(tmp_path, "a.txt", content, labelled=True, separator=separator) == expected


def test_labelled_documents_of_several_lines(tmp_path: Path) -> None:
    expected = [Document("one\nmore", "a"), Document("two", "b")]
    content = "a\tone\nmore\n<|endoftext|>\nb\ttwo\n<|endoftext|>\n"
    assert read(tmp_path, "a.txt", content, labelled=True, separator="endoftext") == expected
    assert read(tmp_path, "a.txt", "a\tone\nmore\n\nb\ttwo\n", labelled=True, separator="blank-line") == expected
    error = refused_file(tmp_path, "a.txt", content + "\n\nno label", labelled=True, separator="endoftext")
    assert (error.code, error.setting) == ("data.label", "data.labelled")
    assert "line 8" in (error.where or "")


def test_empty_texts_after_a_label_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\t\n\nb\t  \nc\ttext\nc\tmore\n", "utf-8")
    counted: list[str] = []
    corpus = open_corpus(DataSettings(source=str(path), labelled=True))
    assert len(list(corpus.stream(counted.append))) == 2
    assert counted == ["train"] * 3


def test_null_is_an_empty_document(tmp_path: Path) -> None:
    assert [document.text for document in read(tmp_path, "a.jsonl", '{"text": null}\n{"text": "one"}\n')] == ["one"]


def test_labelled_jsonl(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": 3}, {"text": "two", "label": " x "}, {"text": " "}, {"text": "three", "label": -1}]
    content = "\n".join(json.dumps(row) for row in rows)
    settings = DataSettings(
        source=str(tmp_path / "a.jsonl"), validation_source=str(tmp_path / "a.jsonl"), labelled=True
    )
    (tmp_path / "a.jsonl").write_text(content, "utf-8")
    corpus = open_corpus(settings)
    assert list(corpus.documents("train")) == [Document("one", "3"), Document("two", "x"), Document("three", "-1")]
    assert "(field 'text', label in field 'label')" in corpus.describe
    plain = read(tmp_path, "b.jsonl", content)
    assert [document.label for document in plain] == [None] * 3


MANY = "\n".join(f"label {n}\ttext" for n in range(1_001))


@pytest.mark.parametrize(
    ("name", "content", "code", "setting", "facts"),
    [
        ("a.txt", "a\tone\nno tab here\n", "data.label", "data.labelled", ["line 2"]),
        ("a.txt", "a\tone\n\ttwo\n", "data.label", "data.labelled", ["line 2"]),
        ("a.txt", "a\tone\n \ttwo\n", "data.label", "data.labelled", ["line 2"]),
        ("a.txt", "a\tone\n" + "x" * 101 + "\ttwo\n", "data.label", "data.label_field", ["line 2", "101"]),
        ("a.txt", MANY, "data.label", "data.label_field", ["line 1001", "label 1000"]),
        ("a.txt", b"a\tone\r\nb\t\xe9\r\n", "file.not-utf8", "data.source", ["line 2, byte 9", "0xe9"]),
        ("a.txt", b"a\tone\nb\tt\x00wo\n", "file.binary", "data.source", ["byte 9"]),
        ("a.jsonl", '{"text": "x", "labels": 1}', "data.column", "data.label_field", ["labels"]),
        ("a.jsonl", '{"text": "x", "label": 1.5}', "data.label", "data.label_field", ["line 1"]),
        ("a.jsonl", '{"text": "x", "label": true}', "data.label", "data.label_field", ["line 1"]),
        ("a.jsonl", '{"text": "x", "label": null}', "data.label", "data.label_field", ["line 1"]),
        ("a.jsonl", '{"text": "x", "label": [1]}', "data.label", "data.label_field", ["line 1"]),
        ("a.jsonl", '{"text": "x", "label": ""}', "data.label", "data.labelled", ["line 1"]),
    ],
)  # fmt: skip
def test_errors_of_labels(
    tmp_path: Path, name: str, content: str | bytes, code: str, setting: str, facts: list[str]
) -> None:
    error = refused_file(tmp_path, name, content, labelled=True)
    assert (error.code, error.setting) == (code, setting)
    for fact in (*facts, str(tmp_path / name)):
        assert fact in str(error)
