"""Parameter groups, each optimizer compared with its formula, clipping, and Muon."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_models import assert_same, draw, draw_ids, gradients, tiny_model
from lilliput.model.transformer import Transformer
from lilliput.settings.rules import conflicts
from lilliput.settings.tree import Config, ModelSettings, OptimizerSettings, VectorSettings
from lilliput.storage.state_format import put_together, take_apart
from lilliput.training import muon
from lilliput.training.muon import COEFFICIENTS, Muon, Together, batches, orthogonalise, orthogonalise_stacked
from lilliput.training.optimizers import build_optimizer, clip_gradients, gradient_norm


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


def test_frozen_weights_are_excluded_and_tied_ones_included_once() -> None:
    frozen = tiny_model(vectors=VectorSettings(width=9))
    optimized = [p for group in build_optimizer(OptimizerSettings(), frozen).param_groups for p in group["params"]]
    assert not any(p is frozen.embedding.table.weight for p in optimized)
    tied = tiny_model(tied=True, final_norm=False, norm="rms")
    optimized = [p for group in build_optimizer(OptimizerSettings(), tied).param_groups for p in group["params"]]
    assert sum(p is tied.embedding.table.weight for p in optimized) == 1


def peaks(settings: OptimizerSettings, model: Transformer) -> dict[str, float]:
    """Return the peak learning rate of every trainable weight by name."""
    found = {}
    for group in build_optimizer(settings, model).param_groups:
        assert group["lr"] == group["peak"]
        found |= {id(p): group["peak"] for p in group["params"]}
    return {name: found[id(p)] for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "muon"])
def test_tables_and_head_have_their_own_peaks(kind: str) -> None:
    settings = OptimizerSettings(kind=kind, lr=0.1, matrix_lr=0.2, embedding_lr=0.3, head_lr=0.4)  # type: ignore[arg-type]
    model = tiny_model(positions="learned", biases="all", norm="layer")
    for name, peak in peaks(settings, model).items():
        matrix = name.startswith("blocks.") and not name.endswith("bias") and "norm" not in name
        others = {"embedding.table.weight": 0.3, "head.project.weight": 0.4}
        assert peak == others.get(name, 0.2 if kind == "muon" and matrix else 0.1), name
    assert build_optimizer(settings, model).param_groups[0]["peak"] == 0.1  # the one that is logged


def test_value_embeddings_are_token_tables() -> None:
    found = peaks(OptimizerSettings(lr=0.1, embedding_lr=0.3), tiny_model(value_embeddings="all"))
    assert sum(peak == 0.3 for peak in found.values()) == 1 + 3


def test_a_tied_table_has_the_rate_of_the_embedding() -> None:
    found = peaks(OptimizerSettings(lr=0.1, embedding_lr=0.3, head_lr=0.4), tiny_model(tied=True, biases="all"))
    assert found["embedding.table.weight"] == 0.3
    assert found["head.project.bias"] == 0.1
    assert 0.4 not in found.values()


def test_a_tied_head_with_its_own_rate_is_an_error() -> None:
    config = Config(model=ModelSettings(tied=True), optimizer=OptimizerSettings(head_lr=0.1))
    assert [one.setting for one in conflicts(config)] == ["optimizer.head_lr"]


def test_learned_rows_of_frozen_vectors_are_a_token_table_but_not_their_projection() -> None:
    model = tiny_model(vectors=VectorSettings(source="some.vec", width=9, rows=3))
    found = peaks(OptimizerSettings(lr=0.1, embedding_lr=0.3), model)
    assert [name for name, peak in found.items() if peak == 0.3] == ["embedding.learned.weight"]
    assert "embedding.table.weight" not in found


def test_the_head_of_a_classifier_has_two_layers() -> None:
    model = tiny_model(task="classifier", classes=3, classifier_hidden=5)
    found = peaks(OptimizerSettings(lr=0.1, head_lr=0.4), model)
    assert {name for name, peak in found.items() if peak == 0.4} == {"head.inner.weight", "head.project.weight"}


def test_equal_peaks_share_a_group() -> None:
    model = tiny_model(norm="layer")
    assert len(build_optimizer(OptimizerSettings(), model).param_groups) == 2
    assert len(build_optimizer(OptimizerSettings(lr=0.1, embedding_lr=0.1), model).param_groups) == 2
    assert len(build_optimizer(OptimizerSettings(lr=0.1, embedding_lr=0.2), model).param_groups) == 3


# ---- formulas: (weight, gradient, decay, state, step) -> the next weight

Formula = Callable[[Tensor, Tensor, float, dict[str, Tensor], int], Tensor]
LR, MOMENTUM, BETAS, EPSILON = 0.01, 0.7, (0.8, 0.9), 1e-6


def sgd(weight: Tensor, gradient: Tensor, decay: float, state: dict[str, Tensor], step: int) -> Tensor:
    """Polyak momentum, not Nesterov; the decay is part of the gradient."""
    state["average"] = MOMENTUM * state.get("average", torch.zeros_like(weight)) + gradient + decay * weight
    return weight - LR * state["average"]


def adam(weight: Tensor, gradient: Tensor, decay: float, state: dict[str, Tensor], step: int) -> Tensor:
    """Kingma and Ba 2015, algorithm 1; the decay is part of the gradient."""
    gradient = gradient + decay * weight
    for name, beta, value in (("first", BETAS[0], gradient), ("second", BETAS[1], gradient**2)):
        state[name] = beta * state.get(name, torch.zeros_like(weight)) + (1 - beta) * value
    first, second = state["first"] / (1 - BETAS[0] ** step), state["second"] / (1 - BETAS[1] ** step)
    return weight - LR * first / (second.sqrt() + EPSILON)


def adamw(weight: Tensor, gradient: Tensor, decay: float, state: dict[str, Tensor], step: int) -> Tensor:
    """Loshchilov and Hutter 2019, algorithm 2: the decay is not part of the gradient."""
    return adam(weight, gradient, 0.0, state, step) - LR * decay * weight


FORMULAS: dict[str, Formula] = {"sgd": sgd, "adam": adam, "adamw": adamw, "muon": adamw}


@pytest.mark.parametrize("kind", sorted(FORMULAS))
def test_five_steps_by_formula(kind: str) -> None:
    settings = OptimizerSettings(
        kind=kind,  # type: ignore[arg-type]
        lr=LR,
        momentum=MOMENTUM,
        betas=BETAS,
        epsilon=EPSILON,
        weight_decay=0.2,
    )
    model = tiny_model(norm="layer", biases="all", qk_norm=True)
    optimizer = build_optimizer(settings, model)
    ours = {id(p) for group in optimizer.param_groups if "rows" not in group for p in group["params"]}
    checked = {name: p for name, p in model.named_parameters() if id(p) in ours}
    assert len(checked) == len(list(model.parameters())) - (4 * 3 if kind == "muon" else 0)
    states: dict[str, dict[str, Tensor]] = {name: {} for name in checked}
    for step in range(1, 6):
        model(draw_ids(2, 5, seed=step)).square().mean().backward()
        expected = {}
        for name, weight in checked.items():
            decay = 0.2 if weight.dim() == 2 else 0.0
            expected[name] = FORMULAS[kind](weight.detach().clone(), weight.grad.clone(), decay, states[name], step)
        optimizer.step()
        optimizer.zero_grad()
        for name, weight in checked.items():
            assert_same(weight.detach(), expected[name])


@pytest.mark.parametrize("kind", sorted(FORMULAS))
def test_an_optimizer_continues_from_its_state(kind: str) -> None:
    def steps(model: Transformer, optimizer: Together | torch.optim.Optimizer, count: int) -> None:
        for seed in range(count):
            model(draw_ids(2, 5, seed=seed)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    settings = OptimizerSettings(kind=kind, embedding_lr=0.1, head_lr=0.03)  # type: ignore[arg-type]
    one = tiny_model(seed=1, kv_heads=2)
    first = build_optimizer(settings, one)
    steps(one, first, 2)
    skeleton, tensors = take_apart(first.state_dict())
    saved = json.dumps(skeleton), {name: tensor.clone() for name, tensor in tensors.items()}
    two = tiny_model(seed=2, kv_heads=2)
    two.load_state_dict(one.state_dict())
    second = build_optimizer(settings, two)
    second.load_state_dict(put_together(json.loads(saved[0]), saved[1]))
    assert [group["peak"] for group in second.param_groups] == [group["peak"] for group in first.param_groups]
    steps(one, first, 3)
    steps(two, second, 3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


# ---- the norm and clipping


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


def test_frozen_weights_do_not_change_norm_and_clipping() -> None:
    model = tiny_model(vectors=VectorSettings(width=9))
    model(draw_ids(2, 5)).square().sum().backward()
    norm = gradient_norm(model)
    clip_gradients(model, norm, 1.0)
    assert model.embedding.table.weight.grad is None
    assert gradient_norm(model).item() == pytest.approx(1.0, rel=1e-12)


def test_a_gradient_that_is_not_finite_makes_the_norm_not_finite() -> None:
    model = with_gradients()
    model.norm.weight.grad[0] = math.inf
    assert not torch.isfinite(gradient_norm(model))
    model.norm.weight.grad[0] = math.nan
    assert not torch.isfinite(gradient_norm(model))


# ---- muon


def test_muon_updates_exactly_the_matrices_of_the_blocks() -> None:
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


def newton_schulz(matrix: Tensor) -> Tensor:
    """Orthogonalise one matrix by the formula x -> a x + b (x x^T) x + c (x x^T)^2 x."""
    x = matrix / (matrix @ matrix.mT).square().sum().sqrt().sqrt()
    for a, b, c in COEFFICIENTS:
        x = a * x + b * x @ x.mT @ x + c * x @ x.mT @ x @ x.mT @ x
    return x


def test_the_coefficients_map_singular_values_to_near_one() -> None:
    """Values from 0.01 to 1 are mapped to 0.72 to 1.28, and smaller values stay in order."""
    x = torch.linspace(0.0, 1.0, 100_001, dtype=torch.float64)
    small = x < 0.01
    for a, b, c in COEFFICIENTS:
        x = a * x + b * x**3 + c * x**5
    assert x[~small].min() > 0.72
    assert x.max() < 1.28
    assert (x[small].diff() > 0).all()


@pytest.mark.parametrize("rows, columns", [(8, 8), (8, 11), (11, 8), (8, 32), (32, 8), (1, 9), (9, 1)])
def test_a_batch_of_any_shape_equals_the_formula(rows: int, columns: int) -> None:
    matrices = draw(3, rows, columns)
    for matrix, found in zip(matrices, orthogonalise(matrices), strict=True):
        assert_same(found, newton_schulz(matrix))


@pytest.mark.parametrize("columns", [64, 256])
def test_the_error_in_float32_is_small_for_nearly_singular_matrices(columns: int) -> None:
    """Gradients are often of low rank plus noise, which the formula amplifies."""
    matrix = draw(64, 4) @ draw(4, columns, seed=1) + 1e-5 * draw(64, columns, seed=2)
    exact = newton_schulz(matrix)
    found = orthogonalise(matrix.float()[None])[0].double()
    assert (found - exact).norm() < 1e-4 * exact.norm()


@given(tall=st.booleans(), seed=st.integers(0, 100))
def test_orthogonalising_keeps_singular_vectors(tall: bool, seed: int) -> None:
    matrix = draw(12, 5, seed=seed) if tall else draw(5, 12, seed=seed)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    (found,) = orthogonalise(matrix[None])
    inner = u.mT @ found @ v.mT  # diagonal: the same singular vectors
    assert (inner - inner.diagonal().diag()).abs().max() < 1e-9
    assert inner.diagonal().min() > 0.3
    assert inner.diagonal().max() < 1.3
    assert_same(orthogonalise(1000 * matrix[None])[0], found)


def test_zeros_stay_zeros() -> None:
    assert torch.equal(orthogonalise(torch.zeros(2, 3, 9)), torch.zeros(2, 3, 9))


def test_stacked_matrices_are_orthogonalised_separately() -> None:
    matrices = draw(2, 32, 8)
    for matrix, found in zip(matrices, orthogonalise_stacked(matrices, [16, 8, 8]), strict=True):
        parts = [newton_schulz(part) * (len(part) / 8) ** 0.5 for part in matrix.split([16, 8, 8])]
        assert_same(found, torch.cat(parts))


@pytest.mark.parametrize("most", [1, 1000, 1 << 24])
@pytest.mark.parametrize("head_dim", [4, 6])
def test_four_steps_of_muon_by_formula(most: int, head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of batches does not matter."""
    monkeypatch.setattr(muon, "MOST_NUMBERS", most)
    model = tiny_model(kv_heads=2, feed_forward="swiglu", head_dim=head_dim)
    settings = OptimizerSettings(kind="muon", matrix_lr=0.1, momentum=0.9, weight_decay=0.2)
    optimizer = build_optimizer(settings, model)
    heights = {"qkv": (4 * head_dim, 2 * head_dim, 2 * head_dim), "out": (16,), "up": (16, 16), "down": (16,)}
    matrices = {
        name: (weight, heights[name.split(".")[-2]])
        for name, weight in model.blocks.named_parameters()
        if weight.dim() == 2
    }
    momenta = {name: torch.zeros_like(weight) for name, (weight, _) in matrices.items()}
    for seed in range(4):
        model(draw_ids(2, 5, seed=seed)).square().mean().backward()
        expected = {}
        for name, (weight, rows) in matrices.items():
            momenta[name] = 0.9 * momenta[name] + 0.1 * weight.grad
            ahead = 0.1 * weight.grad + 0.9 * momenta[name]
            scales = [max(1.0, height / weight.shape[1]) ** 0.5 for height in rows]
            parts = [newton_schulz(part) * scale for part, scale in zip(ahead.split(rows), scales, strict=True)]
            expected[name] = weight.detach() * (1 - 0.1 * 0.2) - 0.1 * torch.cat(parts)
        optimizer.step()
        optimizer.zero_grad()
        for name, (weight, _) in matrices.items():
            assert_same(weight.detach(), expected[name])


def test_batches_hold_one_shape_and_not_too_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "MOST_NUMBERS", 20)
    matrices = [torch.zeros(shape) for shape in ((3, 3), (2, 9), (3, 3), (5, 5), (3, 3), (5, 5))]
    found = [[tuple(m.shape) for m in batch] for batch in batches(matrices)]
    assert found == [[(3, 3), (3, 3)], [(3, 3)], [(2, 9)], [(5, 5)], [(5, 5)]]


def test_a_matrix_without_a_gradient_is_left_alone() -> None:
    weights = [draw(4, 6), draw(4, 6, seed=1)]
    kept = weights[1].clone()
    weights[0].grad = draw(4, 6, seed=2)
    optimizer = Muon([{"params": weights, "rows": [4]}], lr=0.1, momentum=0.9, weight_decay=0.5)
    optimizer.step()
    assert torch.equal(weights[1], kept)
    assert not torch.equal(weights[0], draw(4, 6))
