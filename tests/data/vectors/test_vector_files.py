"""Vectors as text and in word2vec's binary format: equal to gensim's; errors with their place."""

from __future__ import annotations

import gzip
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from gensim.models import KeyedVectors

from helpers.user_errors import refused
from lilliput.data.progress import silent
from lilliput.data.vectors.vector_files import open_vectors

WORDS = ["the", "bear", "Zoë", "наука", "don't", "科学", "</s>"]


@pytest.fixture(scope="module")
def vectors() -> KeyedVectors:
    found = KeyedVectors(9)
    found.add_vectors(WORDS, np.random.default_rng(1).normal(size=(len(WORDS), 9)).astype(np.float32))
    return found


def read(path: Path, *words: str) -> dict[str, np.ndarray]:
    wanted = {word.encode() for word in words or WORDS}
    return {word.decode(): row() for word, row in open_vectors(path).find(wanted, silent)}


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("suffix", [".vec", ".txt", ".bin"])
def test_vectors_equal_gensims(vectors: KeyedVectors, tmp_path: Path, binary: bool, suffix: str) -> None:
    path = tmp_path / f"vectors{suffix}"
    vectors.save_word2vec_format(str(path), binary=binary)
    theirs = KeyedVectors.load_word2vec_format(str(path), binary=binary)
    file = open_vectors(path)
    assert (file.kind, file.width) == ("word2vec binary" if binary else "text", 9)
    found = read(path)
    assert list(found) == WORDS
    for word in WORDS:
        np.testing.assert_allclose(found[word], theirs[word], rtol=0, atol=1e-6)
    assert list(read(path, "bear", "absent")) == ["bear"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("header", [True, False])
def test_compressed_text_with_and_without_a_header(
    vectors: KeyedVectors, tmp_path: Path, suffix: str, header: bool
) -> None:
    plain = tmp_path / "plain.vec"
    vectors.save_word2vec_format(str(plain), write_header=header)
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"packed.vec{suffix}"
    path.write_bytes(pack(plain.read_bytes()))
    found, expected = read(path), read(plain)
    assert list(found) == WORDS
    assert all(np.array_equal(found[word], expected[word]) for word in WORDS)


def test_line_ends_after_the_rows_of_a_binary_file(tmp_path: Path) -> None:
    rows = {b"sea": (1.5, -2.0), b"bee": (0.25, 8.0)}
    path = tmp_path / "google.bin"
    path.write_bytes(b"2 2\n" + b"".join(w + b" " + struct.pack("<2f", *row) + b"\n" for w, row in rows.items()))
    assert {word: row.tolist() for word, row in read(path, "sea", "bee").items()} == {
        "sea": [1.5, -2.0],
        "bee": [0.25, 8.0],
    }


def test_variants_of_the_text_format(tmp_path: Path) -> None:
    # FastText's lines end with a space, Windows' with CR; some files use tabs; GloVe's words may contain spaces.
    lines = ["sea 1 2 3 ", "bee\t4\t5\t6", ". . . 7 8 9", "at name@x.org 1 1 1", "bee 9 9 9", "fox  1e-3 -.5 +2\r", ""]
    path = write(tmp_path / "mixed.vec", "6 3", *lines)
    found = [(word, row().tolist()) for word, row in open_vectors(path).find({b"sea", b"bee", b"fox"}, silent)]
    assert found == [
        (b"sea", [1, 2, 3]),
        (b"bee", [4, 5, 6]),
        (b"bee", [9, 9, 9]),
        (b"fox", [np.float32(1e-3), -0.5, 2]),
    ]
    glove = write(tmp_path / "glove.txt", *lines)
    assert open_vectors(glove).width == 3
    assert [row.tolist() for row in read(glove, "sea").values()] == [[1, 2, 3]]


def test_a_byte_order_mark_before_the_header(tmp_path: Path) -> None:
    assert read(write(tmp_path / "bom.vec", "\ufeff1 2", "sea 1 2"), "sea")["sea"].tolist() == [1, 2]


def test_more_rows_than_in_the_header_give_a_note(tmp_path: Path) -> None:
    file = open_vectors(write(tmp_path / "more.vec", "1 2", "sea 1 2", "bee 3 4"))
    assert len(list(file.find({b"bee"}, silent))) == 1
    assert file.rows == 2
    assert file.notes == ["the file has 2 rows, not 1 as in its header; all are read"]


BAD_TEXT = {
    "mixed width": (["3 2", "sea 1 2", "bee 1 2 3", "fox 1 2"], "line 3", "got 3"),
    "mixed width without header": (["sea 1 2", "bee 1"], "line 2", "got 1"),
    "wrong width in the header": (["2 3", "sea 1 2", "bee 1 2"], "line 2", "got 2"),
    "fewer rows than in the header": (["5 2", "sea 1 2", "bee 1 2"], "", "got 2"),
    "header only": (["5 2"], "", "got 0"),
    "not a number": (["2 2", "fox 1 2", "sea 1 two"], "line 3", "'two'"),
    "nan": (["1 2", "sea 1 nan"], "line 2", ""),
    "infinity": (["1 2", "sea inf 1"], "line 2", ""),
    "too large for float32": (["1 2", "sea 1e39 1"], "line 2", ""),
    "no numbers": (["sea", "bee"], "line 1", "got 0"),
    "width of zero": (["2 0", "sea", "bee"], "line 1", "got 0"),
    "huge width": (["2 99999999", "sea 1", "bee 2"], "line 1", "got 99,999,999"),
    "prose": (
        ["Once upon a time there was a bear.", "It sang."],
        "line 2",
        "got 1",
    ),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text(tmp_path: Path, case: str) -> None:
    lines, place, fact = BAD_TEXT[case]
    path = write(tmp_path / "bad.vec", *lines)
    error = refused(lambda: read(path, "sea"))
    assert (error.code, error.setting) == ("vectors.invalid", "vectors.source")
    assert place in (error.where or "") and str(path) in (error.where or "")
    assert fact in error.what


def test_a_truncated_text_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.vec"
    path.write_bytes(b"3 4\nsea 1 2 3 4\nbee 1 2")
    error = refused(lambda: read(path, "sea"))
    assert (error.code, error.where) == ("vectors.invalid", f"{path}, line 3")
    assert "got 2" in error.what


def test_a_very_long_line_raises(tmp_path: Path) -> None:
    path = tmp_path / "long.vec"
    path.write_bytes(b"2 2\nsea 1 2\n" + b"a" * 3_000_000)
    error = refused(lambda: read(path, "sea"))
    assert (error.code, error.where) == ("vectors.invalid", f"{path}, line 3")
    assert "1,048,576" in error.what


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_truncated_archives(vectors: KeyedVectors, tmp_path: Path, suffix: str) -> None:
    plain, path = tmp_path / "plain.vec", tmp_path / f"cut.vec{suffix}"
    vectors.save_word2vec_format(str(plain))
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    packed = pack(plain.read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    error = refused(lambda: read(path))
    assert (error.code, error.where) == ("file.damaged", str(path))


def test_bad_binary_files(vectors: KeyedVectors, tmp_path: Path) -> None:
    path = tmp_path / "vectors.bin"
    vectors.save_word2vec_format(str(path), binary=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    error = refused(lambda: read(path))
    assert error.code == "vectors.invalid"
    assert "row 7 of 7" in error.what
    assert "byte" in (error.where or "")
    path.write_bytes(whole.replace(b"7 9\n", b"6 9\n", 1))
    error = refused(lambda: read(path))
    assert error.code == "vectors.invalid"
    assert "6 rows" in error.what
    path.write_bytes(whole.replace(b"7 9\n", b"7 8\n", 1))
    assert refused(lambda: read(path)).code == "vectors.invalid"
    path.write_bytes(b"1 2\nsea " + struct.pack("<2f", 1.0, float("inf")))
    error = refused(lambda: read(path, "sea"))
    assert (error.code, error.where) == ("vectors.invalid", f"{path}, byte 8")
    packed = tmp_path / "vectors.bin.gz"
    packed.write_bytes(gzip.compress(whole))
    assert refused(lambda: read(packed)).code == "file.format"


def test_paths_that_are_not_vector_files(tmp_path: Path) -> None:
    assert refused(lambda: open_vectors(tmp_path)).code == "file.is-folder"
    path = write(tmp_path / "wiki.vec", "")
    assert refused(lambda: open_vectors(path)).code == "vectors.invalid"
    path.write_bytes(b"")
    assert refused(lambda: open_vectors(path)).code == "vectors.invalid"
    error = refused(lambda: open_vectors(tmp_path / "wiki.ve"))
    assert (error.code, error.setting) == ("file.missing", "vectors.source")
    assert str(path) in (error.fix or "")  # the nearest name
    path.write_bytes(bytes(range(256)) * 20)
    assert refused(lambda: open_vectors(path)).code == "vectors.invalid"
