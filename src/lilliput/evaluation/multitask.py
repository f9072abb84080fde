"""How well a model writes and how often it is right about labels, by one pass of its trunk over each row.

Owns: the two losses of labelled windows, and both kinds of figures over them: those of `likelihood` over all
tokens and those of `classification` over all documents, as if each had been measured alone. Does not own: how
the two losses are weighed (`training.objectives`) or the choice of rows (`data.batches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lilliput.data.batches import BothBatch
from lilliput.evaluation.classification import Classification, classification_of, label_nats, tally
from lilliput.evaluation.likelihood import Likelihood, Total, alone, likelihood_of
from lilliput.model.heads import LanguageAndLabelHead
from lilliput.model.loss import Nats, head_loss
from lilliput.model.transformer import Transformer, evaluating


class BothNats(NamedTuple):
    """Of a batch. `logits` (B, classes) are those of labels: of a document in the row of its first window, else of nothing."""

    tokens: Nats
    labels: Nats
    logits: Tensor


def both_nats(
    model: Transformer,
    batch: BothBatch,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    weights: Sequence[float] | None = None,
) -> BothNats:
    """The label is told from the mean of the states from which the tokens of the window are told."""
    assert isinstance(model.head, LanguageAndLabelHead)
    pos = None if batch.pos is None else torch.from_numpy(batch.pos).to(model.device)
    ids, targets = (torch.from_numpy(array).to(model.device) for array in (batch.ids, batch.targets))
    state = model.begin(ids, pos, doc=None)
    x = model.trunk(ids, state)  # (B, T, C)
    tokens = head_loss(model.head, x.flatten(0, 1), targets.flatten(), smoothing, z_loss)
    logits = model.head.label(x, state)
    return BothNats(tokens, label_nats(logits, batch.labels, smoothing, weights), logits)


@torch.inference_mode()
def measure_both(
    model: Transformer, batches: Iterable[BothBatch], bytes_per_prediction: float, total: Total = alone
) -> tuple[Likelihood, Classification]:
    classes = model.settings.classes
    assert classes is not None
    nats, label, tokens, confusion = 0.0, 0.0, 0, np.zeros((classes, classes), np.int64)
    with evaluating(model):
        for batch in batches:
            found = both_nats(model, batch)
            nats += found.tokens.nats.item()
            label += found.labels.nats.item()
            tokens += batch.tokens
            tally(confusion, batch.labels, found.logits)
    sums = total([nats, tokens, label, tokens, *confusion.ravel()])
    return likelihood_of(sums[:2], bytes_per_prediction), classification_of(sums[2:], classes)
