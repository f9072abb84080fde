"""The budget of a run in steps, tokens, minutes or epochs, its time limit, and the share of them that is used.

Owns: the clock of a run, over all its sessions; the progress, which the learning rate follows; the end of a budget
in minutes and of the time limit. Does not own: counts of steps and tokens (`loop`), the learning rate (`schedules`).

The progress is the used share of the budget. With train.max_minutes it is the used share of the time instead, if
that is larger: at the mean speed so far the run would not reach its budget within the limit, and the learning rate
would be cut off before its end. The time counts from the end of the first step, which includes compiling code, and
only above a twentieth of the limit: a few slow steps at the start are no reason to change the schedule. A run that is
fast enough has exactly the schedule of its budget, a function of steps or tokens alone.

Minutes include checkpoints and evaluations during training. The end of a run comes after them: the last
checkpoint, its evaluation, and the evaluation on whole splits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lilliput.settings.tree import TrainSettings

UNSURE = 0.05  # share of the time limit in which the speed is not known well enough


class Budget:
    """`seconds` is the training time over all sessions of a run. `epoch_steps` returns the steps of a number of epochs."""

    def __init__(self, settings: TrainSettings, epoch_steps: Callable[[float], int]) -> None:
        self.settings = settings
        self.steps = settings.steps if settings.epochs is None else epoch_steps(settings.epochs)
        given = [minutes for minutes in (settings.minutes, settings.max_minutes) if minutes is not None]
        self.limit = 60 * min(given) if given else None  # seconds
        self.seconds = 0.0
        # The start of the run if it had never been interrupted; the start and the end of the last step.
        self.clock = self.began = self.ended = time.monotonic()
        self.pace = self.pause = 0.0  # seconds of the last step and of the last evaluation
        self.between = 0.0  # fewest seconds between two steps: the time for logging and saving
        self.first = 0.0  # training time at the end of the first step

    def start(self) -> None:
        self.clock = time.monotonic() - self.seconds

    def elapsed(self) -> float:
        self.seconds = time.monotonic() - self.clock
        return self.seconds

    def share(self, step: int, tokens: int) -> float:
        """Return the share of the budget that is used; above 1 if the last step exceeded it."""
        if self.steps is not None:
            return step / self.steps
        if self.settings.tokens is not None:
            return tokens / self.settings.tokens
        assert self.limit is not None
        return self.elapsed() / self.limit

    def progress(self, step: int, tokens: int) -> float:
        """Return the position in the schedule: the share of the budget, or of the time if that will end the run."""
        share = self.share(step, tokens)
        if self.limit is None or self.settings.minutes is not None:
            return share
        passed = (self.elapsed() - self.first) / max(self.limit - self.first, 1e-9)
        return passed if passed > max(share, UNSURE) else share

    def is_complete(self, step: int, tokens: int) -> bool:
        """Return whether a budget in steps, tokens or epochs is used up; `forecast` ends a run by time."""
        return self.settings.minutes is None and self.share(step, tokens) >= 1.0

    def limited_at(self, step: int, tokens: int) -> float | None:
        """Return, for a run that has ended, the used share of its budget if train.max_minutes ended it, else None."""
        if self.limit is None:
            return None
        minutes = self.settings.minutes
        share = self.share(step, tokens) if minutes is None else self.limit / (60 * minutes)
        return share if share < 1.0 else None

    def begin_update(self) -> None:
        self.began = time.monotonic()
        since = self.began - self.ended if self.pace else 0.0
        self.between = min(self.between, since) or since  # the minimum excludes evaluations

    def end_update(self, step: int) -> float:
        self.ended = time.monotonic()
        self.pace = self.ended - self.began
        if step == 1 and self.limit is not None:
            self.first = self.ended - self.clock
        return self.pace

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        if self.limit is not None:  # checkpoints of other runs must not depend on time
            self.pause = time.monotonic() - began

    def forecast(self) -> tuple[bool, bool]:
        """Return, during a step, whether it is the last one, and whether an evaluation after it would leave no time for
        another step. Then the learning rate would not reach the end of its schedule.

        Both are False without a budget in minutes or a time limit. The run ends within half a step of them.
        """
        if self.limit is None:
            return False, False
        pace = max(self.pace, time.monotonic() - self.began)
        left = self.limit - (self.began - self.clock + pace)
        return left <= self.between + pace / 2, left <= self.between + self.pause + pace

    def state_dict(self) -> dict[str, float]:
        return {"seconds": self.elapsed(), "pause": self.pause, "first": self.first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seconds = state["seconds"]
        self.pause, self.first = state.get("pause", 0.0), state.get("first", 0.0)  # older checkpoints lack them
