"""The loss of a classifier over a batch, alone or with the loss of the tokens (multitask).

Owns: the summed losses of labels. Does not own: their weights (`training.objectives`), the batches (`data.batches`), or the
loss of tokens (`language_loss`).

B rows, T positions, C dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lilliput.model.heads import LanguageAndLabelHead
from lilliput.model.language_loss import IGNORED, Integers, LanguageLossBatch, LossBatch, Nats, head_loss, tensor
from lilliput.model.transformer import Transformer


class MultitaskBatch(LanguageLossBatch, Protocol):
    @property
    def labels(self) -> Integers: ...  # (B,)


class MultitaskNats(NamedTuple):
    """The losses of tokens and of labels. `logits` (B, classes) are those of labels: of a document in the row of its first
    window, else of nothing."""

    tokens: Nats
    labels: Nats
    logits: Tensor


def classifier_logits(model: Transformer, batch: LossBatch) -> Tensor:
    """Return the logits of the labels, (B, classes)."""
    logits: Tensor = model(tensor(model, batch.ids), None if batch.pos is None else tensor(model, batch.pos))
    return logits


def classifier_loss(
    logits: Tensor, labels: Integers, smoothing: float = 0.0, weights: Sequence[float] | None = None
) -> Nats:
    """Sum (1 - smoothing) x the nats of each label + smoothing x the mean nats of all classes, weighed by its class."""
    right = torch.from_numpy(labels).to(logits.device)
    nats = F.cross_entropy(logits.detach(), right, ignore_index=IGNORED, reduction="sum")
    if weights is None:
        goal = F.cross_entropy(logits, right, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        return Nats(goal, nats)
    goals = F.cross_entropy(logits, right, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)  # (B,)
    return Nats(
        (goals * logits.new_tensor(weights)[right.clamp(min=0)]).sum(), nats
    )  # an ignored label has a goal of 0


def multitask_loss(
    model: Transformer,
    batch: MultitaskBatch,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    weights: Sequence[float] | None = None,
) -> MultitaskNats:
    """Return both losses from one pass of the trunk; the label is predicted from the mean of a window's states."""
    assert isinstance(model.head, LanguageAndLabelHead)
    ids, targets = tensor(model, batch.ids), tensor(model, batch.targets)
    state = model.begin(ids, None if batch.pos is None else tensor(model, batch.pos), doc=None)
    x = model.trunk(ids, state)  # (B, T, C)
    tokens = head_loss(model.head, x.flatten(0, 1), targets.flatten(), smoothing, z_loss)
    logits = model.head.label(x, state)
    return MultitaskNats(tokens, classifier_loss(logits, batch.labels, smoothing, weights), logits)
