"""Plain text and .jsonl, labelled and not; endings; and the sentence for every bad line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.user_errors import refusal as refused
from lilliput.data.corpora import Document, open_corpus
from lilliput.data.corpora.formats import FORMATS, ending_of, text_size
from lilliput.settings.tree import DataSettings

VALIDATION = "0\tvalidation"


def read(folder: Path, name: str, content: str | bytes, **settings: object) -> list[Document]:
    path, other = folder / name, folder.parent / f"{folder.name}-validation.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    other.write_text(VALIDATION, "utf-8")
    corpus = open_corpus(DataSettings(source=str(path), validation_source=str(other), **settings))
    return list(corpus.documents("train"))


def refusal(folder: Path, name: str, content: str | bytes, **settings: object) -> str:
    return refused(lambda: read(folder, name, content, **settings))


def test_endings_are_found_below_compression() -> None:
    names = {"a.txt": ".txt", "a.TXT.GZ": ".txt", "a.b.jsonl.zst": ".jsonl", "a.parquet.xz": ".parquet"}
    assert {name: ending_of(Path(name)) for name in names} == names
    assert [ending_of(Path(name)) for name in ("a.gz", "txt", "a.txt.bz2", ".txt")] == [None] * 4


def test_sizes_are_what_the_text_may_be(tmp_path: Path) -> None:
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
    told = refusal(tmp_path, "a.txt", content + "\n\nno label", labelled=True, separator="endoftext")
    assert "has no tab" in told
    assert "line 8" in told


def test_empty_texts_after_a_label_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\t\n\nb\t  \nc\ttext\nc\tmore\n", "utf-8")
    heard: list[str] = []
    corpus = open_corpus(DataSettings(source=str(path), labelled=True))
    assert len(list(corpus.stream(heard.append))) == 2
    assert heard == ["train"] * 3


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
    ("name", "content", "told"),
    [
        ("a.txt", "a\tone\nno tab here\n", ["no tab between label and text", "line 2", "write label TAB text"]),
        ("a.txt", "a\tone\n\ttwo\n", ["the label is empty", "line 2"]),
        ("a.txt", "a\tone\n \ttwo\n", ["the label is empty", "line 2"]),
        ("a.txt", "a\tone\n" + "x" * 101 + "\ttwo\n", ["the label has 101 characters", "line 2", "is this a label column?"]),
        ("a.txt", MANY, ["more than 1,000 different labels, 'label 1000'", "line 1001", "is this a label column?"]),
        ("a.txt", b"a\tone\r\nb\t\xe9\r\n", ["not UTF-8: byte 0xe9", "line 2, byte 9"]),
        ("a.txt", b"a\tone\nb\tt\x00wo\n", ["holds a NUL byte", "byte 9"]),
        ("a.jsonl", '{"text": "x", "labels": 1}', ["no field 'label', only text, labels", "--data.label-field labels"]),
        ("a.jsonl", '{"text": "x", "label": 1.5}', ["the label is no string or whole number but float", "line 1"]),
        ("a.jsonl", '{"text": "x", "label": true}', ["the label is no string or whole number but bool", "line 1"]),
        ("a.jsonl", '{"text": "x", "label": null}', ["the label is missing", "line 1", "--data.label-field"]),
        ("a.jsonl", '{"text": "x", "label": [1]}', ["the label is no string or whole number but list", "line 1"]),
        ("a.jsonl", '{"text": "x", "label": ""}', ["the label is empty", "line 1"]),
    ],
)  # fmt: skip
def test_mistakes_of_labels(tmp_path: Path, name: str, content: str | bytes, told: list[str]) -> None:
    sentence = refusal(tmp_path, name, content, labelled=True)
    for part in (*told, str(tmp_path / name)):
        assert part in sentence
