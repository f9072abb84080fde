"""The events of a run, in order; each is a line of metrics.jsonl.

Owns: the events and their fields, which are the format of the log. Does not own: when they happen (`loop`), what is
done with them (`observers`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

# These fields, sessions, and warnings about speed differ between repetitions of a run; everything else in the log is
# reproducible.
TIMES = ("seconds", "tokens_per_second", "share_of_peak", "memory_bytes")


@dataclass(frozen=True)
class SessionStarted:
    """The start of a session, before its other events: versions, hardware and device. Only the log has it.

    `device_memory_bytes` is the memory of the GPU, or of the machine; `peak_flops` the measured FLOP/s of matrix products on
    all processes; `flops_per_token` those of one training token, without recomputed activations.
    """

    event: ClassVar[str] = "session"
    step: int
    versions: dict[str, str]
    machine: dict[str, Any]
    device_memory_bytes: int | None
    peak_flops: float
    flops_per_token: int


@dataclass(frozen=True, kw_only=True)
class EvaluationFigures:
    """Metrics of a model on some rows. A classifier has an accuracy over documents; a language model has perplexity and bits
    per byte; a multitask model has all three."""

    loss: float
    perplexity: float | None
    bits_per_byte: float | None
    accuracy: float | None
    tokens: int
    documents: int | None


@dataclass(frozen=True)
class Stepped:
    """One optimizer step. `tokens` and `seconds` count from the start of the run.

    `gradient_norm` is the norm before clipping. It is None if the gradient overflowed in float16; then the step was
    `skipped`. `share_of_peak` is the speed as a share of the machine's peak FLOP/s.
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
    """Validation, on the fixed sample or on the `whole` split. `weights` is the step whose weights were evaluated; `floor`
    is the bits per byte of a perfect model, if known.

    During training also: `epoch`, the training time in seconds, the loss of the last batch, and, if the settings ask for
    them, the metrics of a sample of the training split and of the test sets.
    """

    event: ClassVar[str] = "evaluation"
    step: int
    whole: bool
    weights: int
    floor: float | None
    epoch: float | None = None
    seconds: float | None = None
    batch_loss: float | None = None
    training: EvaluationFigures | None = None
    tests: dict[str, EvaluationFigures] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Tested(EvaluationFigures):
    """Evaluation of the best weights on a whole test set, at the end."""

    event: ClassVar[str] = "test"
    step: int
    name: str
    weights: int


@dataclass(frozen=True)
class Warned:
    """A warning. `kind` names the rule, `title` is a short name of the problem, `text` a sentence with advice."""

    event: ClassVar[str] = "warning"
    step: int
    kind: str
    text: str
    title: str


@dataclass(frozen=True)
class Finished:
    """The end of a session. `interrupted`: stopped on request. `early`: ended by train.patience. `limited_at`: the share of
    the budget that was used when train.max_minutes ended the run; None if it did not."""

    event: ClassVar[str] = "finished"
    step: int
    tokens: int
    seconds: float
    interrupted: bool
    early: bool
    limited_at: float | None = None


Event = Stepped | Saved | Evaluated | Tested | Warned | Finished
