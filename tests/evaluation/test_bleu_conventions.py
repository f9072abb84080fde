"""BLEU of other reports, compared with hand-computed cases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from lilliput.evaluation.bleu_conventions import CONVENTIONS, convention_bleu, sentence_bleu

SAT = ["the", "cat", "sat", "on", "the", "mat"]


@pytest.mark.parametrize(
    ("hypothesis", "reference", "order", "score"),
    [
        # 5 of 6 words and 3 of 5 bigrams: the cat, on the, the mat
        ("the cat is on the mat", SAT, 1, 5 / 6),
        ("the cat is on the mat", SAT, 2, math.sqrt(5 / 6 * 3 / 5)),
        # 1 of 4 trigrams: on the mat; no 4-gram, which counts as 0.1 of 3
        ("the cat is on the mat", SAT, 3, (5 / 6 * 3 / 5 * 1 / 4) ** (1 / 3)),
        ("the cat is on the mat", SAT, 4, (5 / 6 * 3 / 5 * 1 / 4 * 0.1 / 3) ** (1 / 4)),
        # matches are clipped to the count in the reference: 2 of 7 (Papineni et al. 2002, section 2.1)
        ("the the the the the the the", SAT, 1, 2 / 7),
        # brevity penalty: 3 words for 6
        ("the cat sat", SAT, 1, math.exp(1 - 6 / 3)),
        # too short for higher orders: each counts as 0.1 of one
        ("cat", SAT, 4, math.exp(1 - 6) * (1 * 0.1 * 0.1 * 0.1) ** (1 / 4)),
        ("a dog ran", SAT, 4, 0.0),
        ("", SAT, 1, 0.0),
        ("the cat sat on the mat", SAT, 4, 1.0),
    ],
)
def test_hand_computed_cases(hypothesis: str, reference: list[str], order: int, score: float) -> None:
    assert sentence_bleu(hypothesis.split(), reference, order) == pytest.approx(score, rel=1e-13)


def test_without_smoothing_a_missing_order_scores_0() -> None:
    words = ["the", "cat", "is", "on", "the", "mat"]
    assert sentence_bleu(words, SAT, 4, epsilon=0.0) == 0.0
    assert sentence_bleu(words, SAT, 3, epsilon=0.0) == sentence_bleu(words, SAT, 3)


@given(st.lists(st.sampled_from("abcd"), min_size=4, max_size=20), st.lists(st.sampled_from("abcd"), min_size=1))
def test_equals_sacrebleu_with_the_same_smoothing(hypothesis: list[str], reference: list[str]) -> None:
    """Method 1 equals sacrebleu's `floor` for at least four words."""
    metric = BLEU(tokenize="none", smooth_method="floor", smooth_value=0.1, effective_order=True)
    expected = metric.sentence_score(" ".join(hypothesis), [" ".join(reference)]).score / 100
    assert sentence_bleu(hypothesis, reference, 4) == pytest.approx(expected, rel=1e-12)


def test_token_ids_can_be_scored() -> None:
    assert sentence_bleu([5, 7, 9], [5, 7, 8], 2) == pytest.approx(math.sqrt(2 / 3 * 1 / 2), rel=1e-13)


def test_values_have_their_definition() -> None:
    texts = [["a", "b"], ["c"]], [["a", "b"], ["d"]]
    for name, (meaning, _) in CONVENTIONS.items():
        found = convention_bleu(name, *texts)
        assert (found["1"], found["meaning"]) == (0.5, meaning)
    assert convention_bleu("words_unsmoothed", *texts)["4"] == 0.0
    assert convention_bleu("words", *texts)["4"] == pytest.approx(math.sqrt(0.1) / 2, rel=1e-13)
