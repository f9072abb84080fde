"""Statistics of a split: independent of the batches, in bounded memory."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.prepare import corpus_statistics as figures
from lilliput.data.prepare.corpus_statistics import LONGEST, CorpusStatistics, most_frequent, truncation


def add(found: CorpusStatistics, lengths: list[int], words: list[str]) -> None:
    found.add(np.array(lengths), np.array(lengths) * 2, len(words), len(words), Counter(words))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 29))
def test_counts_do_not_depend_on_batches(lengths: list[int], cut: int) -> None:
    words = [f"word {length}" for length in lengths]
    whole, parts = CorpusStatistics(), CorpusStatistics()
    add(whole, lengths, words)
    for start in range(0, len(lengths), cut):
        add(parts, lengths[start : start + cut], words[start : start + cut])
    assert whole == parts
    assert whole.longest == sorted(((n, i) for i, n in enumerate(lengths)), key=lambda one: (-one[0], one[1]))[:LONGEST]
    assert CorpusStatistics.from_dict(json.loads(json.dumps(parts.to_dict()))) == whole


def test_unknown_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_WORDS", 10)
    found = CorpusStatistics()
    for number in range(100):
        add(found, [1], ["often", "also", "also", f"once {number}"])
        assert len(found.unknown_words) <= 10
    assert most_frequent(found.unknown_words, 2) == [("also", 200), ("often", 100)]


def test_equally_frequent_words_have_an_order() -> None:
    assert (
        most_frequent({"b": 1, "c": 2, "a": 1}, 2) == most_frequent({"a": 1, "b": 1, "c": 2}, 2) == [("c", 2), ("a", 1)]
    )


def test_truncation() -> None:
    lengths = {"train": np.array([3, 4, 5, 12])}
    assert truncation(lengths, 4) == {"context": 4, "documents": {"train": 0.5}, "tokens": {"train": 9 / 24}}
