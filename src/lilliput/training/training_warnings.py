"""Warnings about problems in a run: loss spikes, high learning rates, overfitting, leakage, losses above uniform guessing.

Owns: the five rules and their state. Does not own: the events (`events`), printing (`observers`).

A rule depends only on the events, never on a clock, and its state is saved with the run: a resumed run gives the
same warnings at the same steps. A rule warns once when noise can hardly explain the problem, and again only after
the problem has disappeared and returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, stdev
from typing import Any, ClassVar

from lilliput.settings.tree import Config, OptimizerSettings
from lilliput.training.events import Evaluated, Event, Stepped, Warned

RECENT = 50  # losses in the history
KEYS = {"warned": "told"}  # fields whose key in checkpoints differs
LEARNED = 0.8  # a training loss below this share of that of uniform guessing is far below it
LEVEL = 20  # the median of this number of losses is the current level: a single loss is too noisy


class History:
    """The settings, and loss and tokens of the last steps, newest last."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.losses: list[float] = []
        self.sizes: list[int] = []
        self.tokens = 0  # since the start of the run

    def add(self, event: Stepped) -> None:
        self.losses = [*self.losses[-RECENT + 1 :], event.loss]
        self.sizes = [*self.sizes[-RECENT + 1 :], event.tokens - self.tokens]

    @property
    def level(self) -> float | None:
        return median(self.losses[-LEVEL:]) if len(self.losses) >= LEVEL else None


def deviation(losses: Sequence[float]) -> float:
    """Return the standard deviation of losses, from the median absolute deviation: outliers do not change it."""
    middle = median(losses)
    return 1.4826 * median(abs(loss - middle) for loss in losses)  # 1.4826: for a normal distribution


@dataclass
class Rule:
    """Receive each step (before it enters the history) and each evaluation; return the text of a warning, or None.

    The fields are its state, saved in checkpoints under their names (`warned` as "told"). `title` is a short name of the
    problem for summaries.
    """

    kind: ClassVar[str]
    title: ClassVar[str]

    def stepped(self, event: Stepped, history: History, rows: Sequence[int]) -> str | None:
        return None

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        return None


@dataclass
class Spike(Rule):
    """The loss is above the median before it by eight standard deviations and by a quarter. Only steps of a similar size are
    compared, because batches are grouped by length. Small steps are ignored: the few rows at the end of an epoch may be far
    from the mean.

    After each warning the rule is silent for twice as long.
    """

    kind = "spike"
    title = "loss spike"
    silent_until: int = 0
    silence: int = RECENT

    def stepped(self, event: Stepped, history: History, rows: Sequence[int]) -> str | None:
        if len(history.losses) < RECENT or event.step < self.silent_until:
            return None
        size = event.tokens - history.tokens
        alike = [
            loss for loss, other in zip(history.losses, history.sizes, strict=True) if size < 1.5 * other < 2.25 * size
        ]
        if size < 0.5 * median(history.sizes) or len(alike) < RECENT // 2:
            return None
        before = median(alike)
        if event.loss - before <= max(8.0 * deviation(alike), 0.25 * before, 0.1):
            return None
        self.silent_until, self.silence = event.step + self.silence, 2 * self.silence
        return (
            f"the loss jumped from {before:.3f} to {event.loss:.3f} on {describe_rows(history.config, rows)}; check their texts; "
            "if the loss stays high, the learning rate is too high"
        )


