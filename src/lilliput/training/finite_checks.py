"""Numbers that are not finite: which they are, and how it is told.

Owns: looking for them in losses, gradients and weights, and the refusals. Does not own: when to look
(`loop`). All processes look at the same numbers at the same moment, and so refuse together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lilliput.errors import UserError
from lilliput.storage.run_folders import Run
from lilliput.training.sharded_tensors import whole
from lilliput.training.training_warnings import tell_rows


def refuse_update(step: int, loss: float, model: nn.Module, rows: list[int], run: Run) -> UserError:
    """Told before the weights are touched: they, and the last checkpoint, are as good as before."""
    gradients = ((f"gradient of {name}", p.grad) for name, p in model.named_parameters() if p.grad is not None)
    # Any gradient is spoilt by a weight that is; of sound gradients only the sum of squares can overflow.
    tensor = spoilt_weight(model) or first_not_finite(gradients) or "norm of all gradients"
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the {tensor} is not finite"
    where = f"first in the {tensor}; training rows {tell_rows(rows)}"
    return UserError(f"step {step}: {what}; the update was not made", where, way_back(run))


def check_weights(step: int, model: nn.Module, run: Run) -> None:
    """Before they are saved. An update may have spoilt them; what is on disk is still good, and stays."""
    if spoilt := spoilt_weight(model):
        raise UserError(f"step {step}: the {spoilt} is not finite; it was not saved", None, way_back(run))


def check_loss(step: int, what: str, loss: float, run: Run) -> None:
    if not math.isfinite(loss):
        fix = "a lower optimizer.lr; older checkpoints are kept"
        raise UserError(f"step {step}: the {what} is {loss}", str(run.folder), fix)


def spoilt_weight(model: nn.Module) -> str | None:
    return first_not_finite((f"weight {name}", p) for name, p in model.named_parameters())


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, tensor in tensors if not whole(torch.isfinite(tensor).all())), None)


def way_back(run: Run) -> str:
    if (last := run.last) is None:
        return "a lower optimizer.lr or optimizer.clip"
    return f"--from {last.folder} --name NEW with a lower optimizer.lr: that checkpoint is good"
