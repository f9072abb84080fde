"""Accuracy of a classifier: every document is evaluated once, independently of padding and batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers.labelled_corpora import token_file
from helpers.tiny_models import tiny_model
from lilliput.data.batches import DocumentRows
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.classification import Classification, measure_classification
from lilliput.model.classifier_loss import classifier_logits, classifier_loss
from lilliput.model.transformer import Transformer

LENGTHS = [3, 24, 25, 50, 1, 7, 23, 0, 72]


def make_file(lengths: list[int] = LENGTHS, seed: int = 0) -> TokenFile:
    return token_file(lengths, below=16, seed=seed)


def make_model(positions: str = "rotary", window: tuple[int | None, ...] | None = (8, None)) -> Transformer:
    return tiny_model(task="classifier", classes=3, classifier_hidden=10, positions=positions, window=window)


def by_hand(model: Transformer, file: TokenFile) -> tuple[float, np.ndarray]:
    """Evaluate each document alone, without padding: its first 24 tokens, without start and end."""
    nats, confusion = 0.0, np.zeros((3, 3), np.int64)
    assert file.labels is not None
    for index, label in enumerate(file.labels.tolist()):
        first, after = file.offsets[index : index + 2]
        words = file.tokens[first : after - 1][:24].astype(np.int64)
        empty = None if len(words) else torch.tensor([[-1]])
        ids = torch.from_numpy(words[None]) if len(words) else torch.tensor([[0]])
        with torch.inference_mode():
            logits = model(ids, empty)[0].numpy()
        scores = logits - np.log(np.exp(logits).sum())
        nats -= float(scores[label])
        confusion[label, int(scores.argmax())] += 1
    return nats, confusion


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
@pytest.mark.parametrize("batch", [1, 2, 100])
def test_documents_are_scored_once_for_any_batch_size(positions: str, batch: int) -> None:
    model, file = make_model(positions), make_file()
    nats, confusion = by_hand(model, file)
    found = measure_classification(model, DocumentRows(file, 24).in_order(batch))
    assert found.nats == pytest.approx(nats, rel=1e-12)
    assert np.array_equal(found.confusion, confusion)
    assert found.documents == len(LENGTHS)
    assert found.tokens == sum(min(length, 24) for length in LENGTHS)
    assert found.loss == pytest.approx(nats / len(LENGTHS), rel=1e-12)


def test_padding_does_not_change_gradients() -> None:
    """A batch of documents of different lengths gives the sum of their separate gradients."""
    model, rows = make_model(), DocumentRows(make_file(), 24)
    together = rows.batch(np.arange(len(rows)))
    classifier_loss(classifier_logits(model, together), together.labels).goal.backward()  # type: ignore[no-untyped-call]
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    for row in range(len(rows)):
        alone = rows.batch(np.array([row]))
        classifier_loss(classifier_logits(model, alone), alone.labels).goal.backward()  # type: ignore[no-untyped-call]
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(found[name], weight.grad, rtol=0, atol=1e-12)


def test_an_empty_batch_has_zero_gradients() -> None:
    model = make_model()
    nothing = DocumentRows(make_file(), 24).batch(np.arange(0))
    loss = classifier_loss(classifier_logits(model, nothing), nothing.labels).goal
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


def test_dropout_is_disabled_and_restored() -> None:
    model = tiny_model(task="classifier", classes=3, dropout=0.5).train()
    rows, before = DocumentRows(make_file(), 24), torch.get_rng_state()
    first, second = (measure_classification(model, rows.in_order(2)) for _ in range(2))
    assert first.nats == second.nats
    assert model.training
    assert torch.equal(torch.get_rng_state(), before), "evaluation draws nothing"


def test_metrics() -> None:
    found = Classification(nats=8.0 * math.log(3), confusion=np.array([[3, 1], [2, 2]]), tokens=100)
    assert found.documents == 8
    assert found.accuracy == 5 / 8
    assert found.loss == pytest.approx(math.log(3))
