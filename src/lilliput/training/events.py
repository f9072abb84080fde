"""What a run tells of itself, in the order in which it happens: each is a line of metrics.jsonl.

Owns: the events and their fields, which are the log's format. Does not own: when they happen (`loop`) or who listens
(`observers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How good a model is on some rows. A classifier has an accuracy over documents; a language model has the other two."""

    loss: float
    perplexity: float | None
    bits_per_byte: float | None
    accuracy: float | None
    tokens: int
    documents: int | None


@dataclass(frozen=True)
class Stepped:
    """One update. `tokens` and `seconds` count from the start of the run."""

    event: ClassVar[str] = "step"
    step: int
    loss: float
    lr: float
    gradient_norm: float
    tokens: int
    progress: float
    seconds: float
    tokens_per_second: float
    memory_bytes: int | None


@dataclass(frozen=True)
class Saved:
    event: ClassVar[str] = "saved"
    step: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Evaluated(Figures):
    """Validation, on the fixed sample or on the `whole` split. `weights` is the step whose weights were judged; `floor` is
    what a perfect model would have in bits per byte, where that is known."""

    event: ClassVar[str] = "evaluation"
    step: int
    whole: bool
    weights: int
    floor: float | None


@dataclass(frozen=True, kw_only=True)
class Tested(Figures):
    """A whole test set, at the end, with the weights that validation found best."""

    event: ClassVar[str] = "test"
    step: int
    name: str
    weights: int


@dataclass(frozen=True)
class Finished:
    """`interrupted`: stopped before the budget was used up."""

    event: ClassVar[str] = "finished"
    step: int
    tokens: int
    seconds: float
    interrupted: bool


Event = Stepped | Saved | Evaluated | Tested | Finished
