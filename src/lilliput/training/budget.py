"""How much of its budget a run has used up, in steps, tokens or minutes.

Owns: the clock of a run, through all its pauses; the share of the budget that is gone, which the learning
rate follows; and when minutes are over. Does not own: steps and tokens (`loop` counts them), the learning
rate (`schedules`).

Minutes are those of training, with its checkpoints and evaluations. What every run ends with comes after
them: the last checkpoint, the evaluation of its weights, and the judgement over whole splits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lilliput.settings.tree import TrainSettings


class Budget:
    """`seconds` are of training, over all sessions of a run; they, and `pause`, have to be saved."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings
        self.seconds = 0.0
        # When the run would have begun, had it never paused; when the last update began, and ended.
        self.clock = self.began = self.ended = time.monotonic()
        self.pace = self.pause = 0.0  # seconds of the last update, and of the last evaluation
        self.between = 0.0  # seconds from one update to the next, at least: for what is logged and saved

    def start(self) -> None:
        self.clock = time.monotonic() - self.seconds

    def elapsed(self) -> float:
        self.seconds = time.monotonic() - self.clock
        return self.seconds

    def progress(self, step: int, tokens: int) -> float:
        """Share of the budget that is used up; more than 1 where an update went beyond it."""
        budget = self.settings
        if budget.steps is not None:
            return step / budget.steps
        if budget.tokens is not None:
            return tokens / budget.tokens
        assert budget.minutes is not None
        return self.elapsed() / (60 * budget.minutes)

    def begin_update(self) -> None:
        self.began = time.monotonic()
        since = self.began - self.ended if self.pace else 0.0
        self.between = min(self.between, since) or since  # the least of them: some have an evaluation within

    def end_update(self) -> float:
        self.ended = time.monotonic()
        self.pace = self.ended - self.began
        return self.pace

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        if self.settings.minutes is not None:  # the state of any other run has no times
            self.pause = time.monotonic() - began

    def forecast(self) -> tuple[bool, bool]:
        """In the middle of an update, of a budget in minutes: is this the last one? And would an evaluation after it leave
        no time for another one, so that the rate would never come down to the end of its schedule?

        An update that would end after the budget is not begun; half of one either way is the best that can be had.
        """
        if self.settings.minutes is None:
            return False, False
        pace = max(self.pace, time.monotonic() - self.began)
        left = 60 * self.settings.minutes - (self.began - self.clock + pace)
        return left <= self.between + pace / 2, left <= self.between + self.pause + pace
