"""Label metrics: each document once and alone; hand-computed precision, recall and calibration."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.labelled_corpora import token_file
from helpers.tiny_models import tiny_model
from lilliput.data.batches import DocumentRows, LabelledWindowRows
from lilliput.evaluation.classification import measure_classification
from lilliput.evaluation.label_metrics import (
    LabelPredictions,
    calibration_figures,
    class_figures,
    leaked_figures,
    macro_f1,
    score_labels,
)
from lilliput.evaluation.multitask import measure_multitask

LENGTHS = [3, 24, 25, 50, 1, 7, 23, 0, 72]
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.95, 0.04, 0.01], [0.3, 0.6, 0.1], [0.35, 0.33, 0.32], [0.05, 0.05, 0.9]])

scipy_stats = pytest.importorskip("scipy.stats")


def predictions(labels: list[int]) -> LabelPredictions:
    return LabelPredictions(np.array(labels), np.log(PROBABILITIES))


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_encoder_scores_equal_those_of_each_document_alone(batch: int) -> None:
    model, file = tiny_model(task="classifier", classes=3, window=(8, None)), token_file(LENGTHS)
    scores = score_labels(model, file, 24, 16, batch)
    for number in range(file.documents):
        words = file.tokens[file.offsets[number] : file.offsets[number + 1] - 1][:24].astype(np.int64)
        ids = torch.from_numpy(words[None]) if len(words) else torch.tensor([[0]])
        with torch.inference_mode():
            expected = model(ids, None if len(words) else torch.tensor([[-1]]))[0].log_softmax(-1).numpy()
        np.testing.assert_allclose(scores[number], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", ["classifier", "both"])
def test_sums_equal_those_of_training(task: str) -> None:
    model, file = tiny_model(task=task, classes=3), token_file(LENGTHS)
    assert file.labels is not None
    found = LabelPredictions(np.asarray(file.labels, np.int64), score_labels(model, file, 24, 16, 4))
    if task == "both":
        _, expected = measure_multitask(model, LabelledWindowRows(file, 24, 16).in_order(3), 1.0)
    else:
        expected = measure_classification(model, DocumentRows(file, 24).in_order(3))
    assert found.figures()["label_loss"] == pytest.approx(expected.loss, rel=1e-12)
    assert found.confusion().tolist() == expected.confusion.tolist()
    assert found.figures()["accuracy"] == expected.accuracy


def test_precision_recall_and_f1() -> None:
    found = predictions([0, 1, 1, 0, 2])
    assert found.confusion().tolist() == [[2, 0, 0], [1, 1, 0], [0, 0, 1]]
    zero, one, two = class_figures(found.confusion(), ["a", "b", "c"])
    assert (zero["precision"], zero["recall"], zero["f1"]) == pytest.approx((2 / 3, 1.0, 0.8))
    assert (one["precision"], one["recall"], one["f1"]) == pytest.approx((1.0, 0.5, 2 / 3))
    assert two == {"name": "c", "documents": 1, "precision": 1.0, "recall": 1.0, "f1": 1.0}


def test_a_class_that_is_never_predicted_has_zeros() -> None:
    rows = class_figures(np.array([[0, 0], [3, 0]]), ["a", "b"])
    assert [(row["precision"], row["recall"], row["f1"]) for row in rows] == [(0.0, 0.0, 0.0)] * 2


def test_f1_equals_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    scores = np.log(generator.dirichlet(np.ones(4), 60))
    found = LabelPredictions(generator.integers(4, size=60), scores)
    expected = metrics.precision_recall_fscore_support(found.labels, found.predicted, zero_division=0)
    rows = class_figures(found.confusion(), list("abcd"))
    for name, values in zip(("precision", "recall", "f1", "documents"), expected, strict=True):
        assert [row[name] for row in rows] == pytest.approx(values.tolist(), rel=1e-12)


@pytest.mark.parametrize("classes", [3, 4])
def test_macro_f1_equals_scikit_learn(classes: int) -> None:
    """Also if a class is neither actual nor predicted; a class that is only predicted counts as 0."""
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    scores = np.log(np.append(generator.dirichlet(np.ones(3), 60), np.full((60, classes - 3), 1e-9), axis=1))
    found = LabelPredictions(generator.integers(2, size=60), scores)
    expected = metrics.f1_score(found.labels, found.predicted, average="macro", zero_division=0)
    assert macro_f1(found.confusion()) == pytest.approx(expected, rel=1e-12)


def test_calibration() -> None:
    """Confidences 0.35, 0.6, 0.7, 0.9 and 0.95; the last two share a bin. Documents 2 and 4 are wrong."""
    result = calibration_figures(predictions([0, 1, 1, 2, 2]))
    assert [(row["from"], row["documents"], row["right"]) for row in result["bins"]] == [
        (0.3, 1, 0.0), (0.6, 1, 1.0), (0.7, 1, 1.0), (0.9, 2, 0.5)
    ]  # fmt: skip
    assert result["bins"][-1]["sure"] == pytest.approx(0.925)
    assert result["error"] == pytest.approx((0.35 + 0.4 + 0.3 + 2 * 0.425) / 5)


def test_metrics_without_duplicates() -> None:
    found = predictions([0, 1, 1, 0, 2])
    result = leaked_figures(found, ["a", "b", "c"], np.array([False, True, False, False, True]))
    assert result is not None
    assert result["documents"] == 2 and result["without"]["documents"] == 3
    assert result["without"]["accuracy"] == 1.0 and found.figures()["accuracy"] == 0.8
    assert result["without"]["confusion"] == [[2, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert [row["documents"] for row in result["without"]["classes"]] == [2, 1, 0] and result["without"][
        "macro_f1"
    ] == 1.0
    assert result["without"]["calibration"]["error"] == pytest.approx((0.3 + 0.4 + 0.65) / 3)
    assert leaked_figures(found, ["a", "b", "c"], None) is None
    assert leaked_figures(found, ["a", "b", "c"], np.ones(5, bool)) == {"documents": 5, "without": None}


def test_the_interval_of_a_perfect_accuracy_has_a_width() -> None:
    found = LabelPredictions(np.zeros(300, np.int64), np.log(np.tile([0.9, 0.1], (300, 1)))).intervals()
    assert found is not None
    low, high = found["accuracy"]
    expected = scipy_stats.binomtest(300, 300).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert low < 0.99 and high == 1.0
