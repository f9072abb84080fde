"""BLEU and chrF equal sacrebleu's; intervals from counts equal those of rescored texts."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from lilliput.evaluation.bleu import ORDERS, bleu_figures, chrf_figures, count_bleu, count_chrf
from lilliput.evaluation.intervals import bootstrap, resample

VOCABULARY = ["the", "a", "fox", "Tom", "said,", '"Hi!"', "ran.", "don't", "3.5", "Zoë", "and", "sat", "<unk>"]


def draw_texts(count: int, seed: int, longest: int = 30) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(VOCABULARY, k=generator.randint(0, longest))) for _ in range(count)]


REFERENCES = [f"{text} and so." for text in draw_texts(50, seed=1)]
HYPOTHESES = draw_texts(50, seed=2)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return bleu_figures(HYPOTHESES, REFERENCES)


@pytest.mark.parametrize("order", ORDERS)
def test_equals_sacrebleu(found: dict[str, Any], order: int) -> None:
    name = str(order)
    metric = BLEU(max_ngram_order=order)
    whole = metric.corpus_score(HYPOTHESES, [REFERENCES])
    assert found[name] == whole.score > 0
    assert found["signature"] == str(metric.get_signature())
    assert found["single"][name] == 100 * whole.counts[order - 1] / whole.totals[order - 1]
    alone = BLEU(max_ngram_order=order, effective_order=True)
    sentences = [alone.sentence_score(one, [other]).score for one, other in zip(HYPOTHESES, REFERENCES, strict=True)]
    assert found["sentence"][name] == pytest.approx(sum(sentences) / 50, rel=1e-13)
    assert found["sentence"]["signature"] == str(alone.get_signature())


def test_order_four_equals_the_default_bleu(found: dict[str, Any]) -> None:
    assert found["4"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    pairs = zip(HYPOTHESES, REFERENCES, strict=True)
    sentences = [sacrebleu.sentence_bleu(one, [other]).score for one, other in pairs]
    assert found["sentence"]["4"] == pytest.approx(sum(sentences) / 50, rel=1e-13)
    assert count_bleu(HYPOTHESES, REFERENCES, 4, alone=True).each().tolist() == sentences


def test_chrf_equals_sacrebleu() -> None:
    found, metric = chrf_figures(HYPOTHESES, REFERENCES), CHRF()
    assert found["score"] == metric.corpus_score(HYPOTHESES, [REFERENCES]).score
    assert found["signature"] == str(metric.get_signature())


def test_identical_texts_score_100_and_disjoint_ones_0() -> None:
    texts = ["One day Tom met a fox.", 'He said, "Hi, and good day to you!"']
    same, other = bleu_figures(texts, texts), bleu_figures(["x y z w", "u v"], texts)
    for order in map(str, ORDERS):
        assert [same[order], same["single"][order], same["sentence"][order]] == pytest.approx([100] * 3, rel=1e-13)
        assert same["interval"][order] == pytest.approx((100, 100))
        assert other[order] == other["single"][order] == other["sentence"][order] == 0.0
    assert chrf_figures(texts, texts)["score"] == pytest.approx(100)


def test_single_orders_have_no_brevity_penalty() -> None:
    found = bleu_figures(["Tom met"], ["Tom met a fox at the river"])
    assert found["single"]["1"] == found["single"]["2"] == 100.0
    assert found["1"] == pytest.approx(100 * np.exp(1 - 7 / 2), rel=1e-13)
    assert found["single"]["3"] == 0.0 and found["single"]["interval"]["3"] is None


def test_empty_hypotheses_score_0() -> None:
    found = bleu_figures(["", ""], ["Tom met a fox", "and ran"])
    assert [found[str(order)] for order in ORDERS] == [0.0] * 4


def test_one_text_has_no_interval() -> None:
    found = bleu_figures(["a fox"], ["a fox"])
    assert {*found["interval"].values(), *found["sentence"]["interval"].values()} == {None}
    assert chrf_figures(["a fox"], ["a fox"])["interval"] is None


@pytest.mark.parametrize(
    "count", [count_chrf, lambda *texts: count_bleu(*texts, 4), lambda *texts: count_bleu(*texts, 2)]
)
def test_intervals_equal_those_of_rescored_texts(count) -> None:  # type: ignore[no-untyped-def]
    counted = count(HYPOTHESES, REFERENCES)
    for drawn in resample(50, seed=3, draws=5):
        texts = [HYPOTHESES[at] for at in drawn], [[REFERENCES[at] for at in drawn]]
        assert counted.score(drawn) == counted.metric.corpus_score(*texts).score
    low, high = counted.interval()
    assert low < counted.score(counted.all) < high
    assert (low, high) == bootstrap(counted.score, 50)


def test_the_bootstrap_is_fast() -> None:
    counted = count_bleu(HYPOTHESES, REFERENCES, 4)
    start = time.process_time()
    counted.interval()
    assert time.process_time() - start < 0.5
