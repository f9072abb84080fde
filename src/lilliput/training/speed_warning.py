"""A warning about a run that has become much slower, usually because other programs use the machine.

Owns: the rule and its advice. Does not own: the warnings about losses (`training_warnings`), the limit of the time (`budget`).

Speeds are tokens per second of single steps, so long and short batches are comparable, and evaluations do not count. They are
collected in windows of half a minute; the median of a window is compared with the median of all windows before it. So neither
a few slow steps nor batches of different lengths cause a warning. The rule warns once per session. Its state is not saved,
because checkpoints of repeated runs must be equal.
"""

from __future__ import annotations

from statistics import median

from lilliput.training.events import Event, Stepped, Warned

KIND = "speed"
TITLE = "training has become slower"
WINDOW, FEWEST = 30.0, 20  # seconds and steps of a window, at least
DROP = 0.5  # share of the earlier speed


class SpeedWatch:
    """`threads` compute on the CPU; 1 also for another device."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.began: float | None = None  # seconds of training at the start of the window
        self.speeds: list[float] = []  # of its steps
        self.medians: list[float] = []  # of the windows before
        self.warned = False

    def check(self, event: Event) -> list[Warned]:
        if not isinstance(event, Stepped):
            return []
        if self.began is None:  # the first step of a session compiles code
            self.began = event.seconds
            return []
        self.speeds.append(event.tokens_per_second)
        if event.seconds - self.began < WINDOW or len(self.speeds) < FEWEST:
            return []
        now, self.speeds, self.began = median(self.speeds), [], event.seconds
        before = median(self.medians) if self.medians else None
        self.medians.append(now)
        if self.warned or before is None or now >= DROP * before:
            return []
        self.warned = True
        return [Warned(event.step, KIND, self.describe(before, now), TITLE)]

    def describe(self, before: float, now: float) -> str:
        advice = "close other programs"
        if self.threads > 1:
            advice += ", or stop the run and resume it with OMP_NUM_THREADS=1 (a new run: train.threads 1)"
        return f"training has become slower: from {before:,.0f} to {now:,.0f} tokens/s for half a minute; {advice}"
