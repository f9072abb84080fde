"""BLEU and chrF of generated texts with sacrebleu.

Owns: which sacrebleu scores are reported, with their signatures, and confidence intervals over texts from counts that
are computed once. Does not own: the formulas (sacrebleu), BLEU as other reports compute it (`bleu_conventions`), or
generating the texts (`overlap`).

All scores are between 0 and 100. sacrebleu's signature does not contain the order, so every score has its order as key.
BLEU-n is cumulative: the geometric mean of the precisions of orders 1 to n, times the brevity penalty. *single* is the
precision of order n alone, without smoothing and penalty. *sentence* is the mean of each text's own BLEU-n over the
orders that the text is long enough for, as in sacrebleu.sentence_bleu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lilliput.evaluation.intervals import Interval, bootstrap, ratio_interval

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

ORDERS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Counted:
    """The counts of a sacrebleu metric in each text.

    The score of any set of texts is a function of their summed counts: a bootstrap sums counts and does not tokenise
    texts again.
    """

    metric: Metric
    counts: NDArray[np.int64]  # (texts, counts)

    @property
    def signature(self) -> str:
        return str(self.metric.get_signature())

    @property
    def all(self) -> NDArray[np.int64]:
        return np.arange(len(self.counts))

    def score(self, texts: NDArray[np.int64]) -> float:
        """Return the corpus score of the texts with these indices."""
        return float(self.metric._compute_score_from_stats(self.counts[texts].sum(axis=0).tolist()).score)

    def each(self) -> NDArray[np.float64]:
        """Return the score of each text alone."""
        return np.array([self.score(text) for text in self.all[:, None]])

    def interval(self) -> Interval | None:
        """Return the 95% confidence interval; None for a single text."""
        return bootstrap(self.score, len(self.counts)) if len(self.counts) > 1 else None


def count_matches(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Counted:
    # As in sacrebleu's own significance tests; its public functions return these counts for BLEU only.
    return Counted(metric, np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.int64))


def count_bleu(hypotheses: Sequence[str], references: Sequence[str], order: int, alone: bool = False) -> Counted:
    """Count n-gram matches. `alone`: score each text by itself, over the orders that it is long enough for."""
    from sacrebleu.metrics.bleu import BLEU

    # force: a text that ends with " ." is generated, so sacrebleu's warning about tokenised input does not apply.
    return count_matches(BLEU(max_ngram_order=order, effective_order=alone, force=True), hypotheses, references)


def count_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Counted:
    from sacrebleu.metrics.chrf import CHRF

    return count_matches(CHRF(), hypotheses, references)


def bleu_figures(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """`{"1": .., "4": .., signature, interval: {"1": [low, high], ..}, single: {..}, sentence: {.., signature, interval}}`"""
    together = {order: count_bleu(hypotheses, references, order) for order in ORDERS}
    apart = {order: count_bleu(hypotheses, references, order, alone=True) for order in ORDERS}
    return {
        **{str(order): counted.score(counted.all) for order, counted in together.items()},
        "signature": together[max(ORDERS)].signature,
        "interval": {str(order): counted.interval() for order, counted in together.items()},
        "single": precision_figures(together[max(ORDERS)]),
        "sentence": mean_figures({str(order): counted.each() for order, counted in apart.items()})
        | {"signature": apart[max(ORDERS)].signature},
    }


def chrf_figures(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    counted = count_chrf(hypotheses, references)
    return {"score": counted.score(counted.all), "signature": counted.signature, "interval": counted.interval()}


def precision_figures(counted: Counted) -> dict[str, Any]:
    """Return the share of generated n-grams that occur in the references, clipped to their count there, in percent."""
    right, generated = np.hsplit(counted.counts[:, 2:], 2)  # after the two lengths: (texts, orders) each
    names = [str(order) for order in ORDERS]
    shares = 100 * right.sum(axis=0) / np.maximum(generated.sum(axis=0), 1)
    return {
        **dict(zip(names, shares.tolist(), strict=True)),
        "interval": {
            name: ratio_interval(100 * right[:, at], generated[:, at])
            if len(right) > 1 and generated[:, at].any()
            else None
            for at, name in enumerate(names)
        },
    }


def mean_figures(values: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Return the mean of each metric over texts, and its 95% confidence interval."""
    return {
        **{name: float(each.mean()) for name, each in values.items()},
        "interval": {
            name: ratio_interval(each, np.ones(len(each))) if len(each) > 1 else None for name, each in values.items()
        },
    }
