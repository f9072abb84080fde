"""Files of n-gram counts: saved counts equal counted ones, and a file that is not valid is replaced."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from helpers.ngram_reference import START, VOCAB, make_file
from helpers.small_runs import small_config
from lilliput.data.ngrams import count_files
from lilliput.data.ngrams.count_files import count_training, read_counts, write_counts
from lilliput.data.ngrams.kneser_ney import NGrams, lay_out
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared

RECIPE = {"order": 5, "vocab_size": VOCAB}


def assert_same(found: NGrams, expected: NGrams) -> None:
    assert found.vocab_size == expected.vocab_size
    for one, other in zip(found.levels, expected.levels, strict=True):
        assert one.rests == other.rests and isinstance(one.rests, int)
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        assert one.keys.dtype == one.context.dtype == one.often.dtype == np.int64
    assert len(found.before) == len(expected.before)
    assert all(np.array_equal(a, b) for a, b in zip(found.before, expected.before, strict=True))


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    monkeypatch.setattr(count_files, "WORTH_SAVING", 1)
    return prepare(small_config(tmp_path))


def saved_files(prepared: Prepared) -> list[Path]:
    return sorted(prepared.folder.parent.glob("ngrams-*"))


def recount(prepared: Prepared, order: int = 5) -> NGrams:
    text = lay_out(prepared.split("train"), prepared.tokenizer.start)
    return NGrams(text, prepared.tokenizer.vocab_size, order)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_saved_counts_equal_counted_ones(order: int, tmp_path: Path) -> None:
    counts = NGrams(lay_out(make_file(0), START), VOCAB, order)
    write_counts(tmp_path / "saved.npz", counts, RECIPE | {"order": order})
    found = read_counts(tmp_path / "saved.npz", RECIPE | {"order": order})
    assert found is not None
    assert_same(found, counts)
    text = lay_out(make_file(1), START)
    assert all(np.array_equal(a, b) for a, b in zip(found.nats(text), counts.nats(text), strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["saved.npz"]


def count(prepared: Prepared, order: int = 5) -> tuple[NGrams, bool]:
    """Return the counts, and whether they were counted now."""
    phases: list[str] = []
    found = count_training(prepared, prepared.tokenizer.vocab_size, order, lambda phase, *_: phases.append(phase))
    return found, phases == ["counting n-grams"]


def test_a_training_split_is_counted_once(prepared: Prepared) -> None:
    for counted_now in (True, False):
        found, counted = count(prepared)
        assert counted is counted_now
        assert_same(found, recount(prepared))
    assert len(saved_files(prepared)) == 1
    assert_same(count(prepared, order=3)[0], recount(prepared, 3))
    assert len(saved_files(prepared)) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"not a file of arrays", None], ids=["empty", "other content", "one changed bit"]
)
def test_a_damaged_file_is_replaced(damage: bytes | None, prepared: Prepared) -> None:
    count(prepared)
    (file,) = saved_files(prepared)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data) if damage is None else damage)
    found, counted = count(prepared)
    assert counted
    assert_same(found, recount(prepared))
    assert not count(prepared)[1]


def test_a_file_of_another_recipe_is_not_used(tmp_path: Path) -> None:
    write_counts(tmp_path / "saved.npz", NGrams(lay_out(make_file(0), START), VOCAB, 5), RECIPE)
    assert read_counts(tmp_path / "saved.npz", RECIPE | {"data": "other"}) is None
    assert read_counts(tmp_path / "missing.npz", RECIPE) is None


def test_a_file_with_missing_or_pickled_arrays_is_not_used(tmp_path: Path) -> None:
    recipe = np.array(json.dumps(RECIPE))
    np.savez(tmp_path / "few.npz", recipe=recipe, keys_0=np.arange(3))
    np.savez(tmp_path / "pickled.npz", recipe=recipe, keys_0=np.array([{}], object))
    assert read_counts(tmp_path / "few.npz", RECIPE) is None
    assert read_counts(tmp_path / "pickled.npz", RECIPE) is None


def test_small_texts_are_not_saved(tmp_path: Path) -> None:
    prepared = prepare(small_config(tmp_path))
    assert_same(count(prepared)[0], recount(prepared))
    assert saved_files(prepared) == []


def test_counts_that_cannot_be_written_are_returned(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(os, "replace", refuse)
    assert_same(count(prepared)[0], recount(prepared))
    assert saved_files(prepared) == [] and not list(prepared.folder.parent.glob(".writing-*"))


def test_only_the_first_tokens_of_a_large_text_are_counted(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(count_files, "MOST_TOKENS", 300)
    start, vocabulary = prepared.tokenizer.start, prepared.tokenizer.vocab_size
    assert_same(count(prepared)[0], NGrams(lay_out(prepared.split("train"), start, 300), vocabulary, 5))
