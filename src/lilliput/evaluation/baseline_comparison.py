"""Comparison of a model with baselines on the same documents.

Owns: the baselines of each task, the paired difference to each, and the verdict. Does not own: the baselines
(`baselines`) or the model's own metrics (`language_metrics`, `label_metrics`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import TokenFile
from lilliput.errors import UserError
from lilliput.evaluation.baselines import (
    Baseline,
    compression_baselines,
    label_baselines,
    language_baselines,
    mixed_baseline,
)
from lilliput.evaluation.intervals import paired_bootstrap
from lilliput.evaluation.label_metrics import LabelPredictions
from lilliput.evaluation.language_metrics import BITS, PredictionScores

if TYPE_CHECKING:
    from lilliput.evaluation.evaluate import Evaluation


def language_rows(evaluation: Evaluation, scores: PredictionScores) -> list[dict[str, Any]]:
    """Return rows for n-grams, the mixture of the model and the best n-gram order, and compressors.

    A compressor encodes every word, a token model does not encode unknown words. The two are compared by
    `bits_per_byte_spelled`.
    """
    train, writer = training_data(evaluation), evaluation.writer
    assert writer.config.model.vocab_size is not None
    evaluation.report("counting n-grams", 0, None)
    grams = language_baselines(train, evaluation.file, writer.tokenizer.start, writer.config.model.vocab_size)
    mixed = [mixed_baseline(scores.scored.nats, one, evaluation.file) for one in grams if one.chosen]
    evaluation.report("compressing", 0, None)
    found = [*grams, *mixed, *compression_baselines(evaluation.train_texts, evaluation.texts)]
    # The cost of spelling unknown words is the same for every token model.
    spelling = float((scores.spelled - scores.scored.nats).sum()) / BITS / max(1, evaluation.file.bytes)
    rows = []
    for one in found:
        row, bits = as_row(one), one.figures["bits_per_byte"]
        row["bits_per_byte_spelled"] = bits if bits is None or one.nats is None else bits + spelling
        rows.append(row | with_verdict(None if one.no_gain else loss_difference(evaluation, scores, one)))
    return rows


def label_rows(evaluation: Evaluation, labelled: LabelPredictions) -> list[dict[str, Any]]:
    """Return rows for the most common label and for linear classifiers of words."""
    train, names = training_data(evaluation), evaluation.labels
    assert train.labels is not None and evaluation.file.labels is not None and names is not None
    evaluation.report("counting words", 0, None)
    train_labels, labels = ([names[number] for number in numbers] for numbers in (train.labels, evaluation.file.labels))
    found = label_baselines(evaluation.train_texts, train_labels, evaluation.texts, labels)
    return [as_row(one) | with_verdict(accuracy_difference(labelled, one)) for one in found]


def training_data(evaluation: Evaluation) -> TokenFile:
    if evaluation.train is None:
        raise UserError(
            "baselines require the training data, which is not available",
            fix="remove baselines",
            code="data.source",
            setting="baselines",
        )
    return evaluation.train


def as_row(one: Baseline) -> dict[str, Any]:
    return {"name": one.name, "chosen": one.chosen, "no_gain": one.no_gain, **one.figures}


def with_verdict(difference: dict[str, Any] | None) -> dict[str, Any]:
    """Add `verdict`: "loses", "ties" (the 95% confidence interval includes 0) or "ahead"; None without an interval."""
    if difference is None:
        verdict = None
    elif difference["low"] <= 0.0 <= difference["high"]:
        verdict = "ties"
    else:
        verdict = "ahead" if (difference["high"] < 0.0) == (difference["figure"] == "loss") else "loses"
    return {"difference": difference, "verdict": verdict}


def loss_difference(evaluation: Evaluation, scores: PredictionScores, other: Baseline) -> dict[str, Any] | None:
    """Return the model's loss minus the baseline's, over the same resampled documents or blocks.

    None if the baseline does not score tokens, or if there is only one block.
    """
    if other.nats is None:
        return None
    units, _ = scores.units(evaluation.writer.config.model.context)
    theirs, _ = scores.with_nats(other.nats).units(evaluation.writer.config.model.context)

    def loss(nats: NDArray[np.float64], drawn: NDArray[np.int64]) -> float:
        return float(nats[drawn].sum() / units.predictions[drawn].sum())

    found = paired_bootstrap(
        lambda drawn: loss(units.nats, drawn), lambda drawn: loss(theirs.nats, drawn), len(units.nats)
    )
    return None if found is None else {"figure": "loss", **found._asdict()}


def accuracy_difference(labelled: LabelPredictions, other: Baseline) -> dict[str, Any] | None:
    """Return the model's accuracy minus the baseline's, over the same resampled documents.

    None if the baseline predicts no labels, or if there is only one document.
    """
    if other.right is None:
        return None
    ours, theirs = labelled.right, other.right
    found = paired_bootstrap(
        lambda drawn: float(ours[drawn].mean()), lambda drawn: float(theirs[drawn].mean()), len(ours)
    )
    return None if found is None else {"figure": "accuracy", **found._asdict()}
