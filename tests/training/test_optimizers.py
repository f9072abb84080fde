"""Decay groups, steps by hand, clipping, and Muon."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lilliput.model.transformer import Transformer
from lilliput.settings import OptimizerSettings, VectorSettings
from lilliput.training.muon import Together, orthogonalise
from lilliput.training.optimizers import build_optimizer, clip_gradients, gradient_norm
from lilliput.training.state import put_together, take_apart
from tiny import assert_same, draw, draw_ids, gradients, tiny_model


def with_gradients(**changes: object) -> Transformer:
    model = tiny_model(**changes)  # type: ignore[arg-type]
    model(draw_ids(2, 5)).square().sum().backward()
    return model


def test_matrices_are_decayed_and_vectors_are_not() -> None:
    model = tiny_model(norm="layer", biases="all", positions="learned", qk_norm=True)
    decayed, plain = build_optimizer(OptimizerSettings(weight_decay=0.3), model).param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert all(p.dim() == 2 for p in decayed["params"])
    assert all(p.dim() == 1 for p in plain["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))


def test_frozen_and_tied_weights_are_counted_right() -> None:
    frozen = tiny_model(vectors=VectorSettings(width=9))
    optimized = [p for group in build_optimizer(OptimizerSettings(), frozen).param_groups for p in group["params"]]
    assert not any(p is frozen.embedding.table.weight for p in optimized)
    tied = tiny_model(tied=True, final_norm=False, norm="rms")
    optimized = [p for group in build_optimizer(OptimizerSettings(), tied).param_groups for p in group["params"]]
    assert sum(p is tied.embedding.table.weight for p in optimized) == 1


def test_two_steps_by_hand() -> None:
    """Loshchilov and Hutter 2019, algorithm 2: decay is not in the gradient."""
    settings = OptimizerSettings(lr=0.01, betas=(0.8, 0.9), epsilon=1e-6, weight_decay=0.2)
    model = tiny_model(norm="layer")
    optimizer = build_optimizer(settings, model)
    first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    second = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for step in (1, 2):
        model(draw_ids(2, 5)).square().mean().backward()
        expected = {}
        for name, weight in model.named_parameters():
            first[name] = 0.8 * first[name] + 0.2 * weight.grad
            second[name] = 0.9 * second[name] + 0.1 * weight.grad**2
            moved = (first[name] / (1 - 0.8**step)) / ((second[name] / (1 - 0.9**step)).sqrt() + 1e-6)
            kept = 1 - 0.01 * (0.2 if weight.dim() == 2 else 0.0)
            expected[name] = weight.detach() * kept - 0.01 * moved
        optimizer.step()
        optimizer.zero_grad()
        for name, weight in model.named_parameters():
            assert_same(weight.detach(), expected[name])


def test_the_norm_is_of_the_whole_gradient() -> None:
    model = with_gradients()
    whole = torch.cat([p.grad.flatten() for p in model.parameters()]).square().sum().sqrt()
    assert_same(gradient_norm(model), whole, 1e-12 * whole.item())


@given(share=st.floats(0.01, 3.0))
def test_clipping_keeps_the_direction_and_bounds_the_norm(share: float) -> None:
    model = with_gradients(layers=1)
    before, norm = gradients(model), gradient_norm(model)
    largest = share * norm.item()
    clip_gradients(model, norm, largest)
    factor = min(1.0, share)
    for name, grad in gradients(model).items():
        if share > 1.0:
            assert torch.equal(grad, before[name])
        else:
            torch.testing.assert_close(grad, before[name] * factor, rtol=1e-12, atol=0.0)
    assert gradient_norm(model).item() <= largest * (1 + 1e-12)


def test_frozen_weights_have_no_part_in_norm_and_clipping() -> None:
    model = tiny_model(vectors=VectorSettings(width=9))
    model(draw_ids(2, 5)).square().sum().backward()
    norm = gradient_norm(model)
    clip_gradients(model, norm, 1.0)
    assert model.embedding.table.weight.grad is None
    assert gradient_norm(model).item() == pytest.approx(1.0, rel=1e-12)


def test_a_gradient_that_is_not_finite_is_seen_in_the_norm() -> None:
    model = with_gradients()
    model.norm.weight.grad[0] = math.inf
    assert not torch.isfinite(gradient_norm(model))
    model.norm.weight.grad[0] = math.nan
    assert not torch.isfinite(gradient_norm(model))


# ---- muon


def test_muon_takes_the_matrices_of_the_blocks_and_leaves_the_ends() -> None:
    model = tiny_model(kv_heads=2, feed_forward="swiglu", tied=True, positions="learned", biases="all")
    optimizer = build_optimizer(OptimizerSettings(kind="muon", lr=0.01, matrix_lr=0.03), model)
    matrices = [p for group in optimizer.param_groups if "rows" in group for p in group["params"]]
    rest = [p for group in optimizer.param_groups if "rows" not in group for p in group["params"]]
    inside = [p for p in model.blocks.parameters() if p.dim() == 2]
    assert {id(p) for p in matrices} == {id(p) for p in inside}
    assert {id(p) for p in matrices + rest} == {id(p) for p in model.parameters()}
    assert len(matrices) + len(rest) == len(list(model.parameters()))
    assert all(
        sum(group["rows"]) == p.shape[0] for group in optimizer.param_groups if "rows" in group for p in group["params"]
    )
    assert {group["peak"] for group in optimizer.param_groups} == {0.01, 0.03}


@given(tall=st.booleans(), seed=st.integers(0, 100))
def test_orthogonalising_keeps_directions_and_evens_out_sizes(tall: bool, seed: int) -> None:
    matrix = draw(12, 5, seed=seed) if tall else draw(5, 12, seed=seed)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    straight = orthogonalise(matrix)
    inner = u.mT @ straight @ v.mT  # diagonal: the same singular vectors
    assert (inner - inner.diagonal().diag()).abs().max() < 1e-9
    assert inner.diagonal().min() > 0.3
    assert inner.diagonal().max() < 1.3
    assert_same(orthogonalise(1000 * matrix), straight)


def test_two_steps_of_muon_by_hand() -> None:
    model = tiny_model(layers=1, kv_heads=2)
    settings = OptimizerSettings(kind="muon", matrix_lr=0.1, momentum=0.9, weight_decay=0.2)
    optimizer, inner = build_optimizer(settings, model), model.blocks[0].attention.inner
    weight, momentum = inner.qkv.weight, torch.zeros_like(inner.qkv.weight)
    for _ in range(2):
        model(draw_ids(2, 5)).square().mean().backward()
        momentum = 0.9 * momentum + 0.1 * weight.grad
        ahead = 0.1 * weight.grad + 0.9 * momentum
        straight = torch.cat([orthogonalise(part) for part in ahead.split((16, 8, 8))])
        expected = weight.detach() * (1 - 0.1 * 0.2) - 0.1 * straight
        for group in optimizer.param_groups:
            group["lr"] = group["peak"]
        optimizer.step()
        optimizer.zero_grad()
        assert_same(weight.detach(), expected)


def test_muon_goes_on_from_its_state() -> None:
    def steps(model: Transformer, optimizer: Together | torch.optim.Optimizer, count: int) -> None:
        for seed in range(count):
            model(draw_ids(2, 5, seed=seed)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    settings = OptimizerSettings(kind="muon")
    one = tiny_model(seed=1)
    first = build_optimizer(settings, one)
    steps(one, first, 2)
    skeleton, tensors = take_apart(first.state_dict())
    two = tiny_model(seed=2)
    two.load_state_dict(one.state_dict())
    second = build_optimizer(settings, two)
    second.load_state_dict(put_together(json.loads(json.dumps(skeleton)), {k: v.clone() for k, v in tensors.items()}))
    steps(one, first, 3)
    steps(two, second, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