@dataclass
class TooFast(Rule):
    """The learning rate is too high, by one of three signs. For 20 steps, the level of the loss is above the first losses, or
    has lost half of its gain; both by two standard deviations (at most the first loss) and by 0.05 nats. Or 200 gradients
    in a row were clipped to a tenth, while the loss has not fallen.

    The first losses are noisy, above all where batches are grouped by length: the deviation is that of the first or of the
    last 20 losses, the larger one."""

    kind = "learning-rate"
    title = "learning rate too high"
    first: float | None = None  # median of the first five, or of the first 20 if that is higher
    spread: float = 0.0  # standard deviation of the first 20
    lowest: float | None = None
    lowest_step: int = 0
    risen: int = 0  # steps in a row
    clipped: int = 0  # steps in a row
    level_then: float = 0.0  # at the first of the clipped steps
    warned: bool = False

    def stepped(self, event: Stepped, history: History, rows: Sequence[int]) -> str | None:
        level, clip = history.level, history.config.optimizer.clip
        if level is None:
            return None
        if self.first is None or self.lowest is None:
            self.first, self.lowest = max(median(history.losses[:5]), level), level
            self.spread = stdev(history.losses[:LEVEL])
        if level < self.lowest:
            self.lowest, self.lowest_step, self.warned = level, event.step, False
        gained = self.first - self.lowest
        # Five standard errors of the difference of two medians.
        noise = min(2.0 * deviation(history.losses[-LEVEL:]), self.first)
        lost = gained > 0.2 * self.first and level > self.lowest + max(0.5 * gained, noise, 0.05)
        above = level > self.first + max(0.1 * self.first, noise, min(2.0 * self.spread, self.first), 0.05)
        self.risen = self.risen + 1 if lost or above else 0
        hard = clip is not None and event.gradient_norm is not None and event.gradient_norm > 10.0 * clip
        self.clipped = self.clipped + 1 if hard else 0
        self.level_then = level if self.clipped == 1 else self.level_then
        if self.warned or event.step <= history.config.schedule.warmup:
            return None
        if self.risen >= LEVEL and above:
            reason = f"the median training loss has risen from {self.first:.3f} (first steps) to {level:.3f}"
        elif self.risen >= LEVEL:
            reason = (
                f"the median training loss has risen from {self.lowest:.3f} (step {self.lowest_step:,}) to {level:.3f}"
            )
        elif self.clipped >= 200 and level >= self.level_then:
            reason = (
                f"{self.clipped} gradients in a row were clipped to less than a tenth, and training loss does not fall"
            )
        else:
            return None
        self.warned = True
        return f"learning rate too high: {reason}; {lower_rates(history.config.optimizer)}"


@dataclass
class Overfitting(Rule):
    """The validation loss is above the best while the training loss falls: by 1% in the third evaluation above it. The second
    one must be above by 2%, the first one by 5%, and both by 1 / sqrt(n), the noise of n tokens or documents."""

    kind = "overfitting"
    title = "overfitting"
    best: float | None = None
    best_step: int = 0
    level_then: float | None = None  # of the training loss at the best evaluation
    above: int = 0  # evaluations since the best
    warned: bool = False

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        level = history.level
        if event.whole:
            return None
        if self.best is None or event.loss < self.best:
            self.best, self.best_step, self.level_then, self.above, self.warned = (
                event.loss,
                event.step,
                level,
                0,
                False,
            )
            return None
        self.above += 1
        falling = level is not None and self.level_then is not None and level < self.level_then
        noise = 1.0 / math.sqrt(event.tokens if event.documents is None else max(1, event.documents))
        margin = {1: max(0.05, noise), 2: max(0.02, noise)}.get(self.above, 0.01)
        if self.warned or event.loss < (1.0 + margin) * self.best or not falling:
            return None
        self.warned = True
        return (
            f"overfitting: validation loss has risen since step {self.best_step:,} ({self.best:.2f} -> {event.loss:.2f}) while "
            f"training loss falls; the checkpoint of step {self.best_step:,} is kept as best"
        )


@dataclass
class Leakage(Rule):
    """The validation loss is lower than possible for unseen texts.

    With a known floor: a model that has not seen a text needs n bits less than the text's own source with a probability of at
    most 2^-n (Markov's inequality); the rule warns above 20 bits. Without one: the validation loss is 10% below every recent
    training loss in five evaluations in a row.
    """

    kind = "leakage"
    title = "validation texts seen in training, or much easier"
    below: int = 0  # evaluations in a row
    warned: bool = False

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        data, model = history.config.data, history.config.model
        advice = 'set data.drop_duplicates to "near" to remove copies'
        if event.whole:
            if bits_below_floor(event) <= 20.0:
                return None
            return (
                f"validation texts seen in training: {event.bits_per_byte:.4f} bits per byte is below the {event.floor:.4f} of a "
                f"perfect model; {advice}"
            )
        # Dropout raises the training loss; with two tasks, training and validation losses are different sums.
        comparable = model.dropout == 0.0 and model.task != "both" and data.drop_duplicates is None
        lowest = min(history.losses[-LEVEL:]) if len(history.losses) >= LEVEL else 0.0
        self.below = self.below + 1 if comparable and event.loss < 0.9 * lowest else 0
        self.warned = self.warned and self.below > 0
        if self.warned or self.below < 5:
            return None
        self.warned = True
        return (
            f"validation loss ({event.loss:.4f}) is more than 10% below training loss (at least {lowest:.4f}) in "
            f"{self.below} evaluations: validation texts are much easier, or copies of training texts; {advice}"
        )


