"""The parts of a model by role, for engines and exporters that support only some models.

Owns: the list of roles, and the check of a model against a list of supported types. Types must match exactly, so that a new
subclass is not treated as a supported part. Does not own: the lists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from lilliput.model.attention import SelfAttention
from lilliput.model.heads import LanguageHead
from lilliput.model.layers import PreNorm
from lilliput.model.transformer import Transformer

Supported = Mapping[str, Collection[type[nn.Module]]]


def parts_of(model: Transformer) -> Iterator[tuple[str, nn.Module]]:
    """Yield (role, part) for each part of the model that a setting selects."""
    yield "embedding", model.embedding
    yield "positions", model.positions
    blocks: list[Any] = list(model.blocks)
    for block in blocks:
        yield "block", block
        for placement in (block.attention, block.feed_forward):
            yield "norm placement", placement
            if isinstance(placement, PreNorm):
                yield "norm", placement.norm
        attention, feed_forward = block.attention.inner, block.feed_forward.inner
        yield "attention", attention
        if isinstance(attention, SelfAttention):
            yield "query-key norm", attention.qk_norm
            yield "value embedding", attention.values
        yield "feed-forward", feed_forward
        for part in (attention, feed_forward):
            yield from (("linear layer", layer) for layer in part.children() if isinstance(layer, nn.Linear))
    yield "final norm", model.norm
    yield "head", model.head
    if isinstance(model.head, LanguageHead):
        yield "bound of the logits", model.head.bound


def find_unsupported(model: Transformer, supported: Supported) -> str | None:
    """Return the first part whose exact type is not listed for its role, as "role Type"; None if all are."""
    for role, part in parts_of(model):
        if type(part) not in supported[role]:
            return f"{role} {type(part).__name__}"
    return None
