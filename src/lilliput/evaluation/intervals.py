"""How far a figure can be trusted: 95% intervals, and whether two figures differ.

Owns: the percentile bootstrap over documents (Efron 1979), Student's t over seeds, and the paired form of
both. Does not own: what is resampled or averaged. Documents are what is drawn, never tokens: tokens of one
document hang together, and an interval over them would be far too narrow.

Everything is a function of the figures and a seed: the same figures have the same interval, always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
DRAWS = 1000  # the ends of an interval then move by a few hundredths of its width from seed to seed

FRACTION_TERMS = 100  # of the continued fraction: it needs about the root of the degrees of freedom

Statistic = Callable[
    [NDArray[np.int64]], float
]  # a figure over documents, by their numbers; one may come several times


class Interval(NamedTuple):
    """Both ends belong to it."""

    low: float
    high: float


class Paired(NamedTuple):
    """The difference a - b of two figures that were measured on the same things, its interval, and its two-sided p."""

    mean: float
    low: float
    high: float
    p: float


# Over documents: the bootstrap ----------------------------------------------------------------------------------------


def bootstrap(statistic: Statistic, documents: int, seed: int = 0, draws: int = DRAWS) -> Interval:
    """Of a figure over documents, as if others of their kind had been measured. One document has an interval of no width,
    which says nothing: callers leave it out."""
    return middle(np.array([statistic(drawn) for drawn in resample(documents, seed, draws)]))


def ratio_interval(numerators: NDArray[Any], denominators: NDArray[Any], seed: int = 0, draws: int = DRAWS) -> Interval:
    """Of sum / sum, both over documents: the loss, bits per byte, accuracy. A draw without a denominator is left out."""
    assert len(numerators) == len(denominators)
    above, below = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    sums = np.array([(above[drawn].sum(), below[drawn].sum()) for drawn in resample(len(above), seed, draws)])
    sums = sums[sums[:, 1] > 0]
    return middle(sums[:, 0] / sums[:, 1])


def paired_bootstrap(
    statistic_a: Statistic, statistic_b: Statistic, documents: int, seed: int = 0, draws: int = DRAWS
) -> Paired | None:
    """The difference of two figures over the same documents, drawn for both alike (Koehn 2004); None where there are fewer than
    two, which tell nothing about others. `p` counts the draws that lie on the other side of zero, and the figure itself as one
    of them, so that it is never 0."""
    if documents < 2:
        return None
    whole = np.arange(documents)
    found = np.array([statistic_a(drawn) - statistic_b(drawn) for drawn in resample(documents, seed, draws)])
    fewer = min(int((found <= 0).sum()), int((found >= 0).sum()))
    return Paired(statistic_a(whole) - statistic_b(whole), *middle(found), min(1.0, 2 * (fewer + 1) / (draws + 1)))


def resample(documents: int, seed: int, draws: int) -> Iterator[NDArray[np.int64]]:
    """As many documents as there are, with replacement, again and again."""
    assert documents > 0
    generator = np.random.default_rng(seed)
    for _ in range(draws):
        yield generator.integers(documents, size=documents)


def middle(found: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


# Over seeds: Student's t ----------------------------------------------------------------------------------------------


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Of the mean over seeds; None where there are fewer than two, which tell nothing about others."""
    if len(values) < 2:
        return None
    mean, error = mean_and_error(values)
    reach = t_quantile((1 + LEVEL) / 2, len(values) - 1) * error
    return Interval(mean - reach, mean + reach)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Paired | None:
    """The mean of a - b over seeds that both have in common, by Student's paired t; None where there are fewer than two."""
    assert len(a) == len(b)
    differences = [one - other for one, other in zip(a, b, strict=True)]
    found = mean_interval(differences)
    if found is None:
        return None
    mean, error = mean_and_error(differences)
    if error == 0.0:  # all differ alike: certain, or no difference at all
        return Paired(mean, *found, 1.0 if mean == 0.0 else 0.0)
    return Paired(mean, *found, two_sided(mean / error, len(differences) - 1))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def t_quantile(chance: float, freedom: int) -> float:
    """The t below which a share `chance` of Student's distribution lies; by bisection, to the last bits of a float."""
    assert 0.5 <= chance < 1.0
    low, high = 0.0, 1.0
    while 1 - two_sided(high, freedom) / 2 < chance:
        low, high = high, 2 * high
    while low < (between := (low + high) / 2) < high:
        low, high = (between, high) if 1 - two_sided(between, freedom) / 2 < chance else (low, between)
    return high


def two_sided(t: float, freedom: int) -> float:
    """The share of Student's distribution that lies as far from 0 as t, or farther."""
    return beta_share(freedom / 2, 0.5, freedom / (freedom + t * t))


def beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8), from the inside out and
    on the side where it converges fast. SciPy has it, too, but is no dependency of Lilliput."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_share(b, a, 1.0 - x)
    fraction = 1.0
    for m in range(FRACTION_TERMS, -1, -1):
        fraction = 1.0 - (a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)) / fraction
        if m > 0:
            fraction = 1.0 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / fraction
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / a / fraction
