"""FastText's binary format: the same vectors as gensim, which writes the files, and errors."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gensim.models import FastText
from gensim.models.fasttext import ft_ngram_hashes, save_facebook_model
from hypothesis import given
from hypothesis import strategies as st

from helpers.user_errors import refused
from helpers.vector_files import write_model
from lilliput.data.progress import silent
from lilliput.data.vectors.fasttext_format import MAGIC, FastTextFile, ngram_hashes
from lilliput.data.vectors.vector_files import open_vectors

SENTENCES = [
    ["the", "old", "bear", "sang", "of", "the", "sea"],
    ["the", "bee", "saw", "a", "lantern", "and", "the", "bee", "sang"],
    ["Zoë", "lost", "the", "наука", "科学", "naïve", "café"],
    ["a", "bear", "saw", "Zoë", "in", "the", "garden", "by", "the", "sea"],
] * 5


def train(folder: Path, shortest: int = 3, longest: int = 6, bucket: int = 500) -> tuple[Path, FastText]:
    model = FastText(vector_size=12, min_count=1, bucket=bucket, min_n=shortest, max_n=longest, seed=3, workers=1)
    model.build_vocab(SENTENCES)
    model.train(SENTENCES, total_examples=len(SENTENCES), epochs=2)
    path = folder / f"model-{shortest}-{longest}.bin"
    save_facebook_model(model, str(path))
    return path, model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FastText]:
    return train(tmp_path_factory.mktemp("fasttext"))


def read(path: Path, words: list[str]) -> dict[str, np.ndarray]:
    file = FastTextFile(path)
    found = {word.decode(): row() for word, row in file.find({word.encode() for word in words}, silent)}
    return found | {word: row for word in words if word not in found and (row := file.compose(word)) is not None}


@pytest.mark.parametrize(("shortest", "longest"), [(3, 6), (1, 2), (1, 1), (5, 5)])
def test_vectors_equal_gensims(tmp_path: Path, shortest: int, longest: int) -> None:
    path, model = train(tmp_path, shortest, longest)
    known = list(model.wv.index_to_key)
    unknown = ["bears", "lanterns", "Zoës", "научный", "科", "unbearable", "x" * 40]
    unknown = [word for word in unknown if ngram_hashes(word.encode(), shortest, longest)]
    assert isinstance(open_vectors(path), FastTextFile)  # recognised by its content
    found = read(path, known + unknown)
    assert found.keys() == {*known, *unknown}
    for word in known + unknown:
        np.testing.assert_allclose(found[word], model.wv[word], rtol=0, atol=1e-6)
    assert any(np.abs(model.wv[word]).max() > 1e-3 for word in unknown)


def test_only_wanted_words_are_found(trained: tuple[Path, FastText]) -> None:
    file = FastTextFile(trained[0])
    assert {word for word, _ in file.find({b"bear", b"nothing", b"the"}, silent)} == {b"bear", b"the"}
    assert (file.rows, file.width) == (len(trained[1].wv), 12)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 4))
def test_hashes_of_ngrams_equal_gensims(word: str, shortest: int, more: int) -> None:
    # gensim returns hashes modulo the bucket; the largest bucket leaves them unchanged.
    theirs = ft_ngram_hashes(word, shortest, shortest + more, 2**32 - 1)
    ours = ngram_hashes(word.encode(), shortest, shortest + more)
    assert [value % (2**32 - 1) for value in ours] == list(theirs)


def numbers(rows: int, width: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


def test_pruned_ngrams_are_skipped_and_renumbered(tmp_path: Path) -> None:
    hashes = [value % 5000 for value in ngram_hashes(b"bear", 3, 6)]
    kept = {hashes[0]: 1, hashes[1]: 0}
    matrix = numbers(3)
    path = write_model(tmp_path / "pruned.bin", [b"bear"], matrix, bucket=5000, pruned=kept)
    rows = [0] + [1 + kept[value] for value in hashes if value in kept]
    np.testing.assert_allclose(read(path, ["bear"])["bear"], matrix[rows].mean(axis=0), atol=1e-7)
    assert "zzzzzz" not in read(path, ["zzzzzz"])


def test_the_end_of_a_sentence_has_no_ngrams_and_labels_are_not_words(tmp_path: Path) -> None:
    matrix = numbers(52)
    path = write_model(tmp_path / "s.bin", [b"</s>", b"sea"], matrix, bucket=50, labels=[b"__label__x"])
    found = read(path, ["</s>", "__label__x"])
    np.testing.assert_array_equal(found["</s>"], matrix[0])
    assert {word for word, _ in FastTextFile(path).find({b"</s>", b"__label__x"}, silent)} == {b"</s>"}


def test_an_old_classifier_has_no_ngrams(tmp_path: Path) -> None:
    matrix = numbers(51)
    path = write_model(tmp_path / "old.bin", [b"sea"], matrix, bucket=50, version=11, kind=3)
    assert np.array_equal(read(path, ["sea"])["sea"], matrix[0])


def test_every_truncation_raises(trained: tuple[Path, FastText], tmp_path: Path) -> None:
    whole, short = trained[0].read_bytes(), tmp_path / "short.bin"
    for size in [5, 40, 80, 100, 200, *range(400, len(whole), 2999), len(whole) - 1]:
        short.write_bytes(whole[:size])
        error = refused(lambda: read(short, ["bear"]))
        assert (error.code, error.setting) == ("vectors.invalid", "vectors.source")
        assert str(short) in (error.where or "") and "byte" in (error.where or "")


def test_unsupported_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    quantized = write_model(path, [b"sea"], numbers(1), quantized=True)
    assert refused(lambda: read(quantized, ["sea"])).code == "vectors.invalid"
    error = refused(lambda: read(write_model(path, [b"sea"], numbers(1), version=13), ["sea"]))
    assert error.code == "vectors.invalid"
    assert "got 13" in error.what
    short = write_model(path, [b"sea", b"bear"], numbers(1))
    error = refused(lambda: read(short, ["sea"]))
    assert error.code == "vectors.invalid"
    assert "2 x 4" in error.what
    broken = write_model(path, [b"sea"], np.array([[1.0, np.nan]]))
    error = refused(lambda: read(broken, ["sea"]))
    assert error.code == "vectors.invalid"
    assert "'sea'" in error.what
    for row in (-1, 7):
        pruned = write_model(path, [b"sea"], numbers(2), bucket=50, pruned={3: row})
        error = refused(lambda: read(pruned, ["sea"]))  # noqa: B023
        assert error.code == "vectors.invalid"
        assert "byte" in (error.where or "")
    path.write_bytes(struct.pack("<ii12id", MAGIC, 12, -5, *[1] * 11, 0.0) + bytes(40))
    error = refused(lambda: FastTextFile(path))
    assert (error.code, error.where) == ("vectors.invalid", f"{path}, byte 8")
