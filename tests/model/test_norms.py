"""Norms compared with their formulas, and explicit gradients with those of autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.tiny_models import assert_same, draw
from lilliput.model.model_choices import NORMS
from lilliput.model.norms import QueryKeyNorm, root_mean_square


def test_norms_equal_their_formulas() -> None:
    x, weight, bias = draw(3, 8), draw(8, seed=1), draw(8, seed=2)
    layer, rms = NORMS["layer"].build(8).double(), NORMS["rms"].build(8).double()
    with torch.no_grad():
        layer.weight.copy_(weight), layer.bias.copy_(bias), rms.weight.copy_(weight)
    a = x.numpy()
    centred = a - a.mean(axis=1, keepdims=True)
    by_hand = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight.numpy() + bias.numpy()
    assert_same(layer(x), torch.from_numpy(by_hand))
    assert_same(rms(x), torch.from_numpy(a / np.sqrt((a**2).mean(axis=1, keepdims=True) + 1e-5) * weight.numpy()))


def test_unbiased_layer_norm_equals_its_formula() -> None:
    """With the gradient of torch's `std`, which divides by n - 1; equal numbers have deviation 0 and a finite gradient."""
    norm, x = NORMS["layer-unbiased"].build(8).double(), draw(2, 3, 8)
    with torch.no_grad():
        norm.weight.copy_(draw(8, seed=1)), norm.bias.copy_(draw(8, seed=2))
    weight, bias, a = norm.weight.detach().numpy(), norm.bias.detach().numpy(), x.numpy()
    centred = a - a.mean(axis=-1, keepdims=True)
    by_hand = centred / (np.sqrt((centred**2).sum(axis=-1, keepdims=True) / 7) + 1e-6) * weight + bias
    assert_same(norm(x), torch.from_numpy(by_hand))
    with torch.no_grad():
        assert torch.equal(norm(x), norm(x.clone())) and norm(x[0, 0]).shape == (8,)
    x[1, 2], gradient = 0.5, draw(2, 3, 8, seed=3)
    found, wanted = [], []
    for normed, into in (
        (norm, found),
        (
            lambda x: norm.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + norm.bias,
            wanted,
        ),
    ):
        leaf = x.clone().requires_grad_()
        into += torch.autograd.grad(normed(leaf), (leaf, norm.weight, norm.bias), gradient)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(norm, (draw(2, 3, 8, seed=4).requires_grad_(),))


@pytest.mark.parametrize("shape", [(8,), (3, 8)])
def test_gradient_of_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight, gradient = draw(2, 5, 3, 8, seed=1), draw(*shape, seed=2), draw(2, 5, 3, 8, seed=3)
    found, wanted = [], []
    for normed, into in (
        (lambda x, weight: root_mean_square(x, weight), found),
        (lambda x, weight: F.rms_norm(x, (8,), eps=1e-5) * weight, wanted),
    ):
        inputs = x.clone().requires_grad_(), weight.clone().requires_grad_()
        output = normed(*inputs)
        into += [output, *torch.autograd.grad(output, inputs, gradient)]
    for ours, theirs in zip(found, wanted, strict=True):
        assert_same(ours, theirs)


def test_rms_of_a_view_and_of_zeros() -> None:
    x = draw(2, 4, 6, 8)[:, :, 1:4].requires_grad_()
    weight = torch.ones(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(root_mean_square, (x, weight))
    silent = root_mean_square(torch.zeros(2, 8, requires_grad=True), torch.ones(8))
    silent.sum().backward()
    assert (silent == 0).all()


def test_query_key_norm_has_separate_weights() -> None:
    norm, qk = QueryKeyNorm(heads=3, kv_heads=1, head_dim=8).double(), draw(2, 5, 4, 8)
    with torch.no_grad():
        norm.q.copy_(draw(8, seed=1)), norm.k.copy_(draw(8, seed=2))
    plain = F.rms_norm(qk, (8,), eps=1e-5)
    assert_same(norm(qk)[:, :, :3], plain[:, :, :3] * norm.q)
    assert_same(norm(qk)[:, :, 3:], plain[:, :, 3:] * norm.k)
