"""Checks for losses, gradients and weights that are not finite.

Owns: finding the first tensor that is not finite, and the errors. Does not own: when to check (`loop`). All
processes check the same numbers at the same moment, and so raise together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lilliput.errors import UserError
from lilliput.storage.run_folders import Run
from lilliput.training.sharded_tensors import whole
from lilliput.training.training_warnings import format_rows


def update_error(step: int, loss: float, model: nn.Module, rows: list[int], run: Run) -> UserError:
    """Return the error for an update that is not finite, before it changes the weights: they and the last checkpoint stay."""
    gradients = ((f"gradient of {name}", p.grad) for name, p in model.named_parameters() if p.grad is not None)
    # A weight that is not finite spoils every gradient; of finite gradients only the sum of squares can overflow.
    tensor = bad_weight(model) or first_not_finite(gradients) or "norm of all gradients"
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the {tensor} is not finite"
    where = f"first in the {tensor}; training rows {format_rows(rows)}"
    return not_finite(f"step {step}: {what}; the update was not made", where, run)


def check_weights(step: int, model: nn.Module, run: Run) -> None:
    """Raise if a weight that is about to be saved is not finite; the checkpoints on the disk stay as they are."""
    if found := bad_weight(model):
        raise not_finite(f"step {step}: the {found} is not finite; it was not saved", None, run)


def check_loss(step: int, name: str, loss: float, run: Run) -> None:
    """Raise if the loss of an evaluation is not finite."""
    if not math.isfinite(loss):
        raise not_finite(f"step {step}: the {name} is {loss}", str(run.folder), run)


def bad_weight(model: nn.Module) -> str | None:
    return first_not_finite((f"weight {name}", p) for name, p in model.named_parameters())


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, tensor in tensors if not whole(torch.isfinite(tensor).all())), None)


def not_finite(what: str, where: str | None, run: Run) -> UserError:
    last = run.last
    fix = "train with a lower optimizer.lr or optimizer.clip"
    fix += f", from the weights of {last.folder}, which are finite" if last is not None else ""
    return UserError(what, where, fix=fix, code="model.not-finite", setting="optimizer.lr")
