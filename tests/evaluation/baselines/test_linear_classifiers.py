"""Linear classifiers of words: known accuracies on the speeches, and texts without information."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from helpers.labelled_corpora import SPEAKERS
from helpers.shared_data import DATA, needs_data
from helpers.user_errors import refused
from lilliput.evaluation.baselines.linear_classifiers import most_common_label, predict_by_naive_bayes, predict_by_tfidf

Predict = Callable[[list[str], list[str], list[str]], list[str] | None]


def labelled_texts(times: int) -> tuple[list[str], list[str]]:
    pairs = [(f"the {words} {number}", name) for number in range(times) for name, words in SPEAKERS.items()]
    return [text for text, _ in pairs], [label for _, label in pairs]


both_classifiers = pytest.mark.parametrize("predict", [predict_by_tfidf, predict_by_naive_bayes])


@both_classifiers
@pytest.mark.parametrize("times", [1, 2, 6], ids=["too few to cross-validate", "two folds", "five folds"])
def test_labels_are_predicted_from_words(times: int, predict: Predict) -> None:
    texts, labels = labelled_texts(times)
    evaluated = ["clover and hive", "salmon in the river", "a mouse, the moon", "Wax, WAX!"]
    assert predict(texts, labels, evaluated) == ["bee", "bear", "owl", "bee"]


def test_without_labels_or_words() -> None:
    assert predict_by_tfidf(["one text", "another"], ["bee", "bee"], ["text"]) is None
    assert predict_by_naive_bayes(["one text", "another"], ["bee", "bee"], ["text"]) is None
    assert predict_by_naive_bayes(["", " "], ["bee", "owl"], ["!"]) is None
    assert predict_by_naive_bayes(["!", "?"], ["bee", "owl"], ["?", "!"]) == ["owl", "bee"]
    assert predict_by_tfidf(["!", "?", ""], ["bee", "owl", "owl"], ["!"]) is None


def test_the_most_common_label() -> None:
    assert most_common_label(["owl", "bee", "owl"]) == "owl"
    assert most_common_label(["owl", "bee", "owl", "bee"]) == "bee"


@both_classifiers
@pytest.mark.parametrize("missing", ["feature_extraction.text", "pipeline"])
def test_without_scikit_learn(missing: str, predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"sklearn.{missing}", None)
    error = refused(lambda: predict(["a bee", "an owl"], ["bee", "owl"], ["bee"]))
    assert error.code == "package.missing" and "lilliput[baselines]" in (error.fix or "")


@needs_data
def test_accuracy_on_the_speeches() -> None:
    """Three quarters of the test set are also in training; measured with and without these in training."""

    def read(name: str) -> tuple[list[str], list[str]]:
        lines = (DATA / "speeches" / "tokenised" / f"{name}_CLS.tok.txt").read_text("utf-8").splitlines()
        pairs = [line.split("\t", 1) for line in lines]
        return [text for _, text in pairs], [label for label, _ in pairs]

    (texts, labels), (evaluated, right) = read("train"), read("test")
    known = set(evaluated)
    new = [index for index, text in enumerate(texts) if text not in known]
    for some, linear, bayes in ((range(len(texts)), 671, 683), (new, 468, 501)):
        learned = [texts[at] for at in some], [labels[at] for at in some]
        by_words = predict_by_tfidf(*learned, evaluated, strengths=[100.0])
        by_bayes = predict_by_naive_bayes(*learned, evaluated, smoothings=[0.1])
        for predicted, expected in ((by_words, linear), (by_bayes, bayes)):
            assert predicted is not None
            found = sum(one == other for one, other in zip(predicted, right, strict=True))
            assert abs(found - expected) <= 1  # of 750; solvers may break near-ties differently
