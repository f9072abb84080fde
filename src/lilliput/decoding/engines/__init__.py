"""The interface of the engines, which compute logits, and the rule for texts longer than the context.

Owns: `Engine` and `EngineRows`, the protocols of every engine, `prefill` and `append_rows`. Does not own: the choice of a
token (`token_choice`), the loops (`stream`, `beam_search`), or the models (`model`).

`Engine.prefill` reads texts and returns the logits after each, and `EngineRows`, which hold the texts and can read more
tokens. Other rows of a batch change a row's logits by rounding only; with the numba engine not at all.

Long texts: when a row reaches the context, its last half-context is read again and the row continues from there. So the
cost is paid once per context / 2 tokens, the text of a row depends on that row only, and no position exceeds the context.
A prompt longer than the context is read in the same way: the model sees its last half-context.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor


class EngineRows(Protocol):
    """Texts that an engine has read, one per row. All methods except `pick` change them in place."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens of each row, which is the position of the next one."""
        ...

    def step(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens to each row, at least one, and return the logits (B, V) after them."""
        ...

    def reorder(self, places: Sequence[int]) -> None:
        """Make row i a copy of the previous row places[i]; rows may be dropped or repeated."""
        ...

    def pick(self, places: Sequence[int]) -> Self:
        """Return new rows, selected as by `reorder`."""
        ...

    def join(self, others: Self) -> None:
        """Append the rows of `others` (of the same engine), which must not be used afterwards."""
        ...

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens of every row.

        Raise ValueError if a windowed layer has dropped keys that this requires; the text must then be prefilled again.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        ...


class Engine(Protocol):
    name: str
    context: int  # the largest number of tokens of a row

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, EngineRows]:
        """Return the logits (B, V) after the last token of each view (at least one token each), and the rows."""
        ...


def prefill(engine: Engine, views: Sequence[list[int]]) -> tuple[Tensor, EngineRows]:
    """Return the logits after each view, and the rows. Equal views are read once.

    Views longer than the context are truncated in place to their last half-context.
    """
    keep = max(1, engine.context // 2)
    for view in views:
        if len(view) > engine.context:
            del view[:-keep]
    places: dict[tuple[int, ...], int] = {}
    shared = [places.setdefault(tuple(view), len(places)) for view in views]
    logits, rows = engine.prefill(list(places))
    if len(places) < len(views):
        rows.reorder(shared)
        logits = logits[shared]
    return logits, rows


def append_rows(
    logits: Tensor | None, rows: EngineRows | None, new_logits: Tensor, new_rows: EngineRows
) -> tuple[Tensor, EngineRows]:
    """Append new rows and their logits to those in progress, if there are any."""
    if logits is None or rows is None:
        return new_logits, new_rows
    rows.join(new_rows)
    return torch.cat((logits, new_logits)), rows