@dataclass
class Uninformed(Rule):
    """After the warm-up, the validation loss is above that of uniform guessing by 2%: no prediction would be better."""

    kind = "uniform"
    title = "worse than uniform guessing"
    warned: bool = False

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        guess = uniform_loss(history.config)
        if event.whole or guess is None or event.step <= history.config.schedule.warmup:
            return None
        if event.loss <= 1.02 * guess:
            self.warned = False
            return None
        if self.warned:
            return None
        self.warned = True
        what = f"the validation loss ({event.loss:.3f}) is above that of uniform guessing ({guess:.3f})"
        training = median(history.losses[-LEVEL:]) if history.losses else None
        if training is None or training > LEARNED * guess:
            return f"{what}; {lower_rates(history.config.optimizer)}"
        what += f", but the training loss ({training:.3f}) is far below it: the model repeats the training text"
        data = history.config.data
        if data.validation_source is None and data.validation_share > 0.5:
            return f"{what}; data.validation_share {data.validation_share:g} leaves too little of it, set it to 0.1"
        return f"{what}; add text or train for less time"


def uniform_loss(config: Config) -> float | None:
    """Return the loss of a model that gives all tokens (or labels) the same probability; None if their number is unknown."""
    model, train = config.model, config.train
    parts = {
        "language": [(1.0, model.vocab_size)],
        "classifier": [(1.0, model.classes)],
        "both": [(train.language_weight, model.vocab_size), (train.label_weight, model.classes)],
    }.get(model.task, [(1.0, None)])
    return (
        None
        if any(count is None for _, count in parts)
        else sum(weight * math.log(count or 1) for weight, count in parts)
    )


def bits_below_floor(event: Evaluated) -> float:
    """Return how many bits fewer than its own source the model needs for the whole split."""
    if event.floor is None or not event.bits_per_byte:
        return 0.0
    return event.loss * event.tokens / math.log(2) * (event.floor / event.bits_per_byte - 1.0)


def describe_rows(config: Config, rows: Sequence[int]) -> str:
    """Return which part of the training text the rows are."""
    if config.model.task == "classifier":
        return f"documents {format_rows(rows)} of the training split (0 is its first document)"
    return (
        f"sequences {format_rows(rows)} of the training text (0 is its first sequence; a sequence has up to "
        f"{config.model.context:,} tokens)"
    )


def format_rows(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")


# The highest rates that are suggested: a third of a rate that is far too high is still too high.
SENSIBLE = {"lr": 2e-3, "embedding_lr": 0.3, "head_lr": 2e-2, "matrix_lr": 2e-2}
SENSIBLE_SGD = 0.1


def lower_rates(optimizer: OptimizerSettings) -> str:
    """Return the advice to set each rate to a third, or to a usual value if that is lower."""
    rates = {"lr": optimizer.lr, "embedding_lr": optimizer.embedding_lr, "head_lr": optimizer.head_lr}
    rates |= {"matrix_lr": optimizer.matrix_lr} if optimizer.kind == "muon" else {}
    usual = dict.fromkeys(SENSIBLE, SENSIBLE_SGD) if optimizer.kind == "sgd" else SENSIBLE
    lower = {name: min(rate / 3, usual[name]) for name, rate in rates.items() if rate is not None}
    listed = " and ".join(f"optimizer.{name} to {rate:.1g}" for name, rate in lower.items())
    return f"set {listed}, or use a longer schedule.warmup"


class Advisor:
    """Check every event of a run, in order, and return the warnings."""

    def __init__(self, config: Config) -> None:
        self.history = History(config)
        self.rules: list[Rule] = [Spike(), TooFast(), Overfitting(), Leakage(), Uninformed()]

    def check(self, event: Event, rows: Sequence[int]) -> list[Warned]:
        """`rows`: the training rows of the last step."""
        results: list[tuple[Rule, str | None]] = []
        if isinstance(event, Stepped) and not event.skipped:
            results = [(rule, rule.stepped(event, self.history, rows)) for rule in self.rules]
            self.history.add(event)
        elif isinstance(event, Evaluated):
            results = [(rule, rule.evaluated(event, self.history)) for rule in self.rules]
        if isinstance(event, Stepped):
            self.history.tokens = event.tokens
        return [Warned(event.step, rule.kind, text, rule.title) for rule, text in results if text is not None]

    def state_dict(self) -> dict[str, Any]:
        history = self.history
        rules = {
            rule.kind: {KEYS.get(name, name): value for name, value in asdict(rule).items()} for rule in self.rules
        }
        return {"losses": history.losses, "sizes": history.sizes, "tokens": history.tokens, "rules": rules}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.losses, self.history.sizes = list(state["losses"]), list(state["sizes"])
        self.history.tokens = state["tokens"]
        names = {key: name for name, key in KEYS.items()}
        for rule in self.rules:
            vars(rule).update({names.get(key, key): value for key, value in state["rules"].get(rule.kind, {}).items()})
