"""Metrics of the mixture of a model with the n-grams of its training split, and of these n-grams alone.

Owns: the block `mixture` of an evaluation, and the choice of documents on which the weight is fitted. Does not own: the
n-grams of a run and fitting (`decoding.ngram_mixture`), the arithmetic of metrics (`language_metrics`), or the baselines,
which choose the order of the n-grams themselves (`baselines`).

No document is evaluated with a weight that was fitted on it. The weight is fitted on the documents of the validation split
that are not evaluated. If all of them are evaluated, each half of the evaluated documents has the weight that is fitted on
the other half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lilliput.decoding.mixture_weights import cross_mix, mix
from lilliput.decoding.ngram_mixture import ORDER
from lilliput.evaluation.language_metrics import Floats, PredictionScores
from lilliput.settings.tree import MixShare

if TYPE_CHECKING:
    from lilliput.evaluation.evaluate import Evaluation

FIGURES = ("loss", "perplexity", "bits_per_byte")


class WeightedNats(NamedTuple):
    """Nats of the mixture, and the share of the n-grams; of halves, the mean over all predictions."""

    nats: Floats
    weight: float
    weight_from: str  # given, validation or halves
    weight_documents: int | None  # of the validation split on which it was fitted


def evaluate_mixture(
    evaluation: Evaluation, scores: PredictionScores, share: MixShare, stride: int | None, batch: int
) -> dict[str, Any]:
    """Return the metrics of the mixture and of the n-grams alone. `scores` are those of the model."""
    ngrams = evaluation.writer.ngrams
    alone = ngrams.nats(evaluation.file)
    found = mix_nats(evaluation, scores, alone, share, stride, batch)
    return {
        **{name: value for name, value in found._asdict().items() if name != "nats"},
        "ngram_order": ORDER,
        "ngram_tokens": ngrams.tokens,
        **figures(evaluation, scores, found.nats),
        "ngram": figures(evaluation, scores, alone),
    }


def mix_nats(
    evaluation: Evaluation, scores: PredictionScores, alone: Floats, share: MixShare, stride: int | None, batch: int
) -> WeightedNats:
    ngrams, net = evaluation.writer.ngrams, scores.scored.nats
    if share != "auto":
        return WeightedNats(mix(net, alone, 1 - share), share, "given", None)
    prepared, _ = ngrams.open()
    validation = prepared.split("validation")
    others = np.flatnonzero(~np.isin(prepared.hashes("validation"), evaluation.documents.hashes))
    rest = validation.select(others)
    if rest.documents == validation.documents:
        weight = ngrams.fit(stride, batch, evaluation.report)
    elif rest.predictions:
        weight = ngrams.fit_on(rest, stride, batch, evaluation.report)
    else:
        halves = cross_mix(net, alone, scores.scored.document)
        return WeightedNats(halves.nats, 1 - halves.weight, "halves", None)
    return WeightedNats(mix(net, alone, 1 - weight), weight, "validation", rest.documents)


def figures(evaluation: Evaluation, scores: PredictionScores, nats: Floats) -> dict[str, Any]:
    """Return the metrics of other nats of the same predictions, with their intervals."""
    own = scores.with_nats(nats)
    whole, (units, _) = own.by_document().figures(), own.units(evaluation.writer.config.model.context)
    intervals = units.intervals()
    found: dict[str, Any] = {name: whole[name] for name in FIGURES}
    return found | {"interval": intervals and {name: intervals[name] for name in FIGURES}}
