"""Extend a run: resume it with a larger budget, whether it has finished or not.

Owns: which budgets are larger, recognising a run whose budget has grown, and what changes in its state. Does not own:
resuming (`session`), the other settings of a resumed run (`run_start`), the learning rate (`schedules`).

The learning rate follows the schedule of the new budget from the share of it that is used. If a cosine run of 10 minutes
is extended to 20, its rate continues at the middle of the cosine over 20 minutes, without a new warm-up.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lilliput.errors import UserError
from lilliput.settings.tree import BUDGETS
from lilliput.storage.dotted_names import flatten

if TYPE_CHECKING:
    from lilliput.storage.checkpoints import Checkpoint
    from lilliput.training.loop import Trainer

BUDGET_NAMES = tuple(f"train.{unit}" for unit in BUDGETS)


def budget_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the budget among settings by dotted name, as {name: value}."""
    return {name: settings[name] for name in BUDGET_NAMES if settings.get(name) is not None}


def larger_budget(before: Mapping[str, Any], requested: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the requested budget if it differs from that before; raise if it is smaller. Both are by dotted name.

    A budget in another unit is compared with the used part when the checkpoint is loaded.
    """
    old, new = budget_of(before), budget_of(requested)
    if not new or new == old:
        return {}
    for name, value in new.items():
        if name in old and value < old[name]:
            raise UserError(
                f"the budget of a resumed run must not be smaller (got {value:g}, the run has {old[name]:g})",
                where,
                fix=f"set {name} to {old[name]:g} or more, or remove it",
                code="budget.smaller",
                setting=name,
            )
    return new


def has_grown(checkpoint: Checkpoint, trainer: Trainer[Any]) -> bool:
    """Return whether the run has another budget than when the checkpoint was saved.

    So a run whose extension was interrupted before its first checkpoint is still extended when it is resumed.
    """
    return budget_of(flatten(checkpoint.config())) != budget_of(vars_of(trainer))


def vars_of(trainer: Trainer[Any]) -> dict[str, Any]:
    return {f"train.{unit}": getattr(trainer.config.train, unit) for unit in BUDGETS}


def extend(trainer: Trainer[Any]) -> str:
    """Continue a run with its new budget; return a note. Raise if the budget is used up already."""
    (name, value), used = (
        next(iter(budget_of(vars_of(trainer)).items())),
        trainer.budget.used(trainer.step, trainer.tokens),
    )
    if used >= 1.0:
        raise UserError(
            f"the budget must be larger than what the run has used (got {name} {value:g}, which is used up)",
            str(trainer.run.folder),
            fix=f"set {name} to more than {used * value:.3g}",
            code="budget.smaller",
            setting=name,
        )
    trainer.extended = trainer.ended
    trainer.late = False
    return (
        f"the budget is now {name} {value:g}, of which {used:.0%} is used; the learning rate follows the schedule of the new "
        "budget from there"
    )
