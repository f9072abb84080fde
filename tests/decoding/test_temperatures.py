"""Temperatures of rows: constant, by position, and by entropy, compared with plain Python in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.tiny_models import assert_same
from lilliput.decoding.row_history import Processor, RowHistory
from lilliput.decoding.temperatures import BLOCK, EntropyTemperature, Temperature, distributions

NO_TEXT = RowHistory([0], 1, 9)
logits = st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=9)
# Logits after earlier rules: some tokens are forbidden, never all.
banned_logits = st.lists(st.just(-math.inf) | st.floats(-9, 9), min_size=2, max_size=9).filter(
    lambda row: max(row) > -math.inf
)


@given(row=logits, temperature=st.floats(0.1, 10.0))
def test_temperature_is_a_power_of_the_probabilities(row: list[float], temperature: float) -> None:
    before = torch.tensor([row], dtype=torch.float64)
    powers = before.softmax(dim=-1) ** (1 / temperature)
    assert_same(Temperature(temperature)([NO_TEXT], before).softmax(dim=-1), powers / powers.sum())


def test_the_temperature_changes_linearly_from_the_first_token_to_the_last() -> None:
    texts = [RowHistory([1] * (3 + written), 3, 5) for written in range(5)]
    hot = Temperature(0.5, final=2.5)(texts, torch.ones(5, 2, dtype=torch.float64))
    assert_same(1 / hot[:, 0], torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5], dtype=torch.float64))


def test_a_temperature_schedule_of_one_token() -> None:
    row = torch.tensor([[1.0]], dtype=torch.float64)
    assert Temperature(0.5, final=2.5)([RowHistory([1], 1, 1)], row).tolist() == [[2.0]]


def entropy_of(row: list[float]) -> float:
    powers = [math.exp(value - max(row)) for value in row]
    shares = [power / math.fsum(powers) for power in powers]
    return -math.fsum(share * math.log(share) for share in shares if share)


@given(row=banned_logits, lowest=st.floats(0.1, 3.0), highest=st.floats(0.1, 3.0), more=st.integers(0, 5))
def test_the_temperature_is_a_linear_function_of_the_entropy(
    row: list[float], lowest: float, highest: float, more: int
) -> None:
    """The vocabulary may have more tokens than the row: a filter has removed them."""
    vocabulary = len(row) + more
    given_row = torch.tensor([row], dtype=torch.float64)
    found = EntropyTemperature(lowest, highest, vocabulary)([NO_TEXT], given_row)
    assert given_row.tolist() == [row], "arguments are not changed"
    temperature = lowest + (highest - lowest) * entropy_of(row) / math.log(vocabulary)
    assert found.tolist()[0] == pytest.approx([value / temperature for value in row], rel=1e-12, abs=1e-12)


def test_the_extreme_entropies_have_the_given_temperatures() -> None:
    certain, uniform = [50.0, *[-math.inf] * 3], [2.0] * 4
    table = torch.tensor([certain, uniform, [1.0, 1.0, -math.inf, -math.inf]], dtype=torch.float64)
    divisors = EntropyTemperature(0.8, 1.2, 4).divisors([NO_TEXT] * 3, table.numpy())
    assert divisors[:, 0].tolist() == pytest.approx([0.8, 1.2, 1.0], abs=1e-12)
    more_logits_than_tokens = EntropyTemperature(0.8, 1.2, 2).divisors([NO_TEXT] * 3, table.numpy())
    assert more_logits_than_tokens[:, 0].tolist() == pytest.approx([0.8, 1.2, 1.2], abs=1e-12)


def test_rows_of_several_blocks() -> None:
    generator = torch.Generator().manual_seed(1)
    table = 3 * torch.randn(5, BLOCK // 2, dtype=torch.float64, generator=generator)
    found = EntropyTemperature(0.5, 2.0, BLOCK // 2).temperatures([NO_TEXT] * 5, table.numpy())
    expected = [0.5 + 1.5 * entropy_of(row) / math.log(BLOCK // 2) for row in table.tolist()]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@given(row=banned_logits)
def test_the_entropy_equals_that_of_torch(row: list[float]) -> None:
    values = torch.tensor([row], dtype=torch.float64)
    logprobs, shares, entropies = distributions(values.numpy())
    assert_same(torch.from_numpy(shares), values.softmax(dim=-1))
    assert_same(torch.from_numpy(logprobs).exp(), values.softmax(dim=-1))
    assert entropies[0, 0] == pytest.approx(torch.special.entr(values.softmax(dim=-1)).sum().item(), abs=1e-12)


@pytest.mark.parametrize(
    "process", [Temperature(1e-300), Temperature(1e-300, final=1e-300), EntropyTemperature(1e-300, 1e-300, 4)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_temperature_is_greedy_and_finite(process: Processor, dtype: torch.dtype) -> None:
    row = torch.tensor([[-80.0, 80.0, 79.9, -math.inf]], dtype=dtype)
    cold = process([NO_TEXT], row)
    assert cold.dtype == dtype
    assert cold[0, :3].isfinite().all()
    assert cold.softmax(dim=-1).tolist() == [[0.0, 1.0, 0.0, 0.0]]
