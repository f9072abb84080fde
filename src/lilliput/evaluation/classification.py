"""How often a classifier is right about a text it has not seen.

Owns: the loss of labelled documents, each judged once, and what the model said of which label (the confusion,
and from it the accuracy). Does not own: the choice of rows (`data.batches`), the names of labels, or when to
evaluate (`training`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lilliput.data.batches import IGNORED, LabelledBatch
from lilliput.data.packed_windows import Integers
from lilliput.evaluation.likelihood import Total, alone
from lilliput.model.loss import Nats
from lilliput.model.transformer import Transformer, evaluating


@dataclass(frozen=True)
class Classification:
    """`confusion` (classes, classes): documents by their own label, then by the one that the model finds likeliest."""

    nats: float
    confusion: Integers
    tokens: int  # read

    @property
    def documents(self) -> int:
        return int(self.confusion.sum())

    @property
    def loss(self) -> float:
        return self.nats / self.documents

    @property
    def accuracy(self) -> float:
        return int(self.confusion.trace()) / self.documents


def batch_logits(model: Transformer, batch: LabelledBatch) -> Tensor:
    """(B, classes)."""
    pos = None if batch.pos is None else torch.from_numpy(batch.pos).to(model.device)
    logits: Tensor = model(torch.from_numpy(batch.ids).to(model.device), pos)
    return logits


def label_nats(
    logits: Tensor, labels: Integers, smoothing: float = 0.0, weights: Sequence[float] | None = None
) -> Nats:
    """For each label (1 - smoothing) x its nats + smoothing x the mean nats of all classes, weighed by its class, summed."""
    right = torch.from_numpy(labels).to(logits.device)
    nats = F.cross_entropy(logits.detach(), right, ignore_index=IGNORED, reduction="sum")
    if weights is None:
        goal = F.cross_entropy(logits, right, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        return Nats(goal, nats)
    goals = F.cross_entropy(logits, right, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)  # (B,)
    return Nats((goals * logits.new_tensor(weights)[right.clamp(min=0)]).sum(), nats)  # what is ignored has a goal of 0


def tally(confusion: Integers, labels: Integers, logits: Tensor) -> None:
    """Add what the model says of documents to the confusion."""
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
            logits = batch_logits(model, batch)
            nats += label_nats(logits, batch.labels).nats.item()
            tokens += batch.tokens
            tally(confusion, batch.labels, logits)
    return classification_of(total([nats, tokens, *confusion.ravel()]), classes)


def classification_of(sums: Sequence[float], classes: int) -> Classification:
    nats, tokens, *confusion = sums
    return Classification(nats, np.array(confusion, np.int64).reshape(classes, classes), int(tokens))
