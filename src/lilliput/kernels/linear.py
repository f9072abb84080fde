"""A linear layer in float32 that uses oneDNN on processors where it is faster than torch's choice, MKL.

Owns: the layer `Linear`, and when oneDNN computes it. Does not own: which layers use it.

For float32, torch calls MKL, which does not use AVX-512 on AMD processors. oneDNN, also a part of torch, does: it is 1.02
to 1.18 times as fast for outputs and for gradients of inputs. For gradients of weights MKL is faster. oneDNN compiles and
caches code for each shape, so it is used only if the number of rows is a multiple of UNIT: batches of equal windows have
one shape, batches of documents hundreds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from llvmlite import binding  # type: ignore[import-untyped]
from torch import Tensor, nn

from lilliput.kernels.registers import wide_registers

UNIT = 512  # rows


@cache
def find_product() -> Any:
    """Return oneDNN's x @ weight.T + bias where it is faster than MKL, else None."""
    available = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not (available and wide_registers() and binding.get_host_cpu_name().startswith("znver")):
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # an internal operator of torch's compiler


def can_multiply(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype is weight.dtype is torch.float32
        and x.numel() // x.shape[-1] % UNIT == 0
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and find_product() is not None
    )


class Product(torch.autograd.Function):
    """x @ weight.T + bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        out: Tensor = find_product()(x, weight, bias, "none", [], "")
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_out = gradients[0].flatten(0, -2)  # (N, outputs)
        d_x, d_weight, d_bias = None, None, None
        if ctx.needs_input_grad[0]:
            d_x = find_product()(d_out, weight.t(), None, "none", [], "").view_as(x)
        if ctx.needs_input_grad[1]:
            d_weight = d_out.t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            d_bias = d_out.sum(dim=0)
        return d_x, d_weight, d_bias


class Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if can_multiply(x, self.weight):
            out: Tensor = Product.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return out
        return F.linear(x, self.weight, self.bias)
