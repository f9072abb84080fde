"""Checks that losses, gradients and weights are finite.

Owns: finding the first tensor that is not finite, and the errors. Does not own: when to check (`loop`). All
processes check the same numbers at the same time, so all raise together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lilliput.errors import UserError
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder
from lilliput.training.sharded_tensors import whole
from lilliput.training.training_warnings import describe_rows


def update_error(
    step: int, loss: float, model: nn.Module, rows: list[int], run: RunFolder, config: Config
) -> UserError:
    """Return the error for a step with a loss or gradient that is not finite. The step is not applied."""
    gradients = ((f"gradient of {name}", p.grad) for name, p in model.named_parameters() if p.grad is not None)
    # A bad weight makes every gradient bad, so weights come first. If all are finite, their sum of squares overflowed.
    tensor = bad_weight(model) or first_not_finite(gradients) or "norm of all gradients"
    what = f"loss is {loss}" if not math.isfinite(loss) else f"{tensor} is not finite"
    where = f"first in {tensor}; {describe_rows(config, rows)}"
    return not_finite(f"{what} at step {step}; the step was not applied", where, run)


def check_weights(step: int, model: nn.Module, run: RunFolder) -> None:
    """Raise if a weight that is about to be saved is not finite."""
    if weight := bad_weight(model):
        raise not_finite(f"{weight} is not finite at step {step}; no checkpoint was written", None, run)


def check_loss(step: int, name: str, loss: float, run: RunFolder) -> None:
    """Raise if the loss of an evaluation is not finite."""
    if not math.isfinite(loss):
        raise not_finite(f"{name} is {loss} at step {step}", str(run.folder), run)


def bad_weight(model: nn.Module) -> str | None:
    return first_not_finite((f"weight {name}", p) for name, p in model.named_parameters())


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, tensor in tensors if not whole(torch.isfinite(tensor).all())), None)


def not_finite(what: str, where: str | None, run: RunFolder) -> UserError:
    last = run.last
    fix = "train with a lower optimizer.lr or optimizer.clip"
    fix += f", starting from the finite weights of {last.folder}" if last is not None else ""
    return UserError(what, where, fix=fix, code="model.not-finite", setting="optimizer.lr")
