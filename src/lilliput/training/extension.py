"""Extend a run: resume it with a larger budget, whether it has finished or not.

Owns: which budgets are larger, recognising a run whose budget or time limit has changed, and what changes in its state.
Does not own: resuming (`session`), the other settings of a resumed run (`run_start`), the learning rate (`schedules`).

The learning rate follows the schedule of the new budget from the share of it that is used. If a cosine run of 10 minutes
is extended to 20, its rate continues at the middle of the cosine over 20 minutes, without a new warm-up.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lilliput.errors import UserError
from lilliput.settings.tree import BUDGETS, TIME_LIMIT
from lilliput.storage.dotted_names import flatten

if TYPE_CHECKING:
    from lilliput.storage.checkpoints import Checkpoint
    from lilliput.training.loop import Trainer

LIMIT = f"train.{TIME_LIMIT}"
UNIT_NAMES = tuple(f"train.{unit}" for unit in BUDGETS)
BUDGET_NAMES = (*UNIT_NAMES, LIMIT)
TIMED = ("train.minutes", LIMIT)


def budget_of(settings: Mapping[str, Any], names: Sequence[str] = BUDGET_NAMES) -> dict[str, Any]:
    """Return the budget and the time limit among settings by dotted name, as {name: value}."""
    return {name: settings[name] for name in names if settings.get(name) is not None}


def larger_budget(before: Mapping[str, Any], requested: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the requested budget and time limit if they differ from those before; raise if the budget is smaller. All are by
    dotted name.

    A budget in another unit, and the time limit, are compared with the used part when the checkpoint is loaded.
    """
    old, new = budget_of(before, UNIT_NAMES), budget_of(requested, UNIT_NAMES)
    changed = new if new != old else {}
    limit = {LIMIT: requested[LIMIT]} if LIMIT in requested else {}
    if not changed and (not limit or requested[LIMIT] == before.get(LIMIT)):
        return {}
    for name, value in changed.items():
        if name in old and value < old[name]:
            raise UserError(
                f"the budget of a resumed run must not be smaller (got {value:g}, the run has {old[name]:g})",
                where,
                fix=f"set {name} to {old[name]:g} or more, or remove it",
                code="budget.smaller",
                setting=name,
            )
    return changed | limit


def has_grown(checkpoint: Checkpoint, trainer: Trainer[Any]) -> bool:
    """Return whether the run has another budget or time limit than when the checkpoint was saved.

    So a run whose extension was interrupted before its first checkpoint is still extended when it is resumed.
    """
    return budget_of(flatten(checkpoint.config())) != budget_of(vars_of(trainer))


def vars_of(trainer: Trainer[Any]) -> dict[str, Any]:
    return {f"train.{unit}": getattr(trainer.config.train, unit) for unit in (*BUDGETS, TIME_LIMIT)}


def extend(trainer: Trainer[Any]) -> str:
    """Continue a run with its new budget and time limit; return a note. Raise if one of them is used up already."""
    budget, now = trainer.budget, budget_of(vars_of(trainer))
    shares = {
        name: budget.seconds / (60 * value) if name in TIMED else budget.share(trainer.step, trainer.tokens)
        for name, value in now.items()
    }
    for name, used in shares.items():
        if used >= 1.0:
            raise UserError(
                f"the budget must be larger than what the run has used (got {name} {now[name]:g}, which is used up)",
                str(trainer.run.folder),
                fix=f"set {name} to more than {used * now[name]:.3g}",
                code="budget.smaller",
                setting=name,
            )
    trainer.extended = trainer.ended
    trainer.late = False
    listed = " and ".join(f"{name} {now[name]:g}, of which {used:.0%} is used" for name, used in shares.items())
    return f"the budget is now {listed}; the learning rate follows the schedule of the new budget from there"
