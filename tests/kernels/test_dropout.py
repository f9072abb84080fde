"""Dropout with a computed mask: equal to the same mask in NumPy, determined by torch's seed, and random enough."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from helpers.dropout_masks import mask_lines, tensor_mask_of
from lilliput.kernels import dropout
from lilliput.kernels.dropout import LINE, RANGE, Drop, Dropout, DropoutMask, can_drop, draw_mask
from lilliput.kernels.openmp import find_openmp_parallel
from lilliput.kernels.registers import PANEL

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" and find_openmp_parallel() is None, reason="torch's OpenMP library was not found"
)
SIGMAS = 5.0  # of a normal distribution: one in two million


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DropoutMask]]:
    """The masks that layers draw."""
    drawn: list[DropoutMask] = []

    def recorded(p: float) -> DropoutMask:
        drawn.append(draw_mask(p))
        return drawn[-1]

    monkeypatch.setattr(dropout, "draw_mask", recorded)
    yield drawn


# Equality with the definition.


@pytest.mark.parametrize("shape", [(PANEL,), (3, 5, 16), (2, LINE), (1, LINE + PANEL), (7, 33, 48), (4, 4 * LINE - 16)])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_equal_to_the_mask_in_numpy(shape: tuple[int, ...], p: float, masks: list[DropoutMask]) -> None:
    x, d_out = draw(*shape).requires_grad_(), draw(*shape, seed=1)
    out = Dropout(p)(x)
    out.backward(d_out)
    (mask,) = masks
    kept, scale = tensor_mask_of(mask, *shape), torch.tensor(1 / (1 - p), dtype=torch.float32)
    assert torch.equal(out, torch.where(kept, x * scale, 0.0))
    assert x.grad is not None and torch.equal(x.grad, torch.where(kept, d_out * scale, 0.0))


def test_gradients_and_inputs_need_not_be_contiguous(masks: list[DropoutMask]) -> None:
    x = draw(6, 32).t().requires_grad_()
    out = Dropout(0.5)(x)
    out.sum().backward()  # its gradient is one number, expanded
    kept = tensor_mask_of(masks[0], 32, 6)
    assert torch.equal(out, torch.where(kept, 2 * x, 0.0))
    assert x.grad is not None and torch.equal(x.grad, 2.0 * kept)


def test_nothing_is_saved_for_the_backward_pass() -> None:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        Dropout(0.5)(draw(4, 16).requires_grad_())
        assert not saved
        nn.Dropout(0.5)(draw(4, 16).requires_grad_())
        assert saved


def test_gradients_have_gradients() -> None:
    x, mask = draw(3, 16).requires_grad_(), draw_mask(0.5)
    (gradient,) = torch.autograd.grad(Drop.apply(x, mask).square().sum(), x, create_graph=True)  # type: ignore[no-untyped-call]
    gradient.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 8.0 * tensor_mask_of(mask, 3, 16))


@pytest.mark.parametrize("p", [1e-12, 1e-9, 1 - 1e-9, 1 - 1e-12])
def test_extreme_probabilities(p: float) -> None:
    mask = draw_mask(p)
    assert 0 <= mask.threshold < RANGE
    x = draw(4, LINE)
    out = Drop.apply(x, mask)  # type: ignore[no-untyped-call]
    assert torch.equal(out, x if p < 0.5 else torch.zeros_like(x)), "one of 16,384 numbers: improbable"


def test_torch_computes_what_is_not_supported(masks: list[DropoutMask]) -> None:
    layer, x = Dropout(0.3), draw(2, 16)
    assert can_drop(x)
    unsupported = [x.double(), x.bfloat16(), draw(2, 15), draw(0, 16)]
    for tensor in unsupported:
        assert not can_drop(tensor)
        torch.manual_seed(1)
        expected = nn.functional.dropout(tensor, 0.3)
        torch.manual_seed(1)
        assert torch.equal(layer(tensor), expected)
    assert not masks


def test_no_dropout_draws_nothing(masks: list[DropoutMask]) -> None:
    x, before = draw(2, 16), torch.get_rng_state()
    assert Dropout(0.0)(x) is x and Dropout(0.5).eval()(x) is x
    assert not masks and torch.equal(torch.get_rng_state(), before)


# Seeds and threads.


def test_the_seed_of_torch_determines_the_mask(masks: list[DropoutMask]) -> None:
    layer, x, found = Dropout(0.5), draw(5, 16), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append([layer(x), layer(x)])
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert len({mask.seed for mask in masks}) == 4 and masks[:2] == masks[2:4]
    assert not torch.equal(found[0][0], found[0][1]) and not torch.equal(found[0][0], found[2][0])


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    x, mask, before, found = draw(9, LINE + 160), draw_mask(0.2), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(Drop.apply(x, mask))  # type: ignore[no-untyped-call]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


# Randomness. The compiled mask equals that of NumPy, which is examined here.


def standardised(mask: DropoutMask, lines: NDArray[np.uint64], width: int) -> NDArray[np.float64]:
    """Return a mask as numbers of mean 0 and variance 1, if each number is dropped with its probability."""
    p = mask.threshold / RANGE
    return (mask_lines(mask, lines, width) - (1 - p)) / math.sqrt(p * (1 - p))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.2, 0.5, 0.9])
def test_share_of_kept_numbers(p: float) -> None:
    """Of all numbers, of each line and of each column; counts of lines spread as those of a binomial distribution do."""
    numbers = standardised(DropoutMask(1234567, round(p * RANGE)), np.arange(2048, dtype=np.uint64), 1024)
    assert abs(numbers.sum()) < SIGMAS * math.sqrt(numbers.size)
    for axis, count in ((0, 2048), (1, 1024)):
        sums = numbers.sum(axis=axis) / math.sqrt(count)
        assert np.abs(sums).max() < SIGMAS + 1.0  # the largest of thousands
        assert abs(sums.var() - 1.0) < SIGMAS * math.sqrt(2.0 / sums.size)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_are_uncorrelated(p: float) -> None:
    """Numbers of one line, and the same number of two lines (queries, heads and rows), at many distances."""
    numbers = standardised(DropoutMask(7654321, round(p * RANGE)), np.arange(2048, dtype=np.uint64), 512)
    for distance in (*range(1, 34), 63, 64, 65, 128, 256):
        for products in (numbers[:, distance:] * numbers[:, :-distance], numbers[distance:] * numbers[:-distance]):
            assert abs(products.sum()) < SIGMAS * math.sqrt(products.size), distance


def test_masks_of_different_calls_are_uncorrelated() -> None:
    """Also if the seeds differ by one bit, or by one step of the generator of keys."""
    seeds = [1, 2, 3, 1 + 2**32, 1 + 2**62, *(draw_mask(0.5).seed for _ in range(5))]
    lines = np.arange(1024, dtype=np.uint64)
    numbers = [standardised(DropoutMask(seed, RANGE // 2), lines, 512) for seed in seeds]
    for one, other in itertools.combinations(numbers, 2):
        assert abs((one * other).sum()) < SIGMAS * math.sqrt(one.size)
