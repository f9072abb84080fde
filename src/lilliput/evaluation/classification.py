"""Loss and accuracy of a classifier on held-out documents during training.

Owns: the mean loss over labelled documents, each read once, the confusion matrix and the accuracy. Does not own: the
loss of a batch (`model.loss`), the choice of rows (`data.batches`), label names, or when to evaluate (`training`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lilliput.data.batches import IGNORED, LabelledBatch
from lilliput.data.packed_windows import Integers
from lilliput.evaluation.likelihood import Total, alone
from lilliput.model.classifier_loss import classifier_logits, classifier_loss
from lilliput.model.transformer import Transformer, evaluating


@dataclass(frozen=True)
class Classification:
    """`confusion` (classes, classes): number of documents by actual label (row) and predicted label (column)."""

    nats: float
    confusion: Integers
    tokens: int

    @property
    def documents(self) -> int:
        return int(self.confusion.sum())

    @property
    def loss(self) -> float:
        return self.nats / self.documents

    @property
    def accuracy(self) -> float:
        return int(self.confusion.trace()) / self.documents


def tally(confusion: Integers, labels: Integers, logits: Tensor) -> None:
    """Add the predicted labels of documents to the confusion matrix."""
    known = labels != IGNORED
    np.add.at(confusion, (labels[known], logits.argmax(dim=-1).cpu().numpy()[known]), 1)


@torch.inference_mode()
def measure_classification(
    model: Transformer, batches: Iterable[LabelledBatch], total: Total = alone
) -> Classification:
    classes = model.settings.classes
    assert classes is not None
    nats, tokens, confusion = 0.0, 0, np.zeros((classes, classes), np.int64)
    with evaluating(model):
        for batch in batches:
            logits = classifier_logits(model, batch)
            nats += classifier_loss(logits, batch.labels).nats.item()
            tokens += batch.tokens
            tally(confusion, batch.labels, logits)
    return classification_of(total([nats, tokens, *confusion.ravel()]), classes)


def classification_of(sums: Sequence[float], classes: int) -> Classification:
    nats, tokens, *confusion = sums
    return Classification(nats, np.array(confusion, np.int64).reshape(classes, classes), int(tokens))
