"""Fits of power laws against known parameters and SciPy, and the coverage of their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import curve_fit

from lilliput.studies.power_laws import fit_law

SIZES = [0.1, 0.3, 1.0, 3.0, 10.0]


def law(x: float, floor: float = 1.7, scale: float = 0.9, exponent: float = 0.34) -> float:
    return floor + scale * x**-exponent


@pytest.mark.parametrize(("floor", "scale", "exponent"), [(1.7, 0.9, 0.34), (0.0, 4.0, 0.076), (2.5, 0.01, 1.2)])
def test_fit_without_noise_is_exact(floor: float, scale: float, exponent: float) -> None:
    found = fit_law(SIZES, [law(x, floor, scale, exponent) for x in SIZES])
    assert found is not None
    assert (found.floor, found.scale, found.exponent) == pytest.approx((floor, scale, exponent), rel=1e-6, abs=1e-6)
    assert found(np.array(SIZES)) == pytest.approx([law(x, floor, scale, exponent) for x in SIZES], rel=1e-9)


def test_fit_with_noise_equals_scipy() -> None:
    noise = np.random.default_rng(1)
    x = SIZES * 3
    y = [law(one) + 0.01 * noise.normal() for one in x]
    found = fit_law(x, y)
    expected, _ = curve_fit(law, np.array(x), np.array(y), p0=(1.5, 1.0, 0.3))
    assert found is not None
    assert (found.floor, found.scale, found.exponent) == pytest.approx(expected, rel=1e-5)
    assert found.points == 15


def test_coverage_of_the_interval() -> None:
    noise, x = np.random.default_rng(2), SIZES * 2
    held = 0
    for _ in range(20):
        found = fit_law(x, [law(one) + 0.02 * noise.normal() for one in x])
        assert found is not None and found.exponent_range is not None
        low, high = found.exponent_range
        held += (low is None or low <= 0.34) and (high is None or high >= 0.34)
    assert held >= 17


def test_interval_is_open_if_points_do_not_bound_it() -> None:
    noise = np.random.default_rng(3)
    x = [1.0, 1.5, 2.0] * 3  # too close to separate the floor from a slow fall
    found = fit_law(x, [law(one) + 0.03 * noise.normal() for one in x])
    assert found is not None and found.floor_range is not None
    assert found.floor_range[0] is None


def test_points_that_cannot_be_fitted() -> None:
    assert fit_law([1.0, 2.0], [3.0, 2.0]) is None
    assert fit_law([1.0, 1.0, 2.0, 2.0], [3.0, 3.1, 2.0, 2.1]) is None
    assert fit_law(SIZES, [1.0, 2.0, 3.0, 4.0, 5.0]) is None, "y rises"
    exact = fit_law([1.0, 2.0, 4.0], [3.0, 2.5, 2.25])
    assert exact is not None and exact.exponent_range is None, "three points give no interval"
