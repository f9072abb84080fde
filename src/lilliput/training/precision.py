"""Mixed precision in training.

Owns: automatic casting in forward passes (products in 16 bits; weights, norms and losses in 32), and the loss scale
of float16. Does not own: which type is fast on this machine (`devices`), the order of a step (`loop`).

bfloat16 has the range of float32 and needs only the casting. float16 overflows above 65,504 and loses numbers below
6e-8, where most gradients of a small loss are. So the loss is multiplied by a scale, as large as overflows allow
(Micikevicius et al. 2018, section 3.2), and gradients are divided by it before they are used.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lilliput.devices import choose_precision

FIRST_SCALE = 2.0**16
PATIENCE = 2000  # steps without an overflow after which the scale is doubled


class Precision:
    """`dtype`: type of products. `weights_dtype`: of weights, gradients and moments. `note`: a sentence for the user.

    `scale`: factor of the loss before the backward pass; 1 except in float16.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, note: str | None = None) -> None:
        self.device, self.dtype, self.note = device, dtype, note
        self.weights_dtype = torch.float64 if dtype is torch.float64 else torch.float32
        self.scale = FIRST_SCALE if dtype is torch.float16 else 1.0
        self.good = 0  # steps since the scale last changed

    def casting(self) -> AbstractContextManager[None]:
        """Return a new autocast context for one forward pass of training; the backward pass is outside it.

        A context caches cast weights, which are wrong after a step.
        """
        if self.dtype is self.weights_dtype:
            return nullcontext()
        casting: AbstractContextManager[None] = torch.autocast(self.device.type, self.dtype)
        return casting

    def accept(self, norm: Tensor) -> bool:
        """Return whether to use this gradient. If not, it overflowed and the scale is halved.

        At scale 1 the result is True even if the norm is not finite; the caller must check that.
        """
        if self.dtype is not torch.float16:
            return True
        if torch.isfinite(norm):
            self.good += 1
            if self.good == PATIENCE:
                self.scale, self.good = 2.0 * self.scale, 0
            return True
        if self.scale <= 1.0:
            return True
        self.scale, self.good = self.scale / 2.0, 0
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good = state["scale"], state["good"]


def build_precision(name: str, device: torch.device) -> Precision:
    """Build the precision for a value of train.precision; `auto` chooses a fast type of the device."""
    return Precision(device, *choose_precision(name, device))
