"""Repetition within texts and between them: properties, hand-computed cases, and sacrebleu with many references."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from lilliput.evaluation.diversity import distinct, diversity_figures, repetition, self_bleu, split_words

WORDS = st.lists(st.sampled_from("abcde"), max_size=12)
TEXTS = st.lists(WORDS, min_size=1, max_size=6)
ORDERS = st.integers(1, 4)


@given(TEXTS, ORDERS)
def test_distinct_does_not_depend_on_the_order_of_texts(texts: list[list[str]], n: int) -> None:
    found = distinct(texts, n)
    assert found == distinct(texts[::-1], n)
    ngrams = [tuple(words[at : at + n]) for words in texts for at in range(len(words) - n + 1)]
    assert found == (len({*ngrams}) / len(ngrams) if ngrams else None)
    assert found is None or 0 < found <= 1


@given(TEXTS, ORDERS)
def test_duplicated_texts_halve_distinct(texts: list[list[str]], n: int) -> None:
    found, twice = distinct(texts, n), distinct(texts * 2, n)
    assert twice == (None if found is None else pytest.approx(found / 2))
    assert repetition(texts * 2, n) == (None if found is None else pytest.approx(repetition(texts, n)))


@given(WORDS, ORDERS)
def test_distinct_and_repetition_of_one_text_are_complements(words: list[str], n: int) -> None:
    found = distinct([words], n)
    assert repetition([words], n) == (None if found is None else pytest.approx(1 - found))


@given(st.lists(st.permutations("abcdefgh"), min_size=1, max_size=5), ORDERS)
def test_unique_words_have_no_repetition(texts: list[list[str]], n: int) -> None:
    assert repetition(texts, n) == 0.0


def test_hand_computed_cases() -> None:
    texts = [["a", "b", "a", "b"], ["a", "b", "c"], []]
    assert distinct(texts, 1) == 3 / 7
    assert distinct(texts, 2) == 3 / 5  # ab ba bc of ab ba ab ab bc
    assert repetition(texts, 1) == pytest.approx((1 / 2 + 0) / 2)
    assert repetition(texts, 2) == pytest.approx((1 / 3 + 0) / 2)
    assert distinct(texts, 5) is repetition(texts, 5) is None


@pytest.mark.parametrize("seed", range(4))
def test_self_bleu_equals_sacrebleu_with_all_others_as_references(seed: int) -> None:
    generator = random.Random(seed)
    texts = [" ".join(generator.choices("abcde", k=generator.randint(0, 25))) for _ in range(12)]
    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(text, texts[:at] + texts[at + 1 :]).score for at, text in enumerate(texts)]
    assert self_bleu(split_words(texts)) == pytest.approx(sum(scores) / 12, rel=1e-12)


def test_self_bleu_of_one_text_and_of_identical_texts() -> None:
    words = ["the", "cat", "sat", "on", "the", "mat"]
    assert self_bleu([words]) is None
    assert self_bleu([words, words, words]) == pytest.approx(100)
    assert self_bleu([words, ["a", "dog"]]) == 0.0


def test_words_equal_those_of_bleu() -> None:
    text = 'Tom said, "Don\'t!" for 3.5 dollars.\n'
    assert split_words([text]) == [BLEU().tokenizer(text.rstrip()).split()]
    found = diversity_figures([text, ""])
    assert found["words"] == len(split_words([text])[0]) / 2
    assert found["distinct"].keys() == found["repetition"].keys() == {"1", "2", "3", "4"}
