"""95% confidence intervals and significance of differences.

Owns: the percentile bootstrap over documents (Efron 1979), Wilson's interval of a proportion (1927), Student's t over
seeds, and the paired forms. Does not own: what is resampled or averaged. Documents are resampled, not tokens: tokens of
one document are correlated, and an interval over tokens would be too narrow.

All results are deterministic functions of the values and a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
DRAWS = 1000  # the bounds then vary by a few hundredths of the width between seeds

FRACTION_TERMS = 100  # of the continued fraction: about the square root of the degrees of freedom is needed

# A metric as a function of document indices, which may repeat.
Statistic = Callable[[NDArray[np.int64]], float]


class Interval(NamedTuple):
    """A closed interval."""

    low: float
    high: float


class Paired(NamedTuple):
    """The paired difference a - b, its 95% confidence interval, and its two-sided p-value."""

    mean: float
    low: float
    high: float
    p: float


# Over documents: the bootstrap ----------------------------------------------------------------------------------------


def bootstrap(statistic: Statistic, documents: int, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the interval of a statistic over resampled documents.

    For one document the interval has zero width and no meaning; callers omit it.
    """
    return central_interval(np.array([statistic(drawn) for drawn in resample(documents, seed, draws)]))


def ratio_interval(numerators: NDArray[Any], denominators: NDArray[Any], seed: int = 0, draws: int = DRAWS) -> Interval:
    """Return the interval of sum / sum over documents (loss, bits per byte). Draws with denominator 0 are
    skipped.
    """
    assert len(numerators) == len(denominators)
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    sums = np.array([(above[drawn].sum(), below[drawn].sum()) for drawn in resample(len(above), seed, draws)])
    sums = sums[sums[:, 1] > 0]
    return central_interval(sums[:, 0] / sums[:, 1])


def resampled_ratios(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], seed: int = 0, draws: int = DRAWS
) -> NDArray[np.float64]:
    """Return (draws, ...): sum / sum over resampled documents of many statistics (documents, ...), NaN where the
    denominator is 0. `ratio_interval` has the quantiles of the same draws."""
    documents = len(numerators)
    times = np.stack([np.bincount(drawn, minlength=documents) for drawn in resample(documents, seed, draws)])
    above, below = (
        np.tensordot(times.astype(np.float64), np.asarray(part, np.float64), axes=1)
        for part in (numerators, denominators)
    )
    found: NDArray[np.float64] = np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
    return found


def paired_bootstrap(
    statistic_a: Statistic, statistic_b: Statistic, documents: int, seed: int = 0, draws: int = DRAWS
) -> Paired | None:
    """Return the difference of two statistics over the same resampled documents (Koehn 2004); None for fewer than two.

    `p` counts the draws on the other side of zero plus the observed value itself, so it is never 0.
    """
    if documents < 2:
        return None
    whole = np.arange(documents)
    found = np.array([statistic_a(drawn) - statistic_b(drawn) for drawn in resample(documents, seed, draws)])
    fewer = min(int((found <= 0).sum()), int((found >= 0).sum()))
    return Paired(
        statistic_a(whole) - statistic_b(whole), *central_interval(found), min(1.0, 2 * (fewer + 1) / (draws + 1))
    )


def resample(documents: int, seed: int, draws: int) -> Iterator[NDArray[np.int64]]:
    """Yield indices of `documents` documents, drawn with replacement."""
    assert documents > 0
    generator = np.random.default_rng(seed)
    for _ in range(draws):
        yield generator.integers(documents, size=documents)


def central_interval(found: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


# Over independent trials: proportions ----------------------------------------------------------------------------------


def proportion_interval(successes: int, trials: int) -> Interval:
    """Return Wilson's score interval of a proportion: also if all or no trials succeed, where the bootstrap has width zero."""
    assert 0 <= successes <= trials and trials > 0
    z, share = NormalDist().inv_cdf((1 + LEVEL) / 2), successes / trials
    centre, scale = share + z * z / (2 * trials), 1.0 + z * z / trials
    reach = z * math.sqrt(share * (1.0 - share) / trials + (z / (2 * trials)) ** 2)
    low = 0.0 if successes == 0 else (centre - reach) / scale  # exact at the ends
    high = 1.0 if successes == trials else (centre + reach) / scale
    return Interval(low, high)


# Over seeds: Student's t ----------------------------------------------------------------------------------------------


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean over seeds; None for fewer than two."""
    if len(values) < 2:
        return None
    mean, error = mean_and_error(values)
    reach = t_quantile((1 + LEVEL) / 2, len(values) - 1) * error
    return Interval(mean - reach, mean + reach)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Paired | None:
    """Return the mean of a - b over common seeds, by Student's paired t-test; None for fewer than two."""
    assert len(a) == len(b)
    differences = [one - other for one, other in zip(a, b, strict=True)]
    found = mean_interval(differences)
    if found is None:
        return None
    mean, error = mean_and_error(differences)
    if error == 0.0:  # all differences are equal
        return Paired(mean, *found, 1.0 if mean == 0.0 else 0.0)
    return Paired(mean, *found, two_sided(mean / error, len(differences) - 1))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def t_quantile(chance: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, by bisection to full float precision."""
    assert 0.5 <= chance < 1.0
    low, high = 0.0, 1.0
    while 1 - two_sided(high, freedom) / 2 < chance:
        low, high = high, 2 * high
    while low < (between := (low + high) / 2) < high:
        low, high = (between, high) if 1 - two_sided(between, freedom) / 2 < chance else (low, between)
    return high


def two_sided(t: float, freedom: int) -> float:
    """Return the two-sided p-value of t."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8).

    SciPy has it too, but is not a dependency of Lilliput.
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    fraction = 1.0
    for m in range(FRACTION_TERMS, -1, -1):
        fraction = 1.0 - (a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)) / fraction
        if m > 0:
            fraction = 1.0 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / fraction
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / a / fraction
