"""The learning rate over the budget.

Owns: the multiplier of the peak learning rate as a function of the step and of the progress, the share of the budget
that is used up, whether it is counted in steps, tokens or minutes. Does not own: the budget (`loop`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lilliput.settings import ScheduleSettings

Shape = Callable[[float], float]  # progress 0..1 -> 1..0

SHAPES: dict[str, Shape] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate(settings: ScheduleSettings, peak: float, step: int, progress: float) -> float:
    """For update number `step` (the first is 1) at a progress from 0 to 1."""
    warm = min(1.0, step / settings.warmup) if settings.warmup else 1.0
    falling = (progress - (1.0 - settings.decay)) / settings.decay
    shape = SHAPES[settings.kind](min(1.0, max(0.0, falling)))
    return peak * warm * (settings.final + (1.0 - settings.final) * shape)
