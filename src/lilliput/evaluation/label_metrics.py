"""Metrics of a classifier: accuracy, precision, recall, F1, confusion matrix and calibration.

Owns: the probabilities of every label of every document, and the metrics, with and without duplicates of training
documents. Does not own: loss and confusion during training (`classification`, `multitask`), or intervals (`intervals`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lilliput.data.batches import IGNORED, DocumentRows, LabelledWindowRows
from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.progress import Report, silent
from lilliput.errors import UserError
from lilliput.evaluation.intervals import proportion_interval, ratio_interval
from lilliput.evaluation.language_metrics import Columns, common_columns
from lilliput.model.classifier_loss import classifier_logits, multitask_loss
from lilliput.model.transformer import Transformer, evaluating

if TYPE_CHECKING:
    from lilliput.evaluation.evaluate import Evaluation

BINS = 10  # of confidence, in the calibration table

Floats = NDArray[np.float64]


@torch.inference_mode()
def score_labels(
    model: Transformer, file: TokenFile, context: int, start: int, batch: int = 32, report: Report = silent
) -> Floats:
    """Return (documents, classes) log-probabilities in file order, from the first `context` tokens of each document."""
    classes = model.settings.classes
    assert classes is not None
    logits, done = np.full((file.documents, classes), np.nan), 0
    windows = LabelledWindowRows(file, context, start) if model.causal else None
    with evaluating(model):
        if windows is None:
            for found in DocumentRows(file, context).in_order(batch):
                logits[found.rows] = classifier_logits(model, found).double().cpu().numpy()
                done += len(found.rows)
                report("reading", done * file.bytes // file.documents, file.bytes)
        else:
            first = np.flatnonzero(windows.labels != IGNORED)  # row of each document's first window
            document = np.searchsorted(windows.offsets, windows.starts + 1, side="right") - 1
            for some in windows.cut(windows.by_length(first), batch):
                logits[document[some.rows]] = multitask_loss(model, some).logits.double().cpu().numpy()
                done += len(some.rows)
                report("reading", done * file.bytes // file.documents, file.bytes)
    top = logits.max(axis=1, keepdims=True)
    scores: Floats = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return scores


@dataclass(frozen=True)
class LabelPredictions:
    """Actual labels of documents and predicted log-probabilities."""

    labels: NDArray[np.int64]  # (documents,)
    scores: Floats  # (documents, classes) log-probabilities

    @property
    def predicted(self) -> NDArray[np.int64]:
        """(documents,) the most likely label."""
        found: NDArray[np.int64] = self.scores.argmax(axis=1)
        return found

    @property
    def nats(self) -> Floats:
        return -self.scores[np.arange(len(self.labels)), self.labels]

    @property
    def right(self) -> NDArray[np.bool_]:
        return np.equal(self.predicted, self.labels)

    @property
    def confidence(self) -> Floats:
        """(documents,) the probability of the predicted label."""
        found: Floats = np.exp(self.scores.max(axis=1))
        return found

    def only(self, which: NDArray[np.bool_]) -> LabelPredictions:
        return LabelPredictions(self.labels[which], self.scores[which])

    def confusion(self) -> NDArray[np.int64]:
        """Return (classes, classes): number of documents by actual label (row) and predicted label (column)."""
        classes = self.scores.shape[1]
        return np.bincount(self.labels * classes + self.predicted, minlength=classes**2).reshape(classes, classes)

    def figures(self) -> dict[str, Any]:
        return {"accuracy": float(self.right.mean()), "label_loss": float(self.nats.mean())}

    def intervals(self) -> dict[str, list[float]] | None:
        if len(self.labels) < 2:
            return None
        return {
            "accuracy": list(proportion_interval(int(self.right.sum()), len(self.right))),
            "label_loss": list(ratio_interval(self.nats, np.ones(len(self.nats)))),
        }


def predict_labels(evaluation: Evaluation, batch: int) -> LabelPredictions:
    writer, file = evaluation.writer, evaluation.file
    if file.labels is None:
        raise UserError(
            f"the documents of {evaluation.name} have no labels",
            fix="use a file whose lines are label TAB text",
            code="data.label",
            setting="on",
        )
    context, start = writer.config.model.context, writer.tokenizer.start
    scores = score_labels(writer.model, file, context, start, batch, evaluation.report)
    return LabelPredictions(np.asarray(file.labels, np.int64), scores)


def evaluate_labels(evaluation: Evaluation, found: LabelPredictions) -> tuple[dict[str, Any], Columns]:
    """Return the metrics of a classifier, and its prediction for each document as columns."""
    names = evaluation.labels
    assert names is not None
    figures = label_figures(found, names) | {"labels": names, "leaked": leaked_figures(found, names, evaluation.leaked)}
    columns: Columns = {
        **common_columns(evaluation),
        "said": [names[number] for number in found.predicted],
        "probability": found.confidence.tolist(),
        "label_nats": found.nats.tolist(),
    }
    return figures, columns


def label_figures(found: LabelPredictions, names: list[str]) -> dict[str, Any]:
    """Return all metrics of these predictions."""
    confusion = found.confusion()
    return found.figures() | {
        "interval": found.intervals(),
        "confusion": confusion.tolist(),
        "classes": class_figures(confusion, names),
        "macro_f1": macro_f1(confusion),
        "calibration": calibration_figures(found),
    }


def class_figures(confusion: NDArray[np.int64], names: list[str]) -> list[dict[str, Any]]:
    """Return precision, recall and F1 of each class; 0 where a denominator is 0."""
    rows = []
    for number, name in enumerate(names):
        right, predicted, own = confusion[number, number], confusion[:, number].sum(), confusion[number].sum()
        rows.append(
            {
                "name": name,
                "documents": int(own),
                "precision": float(right / max(1, predicted)),
                "recall": float(right / max(1, own)),
                "f1": float(2 * right / max(1, predicted + own)),
            }
        )
    return rows


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Return the mean F1 over classes that are the actual or predicted label of at least one document."""
    each = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float((2 * confusion.diagonal()[each > 0] / each[each > 0]).mean())


def calibration_figures(found: LabelPredictions) -> dict[str, Any]:
    """Return the expected calibration error (Guo et al. 2017), and the table it is computed from.

    Documents are grouped by confidence in bins of 0.1. The error is the mean gap between confidence ("sure") and
    accuracy ("right") of the bins, weighted by documents.
    """
    confidence, right = found.confidence, found.right
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    rows = []
    for number in range(BINS):
        here = bins == number
        if here.any():
            means = {"sure": float(confidence[here].mean()), "right": float(right[here].mean())}
            rows.append({"from": number / BINS, "to": (number + 1) / BINS, "documents": int(here.sum()), **means})
    gaps = [row["documents"] * abs(row["sure"] - row["right"]) for row in rows]
    return {"error": float(sum(gaps) / len(confidence)), "bins": rows}


def leaked_figures(
    found: LabelPredictions, names: list[str], leaked: NDArray[np.bool_] | None
) -> dict[str, Any] | None:
    """Return the number of documents that are also in training, and all metrics without them; None if unknown."""
    if leaked is None:
        return None
    without = None
    if leaked.any() and not leaked.all():
        rest = found.only(~leaked)
        without = {"documents": len(rest.labels), **label_figures(rest, names)}
    return {"documents": int(leaked.sum()), "without": without}
