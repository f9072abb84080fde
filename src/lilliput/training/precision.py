"""The type of the numbers while a model learns.

Owns: automatic casting around a forward pass (products in 16 bits, weights, norms and losses in 32), and the
scale of the loss that float16 needs. Does not own: which type this machine does well (`devices`), the order
of an update (`loop`).

bfloat16 has the range of float32 and needs no more than the casting. float16 ends at 65,504 and loses what is below
6e-8,
where most gradients of a small loss lie: the loss is multiplied by a scale, as large as overflows allow (Micikevicius
et al.
2018, section 3.2), and gradients are divided by it before anybody looks at them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from lilliput.devices import choose_precision

FIRST_SCALE = 2.0**16
PATIENCE = 2000  # updates without an overflow after which the scale is doubled


class Precision:
    """`dtype` is of products, `weights_dtype` of weights, gradients and moments. `note` is a sentence for the user.

    `scale` is what the goal is multiplied by before its backward pass; 1 but for float16.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, note: str | None = None) -> None:
        self.device, self.dtype, self.note = device, dtype, note
        self.weights_dtype = torch.float64 if dtype is torch.float64 else torch.float32
        self.scale = FIRST_SCALE if dtype is torch.float16 else 1.0
        self.good = 0  # updates since the scale last changed

    def casting(self) -> AbstractContextManager[None]:
        """Around every forward pass that is learned from; not around the backward one, which follows it by itself.

        Anew for each: weights are cast once within one, and are others after an update.
        """
        if self.dtype is self.weights_dtype:
            return nullcontext()
        casting: AbstractContextManager[None] = torch.autocast(self.device.type, self.dtype)
        return casting

    def accept(self, norm: Tensor) -> bool:
        """Is this gradient to be used? False: it overflowed because of the scale, which is lower from now on.

        A gradient that is not finite at scale 1 is nothing that a scale could mend: it is the caller's to refuse.
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
    """Of the setting train.precision; `auto` is what the device does well."""
    return Precision(device, *choose_precision(name, device))
