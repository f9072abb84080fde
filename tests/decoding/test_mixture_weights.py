"""Mixture of two models: the result is a probability, and the weight equals that of a grid search."""

from __future__ import annotations

import numpy as np
import pytest

from lilliput.decoding.mixture_weights import cross_mix, fit_weight, mix


def make_nats(size: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return nats of two models that are each better on different tokens."""
    generator = np.random.default_rng(seed)
    return generator.gamma(2.0, 1.0, size), generator.gamma(2.0, 1.2, size)


def test_mix_averages_probabilities() -> None:
    a, b = make_nats()
    expected = -np.log(0.3 * np.exp(-a) + 0.7 * np.exp(-b))
    np.testing.assert_allclose(mix(a, b, 0.3), expected, rtol=1e-12)
    assert np.array_equal(mix(a, b, 1.0), a) and np.array_equal(mix(a, b, 0.0), b)
    np.testing.assert_allclose(mix(a, a, 0.4), a, rtol=1e-12)
    far = mix(np.array([2000.0]), np.array([5.0]), 0.5)  # exp(-2000) underflows
    np.testing.assert_allclose(far, 5 + np.log(2), rtol=1e-12)


def test_the_weight_maximises_the_likelihood() -> None:
    a, b = make_nats()
    weight = fit_weight(a, b)
    grid = np.linspace(0, 1, 2001)
    found = [mix(a, b, one).sum() for one in grid]
    assert abs(grid[int(np.argmin(found))] - weight) <= 0.0005
    assert mix(a, b, weight).sum() <= min(found) + 1e-9
    assert fit_weight(b, a) == pytest.approx(1 - weight, abs=1e-6)


def test_a_model_that_is_always_better_has_weight_one() -> None:
    a, _ = make_nats()
    assert fit_weight(a, a + 1.0) == pytest.approx(1.0, abs=1e-6)
    assert fit_weight(a + 1000.0, a) == pytest.approx(0.0, abs=1e-6)
    assert fit_weight(a, a) == 0.5


@pytest.mark.parametrize("counts", [[100, 100, 150, 50], [10, 390], [390, 10], [400]])
def test_each_half_is_mixed_with_the_weight_of_the_other(counts: list[int]) -> None:
    a, b = make_nats()
    document = np.repeat(np.arange(len(counts)), counts)
    border = {4: 200, 2: counts[0], 1: 200}[len(counts)]
    weights = fit_weight(a[border:], b[border:]), fit_weight(a[:border], b[:border])
    expected = np.concatenate([mix(a[:border], b[:border], weights[0]), mix(a[border:], b[border:], weights[1])])
    found = cross_mix(a, b, document)
    assert np.array_equal(found.nats, expected)
    assert found.weight == pytest.approx((border * weights[0] + (400 - border) * weights[1]) / 400, rel=1e-12)


def test_a_single_prediction_has_equal_weights() -> None:
    found = cross_mix(np.array([1.0]), np.array([2.0]), np.array([0]))
    assert found.weight == 0.5 and np.array_equal(found.nats, mix(np.array([1.0]), np.array([2.0]), 0.5))
