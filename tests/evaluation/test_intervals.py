"""Intervals compared with closed forms and SciPy: bootstrap coverage, quantiles of Student's t, paired tests."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lilliput.evaluation.intervals import (
    Interval,
    bootstrap,
    mean_interval,
    paired_bootstrap,
    paired_difference,
    proportion_interval,
    ratio_interval,
    resampled_ratios,
    t_quantile,
    two_sided,
)

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 1000])
def test_students_t_equals_scipy(freedom: int) -> None:
    for chance in (0.5, 0.6, 0.9, 0.975, 0.995):
        assert t_quantile(chance, freedom) == pytest.approx(stats.t.ppf(chance, freedom), rel=1e-9, abs=1e-9)
    for t in (0.0, 0.01, 0.7, 2.0, 12.0, 40.0):
        assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("trials", [1, 2, 11, 104, 300, 5000])
def test_proportions_equal_scipy(trials: int) -> None:
    for successes in sorted({0, 1, trials // 3, trials // 2, trials - 1, trials}):
        found = proportion_interval(successes, trials)
        expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        assert found == pytest.approx((expected.low, expected.high), rel=1e-12, abs=1e-15)
        assert found.low <= successes / trials <= found.high
    assert proportion_interval(trials, trials).high == 1.0 and proportion_interval(trials, trials).low < 1.0
    assert proportion_interval(0, trials).low == 0.0 and proportion_interval(0, trials).high > 0.0


def test_mean_interval_equals_scipy() -> None:
    values = [2.0, 2.5, 1.75, 2.2, 2.9]
    error = stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error)
    assert mean_interval(values) == pytest.approx((low, high), rel=1e-12)
    assert mean_interval([1.0]) is None
    assert mean_interval([3.0, 3.0, 3.0]) == Interval(3.0, 3.0)


def test_paired_difference_equals_scipy() -> None:
    a, b = [2.0, 2.5, 1.75, 2.2], [2.1, 2.9, 1.9, 2.25]
    found, expected = paired_difference(a, b), stats.ttest_rel(a, b)
    assert found is not None
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b), rel=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-10)
    assert paired_difference([1.0], [2.0]) is None


def test_equal_differences_have_p_0_or_1() -> None:
    same, shifted = paired_difference([1.0, 2.0], [1.0, 2.0]), paired_difference([1.0, 2.0], [0.5, 1.5])
    assert same == (0.0, 0.0, 0.0, 1.0) and shifted == (0.5, 0.5, 0.5, 0.0)


def test_the_bootstrap_of_a_mean_approximates_the_normal_interval() -> None:
    """For many documents the bootstrap of a mean is normal, with the analytic standard error."""
    values = np.random.default_rng(1).gamma(2.0, size=2000)
    found = bootstrap(lambda drawn: float(values[drawn].mean()), len(values), draws=4000)
    reach = stats.norm.ppf(0.975) * values.std() / math.sqrt(len(values))
    assert found.low == pytest.approx(values.mean() - reach, abs=0.06 * reach)
    assert found.high == pytest.approx(values.mean() + reach, abs=0.06 * reach)


def test_the_bootstrap_of_a_share_follows_the_binomial() -> None:
    """The number of ones among n draws from k ones in n is binomial(n, k / n), exactly."""
    right = np.repeat([1.0, 0.0], [30, 10])
    found = ratio_interval(right, np.ones(40), draws=20_000)
    expected = stats.binom.ppf([0.025, 0.975], 40, 0.75) / 40
    assert found == pytest.approx(tuple(expected), abs=1 / 40 + 1e-12)


def test_the_bootstrap_of_three_documents_has_the_quantiles_of_all_27_draws() -> None:
    values = np.array([1.0, 2.0, 4.0])
    every = [values[list(drawn)].mean() for drawn in itertools.product(range(3), repeat=3)]
    found = bootstrap(lambda drawn: float(values[drawn].mean()), 3, draws=5000)
    assert found == pytest.approx(tuple(np.quantile(every, [0.025, 0.975], method="inverted_cdf")), abs=1e-12)


def test_ratio_interval_equals_the_general_bootstrap() -> None:
    generator = np.random.default_rng(2)
    above, below = generator.random(17), generator.integers(1, 9, 17)
    general = bootstrap(lambda drawn: float(above[drawn].sum() / below[drawn].sum()), 17, seed=3)
    assert ratio_interval(above, below, seed=3) == general != ratio_interval(above, below, seed=4)


def test_draws_with_denominator_zero_are_skipped() -> None:
    found = ratio_interval(np.array([2.0, 0.0]), np.array([1, 0]))
    assert found == Interval(2.0, 2.0)


def test_a_paired_bootstrap_is_narrower_than_two_intervals() -> None:
    """Documents differ more than the two models: separate intervals overlap, the paired difference excludes zero."""
    generator = np.random.default_rng(5)
    hard = generator.normal(4.0, 1.0, 60)
    better = hard - 0.1 + generator.normal(0.0, 0.02, 60)
    found = paired_bootstrap(lambda drawn: float(hard[drawn].mean()), lambda drawn: float(better[drawn].mean()), 60)
    assert found is not None
    assert found.mean == pytest.approx(hard.mean() - better.mean(), rel=1e-12)
    assert 0.09 < found.low < found.mean < found.high < 0.11 and found.p == pytest.approx(2 / 1001)
    alone = ratio_interval(hard, np.ones(60)), ratio_interval(better, np.ones(60))
    assert alone[0].low < alone[1].high
    same = paired_bootstrap(lambda drawn: 1.0, lambda drawn: 1.0, 60)
    assert same == (0.0, 0.0, 0.0, 1.0)


def test_one_document_has_no_difference() -> None:
    """All draws are the same document: an interval of zero width would look significant."""
    assert paired_bootstrap(lambda drawn: 1.0, lambda drawn: 2.0, 1) is None
    assert paired_bootstrap(lambda drawn: 1.0, lambda drawn: 2.0, 2) is not None


def test_resampled_ratios_are_the_draws_of_the_ratio_interval() -> None:
    generator = np.random.default_rng(3)
    above, below = generator.normal(size=(12, 2, 3)), generator.integers(0, 2, size=(12, 2, 3)).astype(float)
    above, below[:, 1, 2] = above * (below > 0), 0.0
    found = resampled_ratios(above, below, seed=4)
    assert found.shape == (1000, 2, 3) and np.isnan(found[:, 1, 2]).all()
    low, high = np.nanquantile(found[:, 0], [0.025, 0.975], axis=0)
    for column in range(3):
        expected = ratio_interval(above[:, 0, column], below[:, 0, column], seed=4)
        assert (low[column], high[column]) == pytest.approx(expected, rel=1e-12)
