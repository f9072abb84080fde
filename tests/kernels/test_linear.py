"""The linear layer by oneDNN compared with float64; on other processors it is torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lilliput.kernels.linear import UNIT, Linear, can_multiply, find_product


def outcome(layer: torch.nn.Linear, x: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    out = layer(x)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype))
    found = [out.detach(), x.grad, *(weight.grad for weight in layer.parameters())]
    return [one.double() for one in found if one is not None]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(UNIT, 24), (4, UNIT // 2, 24), (3, 5, 24)])
def test_equal_to_float64(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(1)
    layer, x = Linear(24, 40, bias=bias), torch.randn(shape)
    exact = torch.nn.Linear(24, 40, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    found, wanted = outcome(layer, x), outcome(exact, x.double())
    assert len(found) == len(wanted) == (4 if bias else 3)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


@pytest.mark.skipif(find_product() is None, reason="not on this processor")
def test_inputs_that_onednn_computes() -> None:
    weight = torch.zeros(3, 8)
    assert can_multiply(torch.zeros(2, UNIT, 8), weight)
    assert not can_multiply(torch.zeros(2, UNIT - 1, 8), weight), "the number of rows must be a multiple of UNIT"
    assert not can_multiply(torch.zeros(2, UNIT, 8, dtype=torch.float64), weight.double())
    assert not can_multiply(torch.zeros(0, UNIT, 8), weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_multiply(torch.zeros(2, UNIT, 8), weight)
