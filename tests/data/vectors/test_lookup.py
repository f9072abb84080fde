"""Lookup of vectors: the order of forms, the statistics, and words of every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial

import numpy as np
import pytest

from lilliput.data.progress import Report, silent
from lilliput.data.tokenizers import make_tokenizer, train_bpe
from lilliput.data.vectors.lookup import (
    NONE,
    count_tokens,
    coverage,
    forms,
    look_up,
    most_frequent_uncovered,
    neighbours,
    words_of,
)
from lilliput.settings.tree import TokenizerSettings, VectorSettings

ALL, EXACT = VectorSettings(), VectorSettings(case=False, apostrophes=False)


class InMemory:
    """A vector file in memory, possibly with repeated words; composes words that begin with z."""

    kind, width, notes = "memory", 2, list[str]()

    def __init__(self, *rows: tuple[str, float, float]) -> None:
        self.content, self.rows = rows, len(rows)
        self.parsed: list[str] = []

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[tuple[bytes, Callable[[], np.ndarray]]]:
        for word, *row in self.content:
            if word.encode() in wanted:
                yield word.encode(), partial(self.parse, word, row)

    def parse(self, word: str, row: list[float]) -> np.ndarray:
        self.parsed.append(word)
        return np.array(row, np.float32)

    def compose(self, word: str) -> np.ndarray | None:
        return np.array([7, 7], np.float32) if word.startswith("z") else None


@pytest.mark.parametrize(
    ("word", "settings", "expected"),
    [
        ("Bear", EXACT, ["Bear"]),
        ("Bear", VectorSettings(apostrophes=False), ["Bear", "bear"]),
        ("bear", VectorSettings(apostrophes=False), ["bear", "Bear"]),
        ("BEAR", VectorSettings(apostrophes=False), ["BEAR", "bear", "Bear"]),
        ("don’t", VectorSettings(case=False), ["don’t", "don't"]),
        ("Tim’s", VectorSettings(case=False), ["Tim’s", "Tim's", "Tim"]),
        ("'tis", VectorSettings(case=False), ["'tis", "tis"]),
        ("Tim’s", ALL, ["Tim’s", "tim’s", "Tim's", "tim's", "Tim", "tim"]),
        ("'s", ALL, ["'s"]),
        ("'", ALL, ["'"]),
    ],
)
def test_forms_in_their_order(word: str, settings: VectorSettings, expected: list[str]) -> None:
    found = list(forms(word, settings))
    assert [form for _, form in found] == expected
    assert [order for order, _ in found] == sorted({order for order, _ in found})


def test_the_best_form_is_used_in_any_order() -> None:
    words = ["Bear", "bear", None, "Tim’s", "owl", "zebra", "Zoo"]
    file = InMemory(("tim", 5, 5), ("bear", 1, 1), ("Tim", 4, 4), ("Bear", 2, 2), ("Bear", 9, 9), ("zoo", 3, 3))
    found = look_up(file, words, ALL, silent)
    assert found.table.tolist() == [[2, 2], [1, 1], [0, 0], [4, 4], [0, 0], [7, 7], [3, 3]]
    assert found.covered.tolist() == [True, True, False, True, False, True, True]
    assert [int(order) // 16 if order != NONE else None for order in found.order] == [0, 0, None, 2, None, 3, 1]
    assert file.parsed == ["tim", "bear", "Tim", "Bear", "zoo"]  # the second Bear is not parsed

    plain = look_up(file, words, EXACT, silent)
    assert plain.covered.tolist() == [True, True, False, False, False, True, False]


def test_coverage_is_counted_by_type_and_by_token() -> None:
    words = ["Bear", "bear", None, "Tim’s", "owl", "zebra", "Zoo", None]
    counts = np.array([10, 20, 1000, 5, 40, 1, 4, 20])
    found = look_up(InMemory(("Bear", 2, 2), ("tim", 1, 1), ("zoo", 3, 3)), words, ALL, silent)
    report = coverage(found, words, counts, unknown=7)
    assert (report["words"], report["occurrences"]) == (
        6,
        100,
    )  # unknown words count as words of the text, separators do not
    assert report["coverage"] == {
        "exact": {"types": 1 / 6, "tokens": 0.10},
        "case": {"types": 3 / 6, "tokens": 0.34},
        "apostrophes": {"types": 4 / 6, "tokens": 0.39},
        "subword": {"types": 5 / 6, "tokens": 0.40},
    }
    assert most_frequent_uncovered(found, words, counts) == [["owl", 40]]


def test_neighbours_are_the_nearest_by_cosine() -> None:
    words = ["garden", "Garden", "lantern", "window", "of", None, "castle"]
    file = InMemory(("garden", 1, 0), ("lantern", 0.9, 0.1), ("window", 0, 2), ("of", 1, 0.01), ("castle", -1, 0))
    found = look_up(file, words, ALL, silent)
    report = neighbours(found, words, np.array([9, 8, 7, 6, 100, 500, 1]))
    assert list(report) == ["garden", "lantern", "window", "castle"]  # frequent, long enough, without repetition
    assert [name for name, _ in report["garden"]] == ["of", "lantern", "window", "castle"]
    assert report["garden"][1][1] == pytest.approx(0.9 / np.hypot(0.9, 0.1), abs=1e-4)


def test_tokens_are_counted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(0, 9, 1000).astype(np.uint16)
    monkeypatch.setattr("lilliput.data.vectors.lookup.COUNTED", 64)
    assert count_tokens(tokens, 11).tolist() == np.bincount(tokens, minlength=11).tolist()


def test_words_of_a_word_tokenizer() -> None:
    tokenizer = make_tokenizer(TokenizerSettings(kind="word"), ["The bear saw the sea."])
    words = words_of(tokenizer)
    assert words[:4] == [None] * 4  # <sos> <eos> <pad> <unk>
    assert sorted(filter(None, words)) == [".", "The", "bear", "saw", "sea", "the"]


def test_words_of_subwords() -> None:
    tokenizer = train_bpe(["the bear saw the sea the bear saw the sea café café"] * 3, 300)
    words = words_of(tokenizer)
    pieces = {tokenizer.token(token_id): words[token_id] for token_id in range(tokenizer.vocab_size)}
    assert pieces[" the"] == "the"
    assert pieces[" "] is None
    assert words[0xC3] is None or len(words[0xC3]) == 1
    assert words[tokenizer.end] is None
    assert not any(word and "<0x" in word for word in words)  # an incomplete character is not a word
