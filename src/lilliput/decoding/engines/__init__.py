"""The interface of the engines, which compute logits, and the rule for texts longer than the context.

Owns: `Engine` and `EngineRows`, what every engine must do, and `prefill`. Does not own: the choice of a token
(`token_choice`), the loops (`stream`, `beam_search`), or the models (`model`).

An engine reads texts: `Engine.prefill` returns the logits after each, and `EngineRows`, which hold what was read and can
read on. A row's result depends on its neighbours only by rounding, and with the numba engine not even so.

The rule for long texts: a row whose view has reached the context continues from the last half of the context, which is
read again. So the cost is paid once in context / 2 tokens, the text of a row depends on that row alone, and no position
is ever beyond the context. A prompt longer than the context is read in the same way: the model sees its last half-context.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from torch import Tensor


class EngineRows(Protocol):
    """Texts that an engine has read, and can read on. Changed in place by all methods but `pick`."""

    @property
    def lengths(self) -> Sequence[int]:
        """How many tokens of each row are held; the next one has this position."""
        ...

    def step(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Logits (B, V) after one or more further tokens for each row; rows may take different numbers of them."""
        ...

    def reorder(self, places: Sequence[int]) -> None:
        """Row i becomes what row places[i] was; rows may be dropped or doubled."""
        ...

    def pick(self, places: Sequence[int]) -> Self:
        """New rows, as by `reorder`; these stay as they are."""
        ...

    def join(self, others: Self) -> None:
        """The rows of `others` (of the same engine) come after these; `others` is used up."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all after the first `length` tokens of every row.

        ValueError where a windowed layer no longer holds what that needs: prefill again.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Memory that keys and values take."""
        ...


class Engine(Protocol):
    name: str
    context: int  # most tokens that a row may hold

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, EngineRows]:
        """Logits (B, V) after the last token of each view (at least one token each), and the rows."""
        ...


def prefill(engine: Engine, views: Sequence[list[int]]) -> tuple[Tensor, EngineRows]:
    """Return the logits after each view, and the rows. Cut views longer than the context in place; read equal ones once."""
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
