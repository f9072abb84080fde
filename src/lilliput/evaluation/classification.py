"""How often a classifier is right about a text it has not seen.

Owns: the loss of labelled documents, each judged once, and what the model said of which label (the confusion, and from it the
accuracy). Does not own: the choice of rows (`data.batches`), the names of labels, or when to evaluate (`training`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lilliput.data.batches import IGNORED, LabelledBatch
from lilliput.data.windows import Integers
from lilliput.decoding.stream import evaluating
from lilliput.model.transformer import Transformer


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


def label_nats(logits: Tensor, batch: LabelledBatch) -> Tensor:
    """Nats of all labels of a batch, summed."""
    labels = torch.from_numpy(batch.labels).to(logits.device)
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


@torch.inference_mode()
def measure_classification(model: Transformer, batches: Iterable[LabelledBatch]) -> Classification:
    classes = model.settings.classes
    assert classes is not None
    nats, tokens, confusion = 0.0, 0, np.zeros((classes, classes), np.int64)
    with evaluating(model):
        for batch in batches:
            logits = batch_logits(model, batch)
            nats += label_nats(logits, batch).item()
            tokens += batch.tokens
            np.add.at(confusion, (batch.labels, logits.argmax(dim=-1).cpu().numpy()), 1)
    return Classification(nats, confusion, tokens)
