"""The budget of a run in steps, tokens, minutes or epochs, and the share of it that is used.

Owns: the clock of a run, over all its sessions; the progress, which the learning rate follows; the end of a budget
in minutes. Does not own: counts of steps and tokens (`loop`), the learning rate (`schedules`).

Minutes include checkpoints and evaluations during training. The end of a run comes after them: the last
checkpoint, its evaluation, and the evaluation on whole splits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lilliput.settings.tree import TrainSettings


class Budget:
    """`seconds` is the training time over all sessions of a run. It and `pause` are saved in checkpoints. `epoch_steps` returns
    the steps of a number of epochs."""

    def __init__(self, settings: TrainSettings, epoch_steps: Callable[[float], int]) -> None:
        self.settings = settings
        self.steps = settings.steps if settings.epochs is None else epoch_steps(settings.epochs)
        self.seconds = 0.0
        # The start of the run if it had never been interrupted; the start and the end of the last step.
        self.clock = self.began = self.ended = time.monotonic()
        self.pace = self.pause = 0.0  # seconds of the last step and of the last evaluation
        self.between = 0.0  # fewest seconds between two steps: the time for logging and saving

    def start(self) -> None:
        self.clock = time.monotonic() - self.seconds

    def elapsed(self) -> float:
        self.seconds = time.monotonic() - self.clock
        return self.seconds

    def used(self, step: int, tokens: int) -> float:
        """Return the progress of a resumed run before it starts."""
        self.start()
        return self.progress(step, tokens)

    def progress(self, step: int, tokens: int) -> float:
        """Return the share of the budget that is used; above 1 if the last step exceeded it."""
        budget = self.settings
        if self.steps is not None:
            return step / self.steps
        if budget.tokens is not None:
            return tokens / budget.tokens
        assert budget.minutes is not None
        return self.elapsed() / (60 * budget.minutes)

    def begin_update(self) -> None:
        self.began = time.monotonic()
        since = self.began - self.ended if self.pace else 0.0
        self.between = min(self.between, since) or since  # the minimum excludes evaluations

    def end_update(self) -> float:
        self.ended = time.monotonic()
        self.pace = self.ended - self.began
        return self.pace

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        if self.settings.minutes is not None:  # checkpoints of other runs must not depend on time
            self.pause = time.monotonic() - began

    def forecast(self) -> tuple[bool, bool]:
        """Return, during a step, whether it is the last one, and whether an evaluation after it would leave no time for
        another step. Then the learning rate would not reach the end of its schedule.

        Both are False unless the budget is in minutes. The run ends within half a step of its budget.
        """
        if self.settings.minutes is None:
            return False, False
        pace = max(self.pace, time.monotonic() - self.began)
        left = 60 * self.settings.minutes - (self.began - self.clock + pace)
        return left <= self.between + pace / 2, left <= self.between + self.pause + pace
