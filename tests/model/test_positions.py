"""Positional encodings compared with their formulas."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.tiny_models import assert_same, draw, tiny_model, tiny_settings
from lilliput.model.model_choices import positions_of
from lilliput.model.positions import Learned, Positions, Rotary, Sinusoidal


def turn(positions: Positions, heads: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    return positions.rotate(heads, positions.turn(pos, heads.dtype))


def test_sinusoidal_equals_the_formula_of_the_paper() -> None:
    x, pos = torch.zeros(1, 50, 12, dtype=torch.float64), torch.arange(50)[None]
    added = Sinusoidal(50, 12).embed(x, pos)[0].numpy()
    for at in (0, 1, 7, 49):
        for i in range(6):
            angle = at / 10_000 ** (2 * i / 12)
            np.testing.assert_allclose(
                added[at, 2 * i : 2 * i + 2], [math.sin(angle), math.cos(angle)], rtol=0, atol=1e-12
            )


def test_rotary_equals_complex_rotation() -> None:
    heads, pos = draw(2, 6, 3, 8, seed=1), torch.tensor([[0, 1, 2, 3, 4, 5], [30, 7, 7, 2, 0, 31]])
    turned = turn(Rotary(32, 8, base=100.0), heads, pos)
    frequencies = 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turns = torch.polar(torch.ones(2, 6, 4, dtype=torch.float64), pos[:, :, None] * frequencies)[:, :, None]
    z = torch.complex(heads[..., :4], heads[..., 4:]) * turns
    assert_same(turned, torch.cat((z.real, z.imag), dim=-1))


def test_gradient_of_rotary_is_the_inverse_rotation() -> None:
    """For a contiguous tensor and a view, and with one row of angles for all rows."""
    rotary, back = Rotary(32, 8, base=100.0), Rotary(32, 8, base=100.0)
    back.sin.neg_()
    wide, gradient = draw(2, 6, 5, 8, seed=1), draw(2, 6, 3, 8, seed=2)
    for heads in (wide[:, :, :3].clone(), wide[:, :, :3]):
        for pos in (torch.tensor([[0, 1, 2, 3, 4, 5], [30, 7, 7, 2, 0, 31]]), torch.arange(6)[None]):
            heads = heads.detach().requires_grad_()
            (found,) = torch.autograd.grad(turn(rotary, heads, pos), heads, gradient)
            assert_same(found, turn(back, gradient, pos))
            assert torch.autograd.gradcheck(lambda x, pos=pos: turn(rotary, x, pos), (heads,))


@given(at=st.integers(0, 20), distance=st.integers(0, 20), shift=st.integers(0, 23))
def test_rotary_scores_depend_only_on_distance(at: int, distance: int, shift: int) -> None:
    rotary, q, k = Rotary(64, 8, 10_000.0), draw(1, 1, 1, 8, seed=1), draw(1, 1, 1, 8, seed=2)

    def score(q_at: int, k_at: int) -> torch.Tensor:
        return (turn(rotary, q, torch.tensor([[q_at]])) * turn(rotary, k, torch.tensor([[k_at]]))).sum()

    assert_same(score(at + distance, at), score(at + distance + shift, at + shift))


def test_learned_adds_its_table() -> None:
    learned = Learned(10, 4).double()
    x, pos = draw(2, 3, 4), torch.tensor([[0, 1, 2], [9, 0, 5]])
    assert torch.equal(learned.embed(x, pos), x + learned.table.weight[pos])


def test_unused_hooks_have_no_effect() -> None:
    x, pos = draw(1, 3, 2, 4, seed=1), torch.arange(3)[None]
    for kind in (Positions(), Learned(8, 4), Sinusoidal(8, 4)):
        assert turn(kind, x, pos) is x
    for kind in (Positions(), Rotary(8, 4, 10.0)):
        assert kind.embed(x, pos) is x


def test_padding_is_finite_and_positions_are_not_saved() -> None:
    for kind in ("sinusoidal", "learned", "rotary", None):
        positions = positions_of(tiny_settings(positions=kind)).build(tiny_settings(positions=kind)).double()
        x, pos = draw(1, 2, 16), torch.tensor([[-1, 0]])
        q = turn(positions, draw(1, 2, 4, 4), pos)
        assert torch.isfinite(positions.embed(x, pos)).all()
        assert torch.isfinite(q).all()
        assert set(positions.state_dict()) == ({"table.weight"} if kind == "learned" else set())


def test_angles_are_computed_in_float64() -> None:
    """A table computed in float32 would have an error of 1e-4 at position 4,000."""
    rotary = Rotary(4096, 8, 10_000.0).float()
    exact = math.cos(4095 * 10_000 ** (-2 / 8))
    assert abs(rotary.cos[4095, 1].item() - exact) < 1e-7


def test_positions_are_one_submodule_of_the_model() -> None:
    model = tiny_model(positions="learned")
    assert [name for name, _ in model.named_parameters() if "positions" in name] == ["positions.table.weight"]
