"""Optimizers and schedules by name.

Owns: a table of each; this module does not import torch. Does not own: the optimizers (`optimizers`, `muon`), the
schedules (`schedules`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lilliput.model.counting import Parameters, widths
from lilliput.settings.choice_tables import TABLES, Choice, ChoiceTable, Conflict
from lilliput.settings.tree import Config

# Optimizers: a function of the optimizer settings and the model, or a subclass of torch.optim.Optimizer ----------------


def two_moments(config: Config, parameters: Parameters) -> int:
    return 2 * parameters.trainable


def sgd_moments(config: Config, parameters: Parameters) -> int:
    return parameters.trainable if config.optimizer.momentum else 0


def muon_moments(config: Config, parameters: Parameters) -> int:
    """Return one number for each weight in a matrix of a block, and two for each other weight."""
    return 2 * parameters.trainable - config.model.layers * widths(config.model).matrices


@dataclass(frozen=True, kw_only=True)
class OptimizerChoice(Choice):
    """`moments` returns the number of values in the optimizer's state, to estimate memory."""

    moments: Callable[[Config, Parameters], int] = two_moments


OPTIMIZERS: ChoiceTable[OptimizerChoice] = TABLES["optimizer.kind"]
OPTIMIZERS.kind = OptimizerChoice
OPTIMIZERS.add(
    OptimizerChoice(name="sgd", builds="lilliput.training.optimizers:build_sgd", moments=sgd_moments),
    OptimizerChoice(name="adam", builds="lilliput.training.optimizers:build_adam"),
    OptimizerChoice(name="adamw", builds="lilliput.training.optimizers:build_adamw"),
    OptimizerChoice(name="muon", builds="lilliput.training.optimizers:build_muon", moments=muon_moments),
)

# Schedules: functions without arguments that return a `schedules.Shape` ------------------------------------------------


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
