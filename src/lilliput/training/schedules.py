"""The learning rate as a function of the step and of the progress, the used share of the budget.

Owns: the schedules. Does not own: the budget (`budget`).

The rate rises to its peak over `warmup` steps, stays level, and falls to `final` over the last `decay` share of the
budget. With `decay` 0 it stays level to the end; a small `decay` is the warmup-stable-decay schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lilliput.settings.tree import Config, ScheduleSettings
from lilliput.training.training_choices import SCHEDULES


def stay(step: int, warmup: int) -> float:
    return 1.0


def inverse_root(step: int, warmup: int) -> float:
    """Vaswani et al. 2017, section 5.3. With `decay` and `final` 0 the rate does not depend on the budget."""
    return min(1.0, math.sqrt(warmup / step))


@dataclass(frozen=True)
class Shape:
    """Factors of the peak: `level` of (step, warmup), and `fall`, which maps the share of the decay, 0..1, to 1..0."""

    level: Callable[[int, int], float]
    fall: Callable[[float], float]


def constant() -> Shape:
    return Shape(stay, lambda over: 1.0)


def linear() -> Shape:
    return Shape(stay, lambda over: 1.0 - over)


def cosine() -> Shape:
    return Shape(stay, lambda over: 0.5 * (1.0 + math.cos(math.pi * over)))


def inverse_sqrt() -> Shape:
    return Shape(inverse_root, lambda over: 1.0 - over)


def learning_rate(settings: ScheduleSettings, peak: float, step: int, progress: float) -> float:
    """Return the learning rate of a step (the first is 1) at a progress from 0 to 1."""
    shape: Shape = SCHEDULES[settings.kind].build()
    warm = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    over = (progress - (1.0 - settings.decay)) / settings.decay if settings.decay else 0.0
    above = max(0.0, shape.level(step, settings.warmup) - settings.final)  # never below the final rate
    return peak * warm * (settings.final + above * shape.fall(min(1.0, max(0.0, over))))


def warm_up_note(config: Config) -> str | None:
    """Return a note if the warm-up is longer than the budget; only a budget in steps can be compared."""
    warmup, steps = config.schedule.warmup, config.train.steps
    if steps is None or warmup <= steps:
        return None
    advice = f"set schedule.warmup to {max(1, steps // 10):,}"
    return f"the warm-up ({warmup:,} steps) is longer than the run ({steps:,} steps): the learning rate stays low; {advice}"
