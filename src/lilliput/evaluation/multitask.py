"""Metrics of a multitask model, which predicts tokens and labels, from one forward pass per row.

Owns: the metrics of `likelihood` over all tokens and of `classification` over all documents, equal to those of separate
passes. Does not own: the losses of a batch (`model.loss`), their weights (`training.objectives`) or the choice of rows
(`data.batches`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from lilliput.data.batches import BothBatch
from lilliput.evaluation.classification import Classification, classification_of, tally
from lilliput.evaluation.likelihood import Likelihood, Total, alone, likelihood_of
from lilliput.model.classifier_loss import multitask_loss
from lilliput.model.transformer import Transformer, evaluating


@torch.inference_mode()
def measure_multitask(
    model: Transformer, batches: Iterable[BothBatch], bytes_per_prediction: float, total: Total = alone
) -> tuple[Likelihood, Classification]:
    classes = model.settings.classes
    assert classes is not None
    nats, label, tokens, confusion = 0.0, 0.0, 0, np.zeros((classes, classes), np.int64)
    with evaluating(model):
        for batch in batches:
            found = multitask_loss(model, batch)
            nats += found.tokens.nats.item()
            label += found.labels.nats.item()
            tokens += batch.tokens
            tally(confusion, batch.labels, found.logits)
    sums = total([nats, tokens, label, tokens, *confusion.ravel()])
    return likelihood_of(sums[:2], bytes_per_prediction), classification_of(sums[2:], classes)
