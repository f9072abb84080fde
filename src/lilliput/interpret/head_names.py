"""Names of attention heads: LAYER.HEAD, both numbers from 0.

Owns: `Head` and the check that a model has it. Needs no torch, so that an unknown head is reported before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lilliput.errors import UserError
from lilliput.settings.tree import ModelSettings


class Head(NamedTuple):
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}"


def all_heads(shape: ModelSettings) -> list[Head]:
    return [Head(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]


def check_heads(shape: ModelSettings, heads: Sequence[tuple[int, int]]) -> tuple[Head, ...]:
    """Return the heads sorted and without duplicates; raise an error for a head that the model does not have."""
    last = Head(shape.layers - 1, shape.heads - 1)
    for layer, head in heads:
        if not (0 <= layer <= last.layer and 0 <= head <= last.head):
            what = (
                f"ablate must be LAYER.HEAD of the model, which has layers 0 to {last.layer} with heads 0 to {last.head} "
                f"(got {layer}.{head})"
            )
            raise UserError(what, fix="use a head of the model, such as 0.0", code="interpret.head", setting="ablate")
    if not heads:
        what = "ablate must have at least one head (got none)"
        raise UserError(what, fix="give a head, such as 0.0", code="interpret.head", setting="ablate")
    return tuple(sorted({Head(*head) for head in heads}))
