"""What a run tells of itself, in the order in which it happens: each is a line of metrics.jsonl.

Owns: the events and their fields, which are the log's format. Does not own: when they happen (`loop`) or who
listens (`observers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

TIMES = ("seconds", "tokens_per_second", "share_of_peak", "memory_bytes")  # all else is the same in a run done again


@dataclass(frozen=True, kw_only=True)
class EvaluationFigures:
    """How good a model is on some rows. A classifier has an accuracy over documents, a language model the other
    two, a model of both all three."""

    loss: float
    perplexity: float | None
    bits_per_byte: float | None
    accuracy: float | None
    tokens: int
    documents: int | None


@dataclass(frozen=True)
class Stepped:
    """One update. `tokens` and `seconds` count from the start of the run.

    `gradient_norm` is the one before clipping; where the gradient overflowed in 16 bits there is none, and the update was
    `skipped`. `share_of_peak` is the share of the floating-point operations that this machine can do in that time.
    """

    event: ClassVar[str] = "step"
    step: int
    loss: float
    lr: float
    gradient_norm: float | None
    tokens: int
    progress: float
    seconds: float
    tokens_per_second: float
    memory_bytes: int | None
    clipped: bool
    skipped: bool
    share_of_peak: float | None


@dataclass(frozen=True)
class Saved:
    event: ClassVar[str] = "saved"
    step: int
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Evaluated(EvaluationFigures):
    """Validation, on the fixed sample or on the `whole` split. `weights` is the step whose weights were judged; `floor` is
    what a perfect model would have in bits per byte, where that is known."""

    event: ClassVar[str] = "evaluation"
    step: int
    whole: bool
    weights: int
    floor: float | None


@dataclass(frozen=True, kw_only=True)
class Tested(EvaluationFigures):
    """A whole test set, at the end, with the weights that validation found best."""

    event: ClassVar[str] = "test"
    step: int
    name: str
    weights: int


@dataclass(frozen=True)
class Warned:
    """A warning. `kind` names the rule for programs, `title` the problem in a few words, `text` is a sentence with advice."""

    event: ClassVar[str] = "warning"
    step: int
    kind: str
    text: str
    title: str


@dataclass(frozen=True)
class Finished:
    """`interrupted`: stopped before the budget was used up. `early`: ended before, validation having ceased to fall."""

    event: ClassVar[str] = "finished"
    step: int
    tokens: int
    seconds: float
    interrupted: bool
    early: bool


Event = Stepped | Saved | Evaluated | Tested | Warned | Finished
