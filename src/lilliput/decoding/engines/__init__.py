"""Who computes the logits: one small interface, and the choice among those that speak it.

Owns: `Engine` and `EngineRows`, what every engine must do and nothing about how. Does not own: the choice of
a token (`processors`), the loops (`stream`, `decoding.beam_search`), or the nets (`model`).

An engine reads texts: `prefill` gives the logits after each, and `EngineRows`, which hold what was read and
can read on. A row's outcome never depends on its neighbours but by rounding, and with the numba engine not
even so.

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
