"""From the trunk's output to nats: the head and its cross-entropy as one operation.

Owns: the summed loss of a language model, computed over chunks of tokens so that the logits of a whole batch never exist.
Does not own: dividing by tokens (the caller knows how many there are over all micro-batches and processes).

N tokens, C dim, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lilliput.model.layers import LanguageHead
from lilliput.model.transformer import Transformer

IGNORED = -100  # target of padding: torch's own convention


def language_loss(model: Transformer, ids: Tensor, targets: Tensor, pos: Tensor | None, doc: Tensor | None) -> Tensor:
    """Nats of all targets that are not IGNORED, summed."""
    assert isinstance(model.head, LanguageHead)
    now = model.begin(ids, pos, doc)
    x = model.trunk(ids, now)
    return F.cross_entropy(model.head(x, now).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
