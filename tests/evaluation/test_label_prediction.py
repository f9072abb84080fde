"""Predicted labels: the same probabilities as in an evaluation, and reading files with and without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers.evaluated_runs import judged_runs
from helpers.user_errors import refused
from lilliput.data.corpora.documents import Document
from lilliput.evaluation.evaluate import evaluate, open_evaluation
from lilliput.evaluation.label_metrics import predict_labels
from lilliput.evaluation.label_prediction import find_classifier, predict, read_documents
from lilliput.settings.tree import DataSettings

TASKS = ["classifier", "both"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("batch", [1, 5, 32])
def test_probabilities_are_those_of_an_evaluation(task: str, batch: int) -> None:
    run = judged_runs() / "runs" / task
    evaluation = open_evaluation(run, str(judged_runs() / "heard.tsv"), "cpu")
    expected = predict_labels(evaluation, 32)
    found = predict(run, evaluation.texts, "cpu", batch)
    assert found["labels"] == evaluation.labels and found["task"] == task and found["run"] == task
    assert len(found["predictions"]) == len(expected.labels) == 11
    for one, scores, number in zip(found["predictions"], expected.scores, expected.predicted, strict=True):
        assert list(one["probabilities"]) == found["labels"]
        assert list(one["probabilities"].values()) == pytest.approx(np.exp(scores).tolist(), abs=1e-12)
        assert one["label"] == found["labels"][number]
        assert one["probability"] == max(one["probabilities"].values())
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_only_the_context_of_a_long_text_is_read(task: str) -> None:
    run = judged_runs() / "runs" / task
    context = find_classifier(run).config.model.context
    room = context - (task == "both")
    fits, cut, longer = "bee " * room, "bee " * room + "owl", "bee " * room + "moon " * 90
    one, two, three = predict(run, [fits, cut, longer], "cpu")["predictions"]
    assert [each["truncated"] for each in (one, two, three)] == [False, True, True]
    assert [each["tokens"] for each in (one, two, three)] == [room, room + 1, room + 90]
    assert two["probabilities"] == pytest.approx(three["probabilities"], abs=1e-12)


def test_files_with_and_without_labels(tmp_path: Path) -> None:
    labels, data = ["cat", "dog"], DataSettings(labelled=True)
    for name, content, expected in [
        ("a.txt", "one\r\n\r\ntwo\ttabs\n", [("one", None), ("two\ttabs", None)]),
        ("b.txt", "cat\tone\ndog\ttwo\n", [("one", "cat"), ("two", "dog")]),
        ("c.txt", "cat\tone\nowl\ttwo\n", [("cat\tone", None), ("owl\ttwo", None)]),
        ("d.txt", "cat\tone\ntwo\n", [("cat\tone", None), ("two", None)]),
        ("e.tsv", "cat\tone\ndog\ttwo\n", [("one", "cat"), ("two", "dog")]),
        ("f.tsv", "one\ntwo\n", [("one", None), ("two", None)]),
        ("g.csv", "text,other\none,1\ntwo,2\n", [("one", None), ("two", None)]),
        ("h.csv", "text,label\none,dog\n", [("one", "dog")]),
        ("i.jsonl", '{"text": "one"}\n', [("one", None)]),
        ("notes.md", "one\ntwo", [("one", None), ("two", None)]),
    ]:
        path = tmp_path / name
        path.write_bytes(content.encode())
        assert read_documents(path, data, labels) == [Document(*pair) for pair in expected], name
    error = refused(lambda: read_documents(tmp_path / "gone.txt", data, labels))
    assert error.code == "file.missing"


def test_errors() -> None:
    for call in (find_classifier, lambda run: predict(run, "a text")):
        error = refused(lambda call=call: call(judged_runs() / "runs" / "words"))  # type: ignore[misc]
        assert (error.code, error.setting) == ("model.task", "model.task")
    error = refused(lambda: predict(judged_runs() / "runs" / "classifier", ["a", " \n"]))
    assert error.code == "data.empty"
    assert predict(judged_runs() / "runs" / "classifier", [])["predictions"] == []


def test_accuracy_of_predictions_is_that_of_evaluate() -> None:
    run, path = judged_runs() / "runs" / "classifier", judged_runs() / "heard.tsv"
    found = find_classifier(run)
    documents = read_documents(path, found.config.data, found.labels)
    predictions = predict(found, [document.text for document in documents])["predictions"]
    right = [one["label"] == document.label for one, document in zip(predictions, documents, strict=True)]
    assert sum(right) / len(right) == evaluate(run, on=str(path))["accuracy"]
