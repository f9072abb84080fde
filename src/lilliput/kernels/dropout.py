"""Dropout on a CPU in float32 whose mask is computed, not drawn and stored.

Owns: the layer `Dropout`, when compiled code computes it, and the seed and threshold of a mask. Does not own: the mask of a
seed and the loops (`dropout_loops`; they need numba and are not imported if their code is cached), or dropout of attention
weights (`training_attention`; it uses the same masks).

torch draws one number after the other, in one thread (8 ms for a million of them), and keeps a float for each. Here a mask
is a function of a seed and of the position in the tensor. Each call draws one seed from torch's generator; the backward pass
computes the mask again from the seed. The result does not depend on the number of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.kernels.code_cache import Kernel
from lilliput.kernels.openmp import find_openmp_parallel
from lilliput.kernels.registers import PANEL

LOG = logging.getLogger("lilliput")
LINE = 4096  # numbers that share a key: the key costs as much as a few panels
RANGE = 2**32  # of the hash of a number


class DropoutMask(NamedTuple):
    """A number is dropped if its hash is below the threshold; a threshold of 0 is no dropout."""

    seed: int
    threshold: int


NO_MASK = DropoutMask(0, 0)


def draw_mask(p: float) -> DropoutMask:
    """Draw the seed from torch's generator, which is what recomputation and a resumed run restore."""
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    return DropoutMask(seed, min(round(p * RANGE), RANGE - 1))


class DropoutArguments(NamedTuple):
    """Arguments of the compiled loop: sizes, and addresses of float32 and int64 arrays."""

    counter: int  # the next line
    x: int
    out: int
    size: int  # numbers of x, a multiple of PANEL
    seed: int
    threshold: int


def compile_dropout() -> tuple[str, bytes]:
    from lilliput.kernels.dropout_loops import compile_dropout

    return compile_dropout()


DROPOUT = Kernel("dropout", "dropout", [], compile_dropout)


def load_dropout(report: Callable[[str], None]) -> None:
    """Load or compile the kernel before the first step; `report` gets messages about a compilation."""
    if find_openmp_parallel() is not None:
        DROPOUT.load(report)


def can_drop(x: Tensor) -> bool:
    """Return whether the loop supports this tensor and torch's threads can be used."""
    return (
        x.device.type == "cpu"
        and x.dtype is torch.float32
        and x.numel() > 0
        and x.numel() % PANEL == 0
        and not torch.compiler.is_compiling()
        and find_openmp_parallel() is not None
    )


class Drop(torch.autograd.Function):
    """x / (1 - p) where the mask keeps it, else 0. The gradient is the same function of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: DropoutMask) -> Tensor:
        ctx.mask = mask
        x = x.contiguous()
        out, counter = torch.empty_like(x), np.zeros(1, dtype=np.int64)
        args = DropoutArguments(counter.ctypes.data, x.data_ptr(), out.data_ptr(), x.numel(), *mask)
        numbers = np.array(args, dtype=np.int64)
        find_openmp_parallel()(DROPOUT.load(LOG.warning), numbers.ctypes.data, torch.get_num_threads(), 0)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return Drop.apply(gradients[0], ctx.mask), None  # type: ignore[no-untyped-call]


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.p and can_drop(x):
            out: Tensor = Drop.apply(x, draw_mask(self.p))  # type: ignore[no-untyped-call]
            return out
        return super().forward(x)
