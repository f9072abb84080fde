"""The choices of training by name: optimizers and shapes of the learning rate.

Owns: one table for each. Needs no torch. Does not own: the optimizers (`optimizers`, `muon`) and the schedule (`schedules`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lilliput.model.counting import Parameters, widths
from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable, Conflict
from lilliput.settings.tree import Config

# Optimizers: built with the settings of the optimizer and the model, or a subclass of torch.optim.Optimizer -----------


def two_moments(config: Config, parameters: Parameters) -> int:
    return 2 * parameters.trainable


def sgd_moments(config: Config, parameters: Parameters) -> int:
    return parameters.trainable if config.optimizer.momentum else 0


def muon_moments(config: Config, parameters: Parameters) -> int:
    """Count one number for each weight in a matrix of a block, two for all others."""
    return 2 * parameters.trainable - config.model.layers * widths(config.model).matrices


@dataclass(frozen=True, kw_only=True)
class OptimizerChoice(Choice):
    """`moments`: the numbers that the optimizer keeps, for the estimate of memory."""

    moments: Callable[[Config, Parameters], int] = two_moments


OPTIMIZERS: ChoiceTable[OptimizerChoice] = TABLES["optimizer.kind"]
OPTIMIZERS.kind = OptimizerChoice
OPTIMIZERS.add(
    OptimizerChoice(name="sgd", builds="lilliput.training.optimizers:build_sgd", moments=sgd_moments),
    OptimizerChoice(name="adam", builds="lilliput.training.optimizers:build_adam"),
    OptimizerChoice(name="adamw", builds="lilliput.training.optimizers:build_adamw"),
    OptimizerChoice(name="muon", builds="lilliput.training.optimizers:build_muon", moments=muon_moments),
)

# Schedules: built with nothing; the result is a `schedules.Shape` -----------------------------------------------------


def needs_warmup(config: Config) -> list[Conflict]:
    if config.schedule.warmup:
        return []
    what = "schedule.kind inverse-sqrt requires a warm-up (got schedule.warmup 0)"
    return [Conflict("schedule.warmup", what, "set schedule.warmup to 1 or more")]


SCHEDULES: ChoiceTable[Choice] = TABLES["schedule.kind"]
SCHEDULES.add(
    Choice(name="constant", builds="lilliput.training.schedules:constant"),
    Choice(name="cosine", builds="lilliput.training.schedules:cosine"),
    Choice(name="linear", builds="lilliput.training.schedules:linear"),
    Choice(name="inverse-sqrt", builds="lilliput.training.schedules:inverse_sqrt", rules=needs_warmup),
)
