"""What processors keep, and what choosers draw."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lilliput.decoding.processors import Greedy, Sampler, Temperature, TopK, build_chooser, build_processors
from tiny import assert_same, draw

logits = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=9)  # few values: many ties
CHI_SQUARE_5 = 20.52  # 0.999 quantile, five degrees of freedom


@given(row=logits, k=st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest_and_their_ties(row: list[float], k: int) -> None:
    kept = TopK(k)([[0]], torch.tensor([row])).tolist()[0]
    border = sorted(row, reverse=True)[min(k, len(row)) - 1]
    assert kept == [value if value >= border else -math.inf for value in row]
    assert sum(value > -math.inf for value in kept) >= min(k, len(row))


@given(row=logits, k=st.integers(1, 12))
def test_top_k_leaves_the_shares_of_the_kept(row: list[float], k: int) -> None:
    """What is left is the old distribution, divided by the mass of the kept."""
    before = torch.tensor([row], dtype=torch.float64)
    kept = TopK(k)([[0]], before)
    shares = before.softmax(dim=-1) * kept.isfinite()
    assert_same(kept.softmax(dim=-1), shares / shares.sum())


def test_top_k_treats_each_row_by_itself() -> None:
    kept = TopK(2)([[0], [0]], torch.tensor([[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]]))
    assert kept.tolist() == [[-math.inf, 2.0, 3.0], [9.0, 9.0, 9.0]]


@given(row=logits, temperature=st.floats(0.1, 10.0))
def test_temperature_is_a_power_of_the_shares(row: list[float], temperature: float) -> None:
    before = torch.tensor([row], dtype=torch.float64)
    powers = before.softmax(dim=-1) ** (1 / temperature)
    assert_same(Temperature(temperature)([[0]], before).softmax(dim=-1), powers / powers.sum())


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    assert Greedy().choose(torch.tensor([[1.0, 3.0, 3.0], [5.0, 5.0, 0.0], [-math.inf, -2.0, -3.0]]), [0, 1, 2]) == [
        1,
        0,
        1,
    ]


def chi_square(counts: list[int], shares: list[float]) -> float:
    total = sum(counts)
    return sum((count - total * share) ** 2 / (total * share) for count, share in zip(counts, shares, strict=True))


@pytest.mark.parametrize("one_generator", [True, False])
def test_draws_follow_the_softmax(one_generator: bool) -> None:
    """One row for long, and the first draw of many rows: neighbouring seeds must not draw alike."""
    row = torch.tensor([[1.0, -1.0, 0.3, 2.0, 0.0, -0.5]])
    if one_generator:
        sampler = Sampler([5])
        drawn = [sampler.choose(row, [0])[0] for _ in range(6000)]
    else:
        drawn = Sampler(range(6000)).choose(row.expand(6000, -1), range(6000))
    counts = [drawn.count(token) for token in range(6)]
    assert chi_square(counts, row.double().softmax(dim=-1)[0].tolist()) < CHI_SQUARE_5


def test_what_is_excluded_is_never_drawn() -> None:
    row = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    drawn = set(Sampler(range(3000)).choose(row.expand(3000, -1), range(3000)))
    assert drawn == {1, 3}
    assert set(Sampler(range(50)).choose(torch.tensor([[-math.inf, -math.inf, 3.0]]).expand(50, -1), range(50))) == {2}


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_uniform_numbers_draw_a_token_that_has_mass(
    number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, generator: torch.full(shape, number, dtype=dtype))
    for seed in range(50):
        row = draw(1, 40, seed=seed)
        row[0, :3] = row[0, -3:] = -math.inf
        (token,) = Sampler([0]).choose(row, [0])
        assert token == (3 if number == 0.0 else 36)


@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), steps=st.integers(1, 4))
def test_a_rows_draws_do_not_depend_on_the_batch(rows: list[int], steps: int) -> None:
    table = draw(6, 30, seed=1)
    together, alone = Sampler(range(10, 16)), [Sampler([10 + row]) for row in range(6)]
    for _ in range(steps):
        chosen = together.choose(table[rows], rows)
        assert chosen == [alone[row].choose(table[row : row + 1], [0])[0] for row in rows]


def test_choices_are_looked_up_once() -> None:
    assert build_processors(0.0, None) == []
    assert build_processors(1.0, None) == []
    assert build_processors(0.7, 5) == [Temperature(0.7), TopK(5)]
    assert isinstance(build_chooser(0.0, [1]), Greedy)
    assert isinstance(build_chooser(0.1, [1]), Sampler)
