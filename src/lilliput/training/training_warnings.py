"""Warnings: what is going wrong in a run, since when, and what to do about it.

Owns: the four rules and the state of each. Does not own: the events (`events`), printing (`observers`).

A rule is a function of the events alone, never of a clock, and its state is saved with the run: interrupted and
resumed, a run gives the same warnings at the same steps. A rule waits until chance can hardly explain what it
finds, warns once, and does not warn again until that has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, ClassVar

from lilliput.settings.tree import Config, OptimizerSettings
from lilliput.training.events import Evaluated, Event, Stepped, Warned

RECENT = 50  # losses that are looked back on
LEVEL = 20  # of them, those whose median is the level of the loss now: one batch's jumps about


class History:
    """What all rules use: the settings, and loss and tokens of the last updates that were made, newest last."""

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

    def deviation(self, count: int) -> float:
        """The standard deviation of the last `count` losses, by their medians, which no outlier can move."""
        last = self.losses[-count:]
        middle = median(last)
        return 1.4826 * median(abs(loss - middle) for loss in last)  # 1.4826: of a normal distribution


@dataclass
class Rule:
    """Receive an update before it enters the history, and an evaluation; return the text of a warning, or None.

    The fields are its state; their names are part of the format of checkpoints (`told`: it has warned). `title` is a short
    name of the problem for summaries.
    """

    kind: ClassVar[str]
    title: ClassVar[str]

    def stepped(self, event: Stepped, history: History, rows: Sequence[int]) -> str | None:
        return None

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        return None


@dataclass
class Spike(Rule):
    """A loss far above those before it: by eight deviations, and by a quarter. A small update is not judged: the few rows at the
    end of an epoch, or those of short texts, may well be far from the mean.

    A run with many spikes is warned ever more rarely: after each warning the silence is twice as long.
    """

    kind = "spike"
    title = "loss spike"
    silent_until: int = 0
    silence: int = RECENT

    def stepped(self, event: Stepped, history: History, rows: Sequence[int]) -> str | None:
        if len(history.losses) < RECENT or event.step < self.silent_until:
            return None
        if event.tokens - history.tokens < 0.5 * median(history.sizes):
            return None
        before = median(history.losses)
        if event.loss - before <= max(8.0 * history.deviation(RECENT), 0.25 * before, 0.1):
            return None
        self.silent_until, self.silence = event.step + self.silence, 2 * self.silence
        return (
            f"the loss jumped from {before:.3f} to {event.loss:.3f} with training rows {format_rows(rows)}: look at their "
            "texts; if it does not come back, the learning rate is too high"
        )


@dataclass
class TooFast(Rule):
    """A learning rate that is too high. For twenty updates the level of the loss lies above where it began, or has lost half of
    what it had gained, either by two deviations (the losses of a run that falls apart deviate, too: no more than the loss at its
    beginning counts) and by 0.05 nats; or two hundred gradients in a row were clipped to a tenth, and the loss has
    not fallen meanwhile."""

    kind = "learning-rate"
    title = "learning rate too high"
    first: float | None = None  # median of the first five
    lowest: float | None = None
    lowest_step: int = 0
    risen: int = 0  # updates in a row
    clipped: int = 0  # updates in a row
    level_then: float = 0.0  # when that row began
    told: bool = False

    def stepped(self, event: Stepped, history: History, rows: Sequence[int]) -> str | None:
        level, clip = history.level, history.config.optimizer.clip
        if level is None:
            return None
        if self.first is None or self.lowest is None:
            self.first, self.lowest = median(history.losses[:5]), level
        if level < self.lowest:
            self.lowest, self.lowest_step, self.told = level, event.step, False
        gained = self.first - self.lowest
        noise = min(2.0 * history.deviation(LEVEL), self.first)  # five standard errors of a difference of two medians
        lost = gained > 0.2 * self.first and level > self.lowest + max(0.5 * gained, noise, 0.05)
        above = level > self.first + max(0.1 * self.first, noise, 0.05)
        self.risen = self.risen + 1 if lost or above else 0
        hard = clip is not None and event.gradient_norm is not None and event.gradient_norm > 10.0 * clip
        self.clipped = self.clipped + 1 if hard else 0
        self.level_then = level if self.clipped == 1 else self.level_then
        if self.told or event.step <= history.config.schedule.warmup:
            return None
        if self.risen >= LEVEL and above:
            why = f"the loss is {level:.3f}, above the {self.first:.3f} that it began with"
        elif self.risen >= LEVEL:
            why = f"the loss has risen to {level:.3f}, from {self.lowest:.3f} at step {self.lowest_step:,}"
        elif self.clipped >= 200 and level >= self.level_then:
            why = f"{self.clipped} gradients in a row were clipped to less than a tenth, and the loss does not fall"
        else:
            return None
        self.told = True
        return f"{why}: the learning rate is too high; {lower_rates(history.config.optimizer)}"


@dataclass
class Overfitting(Rule):
    """Three evaluations above the best, the last by a hundredth or more, while the training loss went on falling."""

    kind = "overfitting"
    title = "overfitting"
    best: float | None = None
    best_step: int = 0
    level_then: float | None = None  # of the training loss
    above: int = 0  # evaluations since
    told: bool = False

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        level = history.level
        if event.whole:
            return None
        if self.best is None or event.loss < self.best:
            self.best, self.best_step, self.level_then, self.above, self.told = event.loss, event.step, level, 0, False
            return None
        self.above += 1
        falling = level is not None and self.level_then is not None and level < self.level_then
        if self.told or self.above < 3 or event.loss < 1.01 * self.best or not falling:
            return None
        self.told = True
        return (
            f"overfitting since step {self.best_step:,}: validation was {self.best:.4f} then and is {event.loss:.4f} now, while "
            "the training loss falls; the best weights are kept; more text, model.dropout, or train.patience to end by itself"
        )


@dataclass
class Leakage(Rule):
    """Validation lower than it can be.

    Against a known floor that is exact: that a model which has not seen a text needs n bits less for it than the text's own
    source has a chance of at most 2^-n (Markov's inequality), and 20 bits are taken for proof. Else: a tenth below every one of
    the last training losses, five evaluations in a row, which nothing but copies or much easier texts explains.
    """

    kind = "leakage"
    title = "validation texts seen in training, or much easier"
    below: int = 0  # evaluations in a row
    told: bool = False

    def evaluated(self, event: Evaluated, history: History) -> str | None:
        data, model = history.config.data, history.config.model
        advice = "set data.drop_duplicates to near to remove copies"
        if event.whole:
            if bits_below_floor(event) <= 20.0:
                return None
            return (
                f"validation is {event.bits_per_byte:.4f} bits per byte, below the {event.floor:.4f} of a perfect model: the "
                f"model has seen these texts; {advice}"
            )
        # With dropout the training loss is that of a worse model; of two tasks it is another sum than validation's.
        comparable = model.dropout == 0.0 and model.task != "both" and data.drop_duplicates is None
        lowest = min(history.losses[-LEVEL:]) if len(history.losses) >= LEVEL else 0.0
        self.below = self.below + 1 if comparable and event.loss < 0.9 * lowest else 0
        self.told = self.told and self.below > 0
        if self.told or self.below < 5:
            return None
        self.told = True
        return (
            f"validation ({event.loss:.4f}) has been far below the training loss ({lowest:.4f} and more) for {self.below} "
            f"evaluations: its texts are much easier, or copies of training texts; {advice}"
        )


def bits_below_floor(event: Evaluated) -> float:
    """By how much the whole split took fewer bits than its own source gives it."""
    if event.floor is None or not event.bits_per_byte:
        return 0.0
    return event.loss * event.tokens / math.log(2) * (event.floor / event.bits_per_byte - 1.0)


def format_rows(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")


def lower_rates(optimizer: OptimizerSettings) -> str:
    """Advise a third of each rate: the usual step of a search for a learning rate."""
    rates = {"lr": optimizer.lr, "embedding_lr": optimizer.embedding_lr, "head_lr": optimizer.head_lr}
    rates |= {"matrix_lr": optimizer.matrix_lr} if optimizer.kind == "muon" else {}
    lower = " and ".join(f"optimizer.{name} to {rate / 3:.1g}" for name, rate in rates.items() if rate is not None)
    return f"set {lower}, or use a longer schedule.warmup"


class Advisor:
    """Check every event of a run, in order, and return the warnings."""

    def __init__(self, config: Config) -> None:
        self.history = History(config)
        self.rules: list[Rule] = [Spike(), TooFast(), Overfitting(), Leakage()]

    def check(self, event: Event, rows: Sequence[int]) -> list[Warned]:
        """`rows`: the training rows of the last update."""
        found: list[tuple[Rule, str | None]] = []
        if isinstance(event, Stepped) and not event.skipped:
            found = [(rule, rule.stepped(event, self.history, rows)) for rule in self.rules]
            self.history.add(event)
        elif isinstance(event, Evaluated):
            found = [(rule, rule.evaluated(event, self.history)) for rule in self.rules]
        if isinstance(event, Stepped):
            self.history.tokens = event.tokens
        return [Warned(event.step, rule.kind, text, rule.title) for rule, text in found if text is not None]

    def state_dict(self) -> dict[str, Any]:
        history = self.history
        known = {"losses": history.losses, "sizes": history.sizes, "tokens": history.tokens}
        return known | {"rules": {rule.kind: asdict(rule) for rule in self.rules}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.losses, self.history.sizes = list(state["losses"]), list(state["sizes"])
        self.history.tokens = state["tokens"]
        for rule in self.rules:
            vars(rule).update(state["rules"][rule.kind])
