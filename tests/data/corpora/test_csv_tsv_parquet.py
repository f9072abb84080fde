"""Tables: columns by name, number and guess; quoting; parquet in row groups; errors of bad rows."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.data.corpora import Corpus, Document, open_corpus
from lilliput.data.corpora.csv_tsv_parquet import csv_rows, read_parquet
from lilliput.data.corpora.documents import Labels
from lilliput.errors import UserError
from lilliput.settings.tree import DataSettings


def corpus_of(path: Path, **settings: object) -> Corpus:
    return open_corpus(DataSettings(source=str(path), validation_source=str(path), **settings))


def table(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def parquet(folder: Path, columns: dict[str, Any], name: str = "a.parquet", rows: int = 1 << 20) -> Path:
    path = folder / name
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)
    return path


def refused_file(path: Path, **settings: object) -> UserError:
    error = refused(lambda: list(corpus_of(path, **settings).stream()))
    assert str(path) in (error.where or "")
    return error


def pairs(path: Path, **settings: object) -> list[tuple[str, str | None]]:
    return [(document.text, document.label) for document in corpus_of(path, **settings).documents("train")]


# Columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "settings", "expected", "description"),
    [
        ("id\ttext\n1\tone\n2\ttwo\n", {}, [("one", None), ("two", None)], "(column 'text')"),
        ("id\ttext\n1\tone\n", {"text_field": "1"}, [("id", None), ("1", None)], "no header: column 1 is the text"),
        ("id\tstory\n1\tone\n", {"text_field": "story"}, [("one", None)], "(column 'story')"),
        ("label\ttext\na\tone\n", {"labelled": True}, [("one", "a")], "column 'text', label in column 'label'"),
        ("text\tlabel\none\ta\n", {"labelled": True}, [("one", "a")], "column 'text', label in column 'label'"),
        ("x\tlabel\none\ta\n", {"labelled": True, "text_field": "1"}, [("one", "a")], "column 'x', label in column"),
        ("one\ntwo\n", {}, [("one", None), ("two", None)], "no header: column 1 is the text)"),
        ("a\tone\nb\ttwo\n", {}, [("one", None), ("two", None)], "column 2 is the text, column 1 is ignored"),
        ("a\tone\n", {"labelled": True}, [("one", "a")], "column 2 is the text, column 1 the label"),
        ("one\ta\n", {"labelled": True, "text_field": "1"}, [("one", "a")], "column 1 is the text, column 2 the label"),
        ("7\tx\tone\n", {"text_field": "3"}, [("one", None)], "no header: column 3 is the text)"),
        ("7\tx\tone\n", {"text_field": "3", "labelled": True, "label_field": "1"}, [("one", "7")], "column 1 the label"),
        ("\n\ntext\tn\n\none\t1\r\n\n", {}, [("one", None)], "(column 'text')"),
        ("  \ntext\tn\none\t1\n", {}, [("one", None)], "(column 'text')"),
        (" \na\tone\n", {"labelled": True}, [("one", "a")], "column 2 is the text, column 1 the label"),
        ("\ufefftext\tn\none\t1\n", {}, [("one", None)], "(column 'text')"),
        ('text\tn\n"one "" two\t1\n', {}, [('"one "" two', None)], "(column 'text')"),
    ],
)  # fmt: skip
def test_columns(
    tmp_path: Path, content: str, settings: dict[str, Any], expected: list[tuple[str, str | None]], description: str
) -> None:
    path = table(tmp_path, "a.tsv", content)
    assert pairs(path, **settings) == expected
    assert description in corpus_of(path, **settings).describe


@given(st.lists(st.tuples(st.text(), st.text(min_size=1)), min_size=1))
def test_csv_written_by_the_csv_module(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    def storable(cell: str) -> bool:  # NUL, unpaired surrogates and a BOM at the start cannot be stored
        return "\0" not in cell and not any("\ud800" <= c <= "\udfff" for c in cell) and not cell.startswith("\ufeff")

    rows = [row for row in rows if all(map(storable, row))]
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
    path = table(tmp_path_factory.getbasetemp(), "round.csv", written.getvalue())
    assert [tuple(cells) for _, cells in csv_rows(path)] == rows


def test_csv_cells_may_contain_anything(tmp_path: Path) -> None:
    content = 'label,text\r\n0,"one, ""two""\r\n\r\nthree"\r\n1,plain "quotes" inside\r\n"2",""\r\n'
    expected = [('one, "two"\n\nthree', "0"), ('plain "quotes" inside', "1")]
    assert pairs(table(tmp_path, "a.csv", content), labelled=True) == expected
    packed = table(tmp_path, "a.csv.gz", gzip.compress(content.encode()))
    assert pairs(packed, labelled=True) == expected


def test_a_cell_of_a_megabyte(tmp_path: Path) -> None:
    text = "long " * 200_000
    assert pairs(table(tmp_path, "a.csv", f'text\n"{text}"\n')) == [(text.strip(), None)]


# Parquet ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), "string")]
)
def test_parquet_of_every_kind_of_string(tmp_path: Path, kind: pyarrow.DataType) -> None:
    texts = pyarrow.array([" one ", None, "", "zwei ü\nlines", "one"], pyarrow.string()).cast(kind)
    path = parquet(tmp_path, {"n": [1, 2, 3, 4, 5], "text": texts}, rows=2)
    counted: list[str] = []
    corpus = corpus_of(path)
    assert [document.text for _, document in corpus.stream(counted.append)] == ["one", "zwei ü\nlines", "one"] * 2
    assert counted == ["train"] * 2 + ["validation"] * 2
    assert "1 file, one document per row (column 'text')" in corpus.describe


@pytest.mark.parametrize("form", [".gz", ".xz", ".zst"])
def test_compressed_parquet(tmp_path: Path, form: str) -> None:
    import lzma

    import zstandard

    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}[form]
    raw = parquet(tmp_path, {"story": ["one", "two"], "label": [7, 8]}).read_bytes()
    path = table(tmp_path, f"b.parquet{form}", pack(raw))
    assert pairs(path, text_field="1", labelled=True) == [("one", "7"), ("two", "8")]
    assert refused_file(table(tmp_path, f"c.parquet{form}", raw)).code == "file.format"


def test_parquet_is_read_in_parts(tmp_path: Path) -> None:
    rows, noise = 8_000, random.Random(1)
    texts = [noise.randbytes(2_000).hex() for _ in range(rows)]  # 32 MB in one row group
    path = parquet(tmp_path, {"text": texts, "other": texts}, rows=rows)
    before, most = pyarrow.total_allocated_bytes(), 0
    for text, document in zip(texts, read_parquet(path, DataSettings(), Labels()), strict=True):
        assert document == Document(text)
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert most < 12_000_000


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "settings", "code", "setting", "facts"),
    [
        ("a.tsv", "text\tn\none\t1\ntwo\n", {}, "file.syntax", "data.source", ["line 3", "1"]),
        ("a.tsv", "a\tone\nb\n", {"labelled": True}, "file.syntax", "data.source", ["line 2", "1"]),
        ("a.tsv", "a\tone\nb\ttwo\tthree\n", {}, "file.syntax", "data.source", ["line 2", "3"]),
        ("a.csv", 'a,"one\nmore"\nb\n', {}, "file.syntax", "data.source", ["line 3", "1"]),
        ("a.csv", "a,one, two\n", {}, "data.column", "data.text_field", ["2"]),
        ("a.csv", "id,Text,n\n1,one,2\n", {}, "data.column", "data.text_field", ["Text"]),
        ("a.csv", "label,sentence\n1,one\n", {}, "data.column", "data.text_field", []),
        ("a.csv", "id,body\n1,one\n", {"text_field": "story"}, "data.column", "data.text_field", []),
        ("a.csv", "a,b\n", {"text_field": "3"}, "data.column", "data.text_field", []),
        ("a.csv", "a,b\n", {"text_field": "0"}, "data.column", "data.text_field", []),
        ("a.csv", "id,text\n1,one\n", {"labelled": True}, "data.column", "data.label_field", []),
        ("a.csv", "text\none\n", {"labelled": True, "label_field": "text"}, "data.column", "data.label_field", []),
        ("a.csv", "one\ntwo\n", {"labelled": True}, "data.label", "data.labelled", ["line 1"]),
        ("a.csv", "a,b,c\n", {"labelled": True, "text_field": "3"}, "data.column", "data.label_field", []),
        ("a.csv", 'a,one\nb,"two\nand so on', {}, "file.syntax", "data.source", ["line 2"]),
        ("a.csv", "a,one\rb,two\r", {}, "file.syntax", "data.source", ["line 1"]),
        ("a.csv", 'a,one\nb,"two" three\n', {}, "file.syntax", "data.source", ["line 2"]),
        ("a.csv", "label,text\n,one\n", {"labelled": True}, "data.label", "data.labelled", ["line 2"]),
        ("a.csv", b"label,text\n1,gr\xfcn\n", {}, "file.not-utf8", "data.source", ["line 2, byte 15", "0xfc"]),
        ("a.tsv", b"a\tone\nb\tt\x00wo\n", {}, "file.binary", "data.source", ["byte 9"]),
        ("a.tsv", "text\tn".encode("utf-16"), {}, "file.not-utf8", "data.source", []),
        ("a.csv", "text,n\n", {}, "data.empty", "data.source", []),
        ("a.csv", "text,n\n ,1\n", {}, "data.empty", "data.source", []),
        ("a.parquet", "text", {}, "file.damaged", "data.source", []),
        ("a.parquet", "", {}, "file.damaged", "data.source", []),
    ],
)  # fmt: skip
def test_errors(
    tmp_path: Path, name: str, content: str | bytes, settings: dict[str, Any], code: str, setting: str, facts: list[str]
) -> None:
    error = refused_file(table(tmp_path, name, content), **settings)
    assert (error.code, error.setting) == (code, setting)
    for fact in facts:
        assert fact in str(error)


@pytest.mark.parametrize(
    ("columns", "settings", "code", "setting", "facts"),
    [
        ({"n": [1], "texts": ["x"]}, {}, "data.column", "data.text_field", ["texts"]),
        ({"n": [1], "story": ["x"]}, {}, "data.column", "data.text_field", ["story"]),
        ({"n": [1]}, {}, "data.column", "data.text_field", []),
        ({"text": [1], "story": ["x"]}, {}, "data.column", "data.text_field", ["story", "int64"]),
        ({"text": [["x"]]}, {}, "data.column", "data.text_field", []),
        ({"text": ["x"], "labels": [1]}, {"labelled": True}, "data.column", "data.label_field", ["labels"]),
        ({"text": ["x", "y"], "label": [1, None]}, {"labelled": True}, "data.label", "data.label_field", ["row 2"]),
        ({"text": ["x"], "label": [0.5]}, {"labelled": True}, "data.label", "data.label_field", ["row 1"]),
        ({"text": [None, " "]}, {}, "data.empty", "data.source", []),
        ({"text": []}, {}, "data.column", "data.text_field", []),
    ],
)  # fmt: skip
def test_errors_of_parquet(
    tmp_path: Path, columns: dict[str, Any], settings: dict[str, Any], code: str, setting: str, facts: list[str]
) -> None:
    error = refused_file(parquet(tmp_path, columns), **settings)
    assert (error.code, error.setting) == (code, setting)
    for fact in facts:
        assert fact in str(error)


def test_truncated_or_damaged_parquet(tmp_path: Path) -> None:
    texts = [f"text {n} " * 50 for n in range(2_000)]
    raw = parquet(tmp_path, {"text": texts}).read_bytes()
    assert refused_file(table(tmp_path, "b.parquet", raw[: len(raw) // 2])).code == "file.damaged"
    damaged = raw[:20_000] + b"\xff" * 5_000 + raw[25_000:]
    assert refused_file(table(tmp_path, "c.parquet", damaged)).code == "file.damaged"


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path, {"text": ["x"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused_file(path).code == "package.missing"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="requires /dev/full")
def test_no_disk_space_for_decompression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(b"PAR1 and so on"))
    monkeypatch.setattr("tempfile.TemporaryFile", functools.partial(open, "/dev/full", "r+b", 0))
    error = refused_file(path)
    assert error.code == "file.not-written"
    assert "TMPDIR" in (error.fix or "")


@pytest.mark.parametrize(
    ("name", "content", "suggested"),
    [
        ("a.csv", "text,stars,id\na review,5,1\n", "3"),
        ("b.csv", "text,label_name\na review,5\n", "2"),
        ("c.csv", "text,nopes\na review,5\n", "nopes"),
        ("d.tsv", "7\tx\ta long text\n", "1"),
        ("e.jsonl", '{"text": "a review", "stars": 5}\n', "stars"),
    ],
)
def test_a_wrong_label_field_does_not_suggest_the_text(tmp_path: Path, name: str, content: str, suggested: str) -> None:
    field = {"text_field": "3"} if name == "d.tsv" else {}
    error = refused(lambda: pairs(table(tmp_path, name, content), labelled=True, label_field="nope", **field))
    assert (error.code, error.setting) == ("data.column", "data.label_field")
    assert (error.fix or "").split(" to ")[1].split()[0] == suggested
