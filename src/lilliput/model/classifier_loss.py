"""The loss of a classifier over a batch, alone or with the language loss (multitask).

Owns: the summed label loss. Does not own: class weights (`training.objectives`), the batches (`data.batches`), or the
language loss (`language_loss`).

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
    """The losses of tokens and labels, and the label logits (B, classes): only the first window of a document has a label."""

    tokens: Nats
    labels: Nats
    logits: Tensor


def classifier_logits(model: Transformer, batch: LossBatch) -> Tensor:
    """Return the label logits, (B, classes)."""
    logits: Tensor = model(tensor(model, batch.ids), None if batch.pos is None else tensor(model, batch.pos))
    return logits


def classifier_loss(
    logits: Tensor, labels: Integers, smoothing: float = 0.0, weights: Sequence[float] | None = None
) -> Nats:
    """Return the summed cross-entropy of the labels, each weighted by its class, with label smoothing in the objective."""
    targets = torch.from_numpy(labels).to(logits.device)
    nats = F.cross_entropy(logits.detach(), targets, ignore_index=IGNORED, reduction="sum")
    if weights is None:
        goal = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
        return Nats(goal, nats)
    goals = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)  # (B,)
    # The loss of an ignored label is 0, so the weight that it gets has no effect.
    return Nats((goals * logits.new_tensor(weights)[targets.clamp(min=0)]).sum(), nats)


def multitask_loss(
    model: Transformer,
    batch: MultitaskBatch,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
    weights: Sequence[float] | None = None,
) -> MultitaskNats:
    """Return both losses from one pass of the trunk; the label is predicted from the mean of the window's hidden states."""
    assert isinstance(model.head, LanguageAndLabelHead)
    ids, targets = tensor(model, batch.ids), tensor(model, batch.targets)
    state = model.begin(ids, None if batch.pos is None else tensor(model, batch.pos), doc=None)
    x = model.trunk(ids, state)  # (B, T, C)
    tokens = head_loss(model.head, x.flatten(0, 1), targets.flatten(), smoothing, z_loss)
    logits = model.head.label(x, state)
    return MultitaskNats(tokens, classifier_loss(logits, batch.labels, smoothing, weights), logits)
