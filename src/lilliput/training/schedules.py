"""The learning rate over the budget.

Owns: the multiplier of the peak learning rate as a function of the step and of the progress, the share of the
budget that is used up, whether it is counted in steps, tokens or minutes. Does not own: the budget (`loop`).

A rate rises to its peak over `warmup` steps, keeps its level until the last `decay` share of the budget is
reached, and falls to `final` over that share, where it is at the end. Warm-up, stable, decay is a level that
is kept and a short fall; with a `decay` of 0 the level is kept to the end.
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
    """Vaswani et al. 2017, section 5.3. The level alone knows no budget; with a `decay` and a `final` of 0 it is all there is,
    and the end may be chosen late."""
    return min(1.0, math.sqrt(warmup / step))


@dataclass(frozen=True)
class Shape:
    """Shares of the peak: the level by (step, warmup), and what is left of it by how much of the fall is over, 0..1 -> 1..0."""

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
    """For update number `step` (the first is 1) at a progress from 0 to 1."""
    shape: Shape = SCHEDULES[settings.kind].build()
    warm = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    over = (progress - (1.0 - settings.decay)) / settings.decay if settings.decay else 0.0
    above = max(0.0, shape.level(step, settings.warmup) - settings.final)  # a level below the final rate is that rate
    return peak * warm * (settings.final + above * shape.fall(min(1.0, max(0.0, over))))


def warm_up_note(config: Config) -> str | None:
    """A sentence for the user whose budget ends before the warm-up does; known beforehand only of a budget in steps."""
    warmup, steps = config.schedule.warmup, config.train.steps
    if steps is None or warmup <= steps:
        return None
    return f"schedule.warmup is {warmup:,} steps and train.steps {steps:,}: the learning rate never reaches its peak"
