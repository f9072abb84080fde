"""Fit of a power law to measured points: y = floor + scale * x ** -exponent, with confidence intervals.

Owns: the least-squares fit and its profile-likelihood intervals. Does not own: the choice of points (`study_plots`).

For a given exponent the law is linear in floor and scale, so the fit is a search over one parameter: it needs no
starting values and always converges. The interval of a parameter holds every value for which the best law has a sum
of squares of at most 1 + F(1, n - 3) / (n - 3) times the minimum (profile likelihood under normal noise; F(1, f) is
t(f) squared). Where the points do not bound a parameter, its interval is open at that end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lilliput.evaluation.intervals import LEVEL, t_quantile

LOWEST, HIGHEST, GRID = 1e-3, 5.0, 100  # exponents tried; published exponents of losses are 0.05 to 0.5
ZOOMS, FINER = 10, 21  # each grid spans a tenth of the previous one
PARAMETERS = 3
Numbers = NDArray[np.float64]
Range = tuple[float | None, float | None]  # None: open


@dataclass(frozen=True)
class Law:
    """`exponent_range` and `floor_range` are 95% confidence intervals, None if there are no more points than parameters."""

    floor: float
    scale: float
    exponent: float
    exponent_range: Range | None
    floor_range: Range | None
    points: int

    def __call__(self, x: Numbers) -> Numbers:
        return np.asarray(self.floor + self.scale * x**-self.exponent)


def fit_law(x: Sequence[float], y: Sequence[float]) -> Law | None:
    """Return None for fewer than three different x, which cannot determine three parameters, or if y does not fall with x."""
    assert len(x) == len(y)
    if len(set(x)) < PARAMETERS or min(x) <= 0:
        return None
    logs, values = np.log(np.asarray(x, np.float64)), np.asarray(y, np.float64)
    middle = float(logs.mean())  # x is centred here, so that scale and exponent are nearly independent
    points = Points(logs - middle, values)
    exponent = lowest_point(points.squares)
    floor, scale = (float(found[0]) for found in points.solve(np.array([exponent])))
    if scale <= 0.0:
        return None

    def of_exponent(one: float) -> float:
        return float(points.squares(np.array([one]))[0])

    freedom = len(x) - PARAMETERS
    exponents = floors = None
    if freedom > 0:
        # Sums of squares below the rounding error do not distinguish laws.
        least = max(of_exponent(exponent), len(x) * (1e-14 * float(np.abs(values).max())) ** 2)
        bound = least * (1 + t_quantile((1 + LEVEL) / 2, freedom) ** 2 / freedom)
        exponents = crossings(of_exponent, exponent, LOWEST, HIGHEST, bound)
        floors = crossings(points.squares_of_floor, floor, 0.0, float(values.min()), bound)
    return Law(floor, scale * math.exp(exponent * middle), exponent, exponents, floors, len(x))


@dataclass(frozen=True)
class Points:
    """P points; the methods compute E exponents at a time, which costs hardly more than one."""

    logs: Numbers  # (P,), centred
    values: Numbers  # (P,)

    def falling(self, exponents: Numbers) -> Numbers:
        return np.asarray(np.exp(-exponents[:, None] * self.logs))  # (E, P)

    def solve(self, exponents: Numbers) -> tuple[Numbers, Numbers]:
        """Return the best non-negative floor and the best scale for each exponent."""
        falling = self.falling(exponents)
        middle = falling.mean(axis=1)
        spread = falling - middle[:, None]
        scale = spread @ self.values / np.square(spread).sum(axis=1)
        floor = self.values.mean() - scale * middle
        return np.maximum(floor, 0.0), np.where(floor < 0.0, self.scale_above(0.0, falling), scale)

    def scale_above(self, floor: float, falling: Numbers) -> Numbers:
        return np.asarray(falling @ (self.values - floor) / np.square(falling).sum(axis=1))

    def squares(self, exponents: Numbers) -> Numbers:
        floor, scale = self.solve(exponents)
        return self.left(floor, scale, self.falling(exponents))

    def squares_of_floor(self, floor: float) -> float:
        """Return the sum of squares with the exponent that is best for this floor."""

        def of(exponents: Numbers) -> Numbers:
            falling = self.falling(exponents)
            return self.left(np.full(len(exponents), floor), self.scale_above(floor, falling), falling)

        return float(of(np.array([lowest_point(of)]))[0])

    def left(self, floor: Numbers, scale: Numbers, falling: Numbers) -> Numbers:
        return np.asarray(np.square(self.values - floor[:, None] - scale[:, None] * falling).sum(axis=1))


def lowest_point(squares: Callable[[Numbers], Numbers]) -> float:
    """Return the exponent of least squares by a grid search, refined between the neighbours of the best point."""
    tried = np.geomspace(LOWEST, HIGHEST, GRID)
    for _ in range(ZOOMS):
        at = int(np.argmin(squares(tried)))
        tried = np.linspace(tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)], FINER)
    return float(tried[int(np.argmin(squares(tried)))])


def crossings(squares: Callable[[float], float], best: float, lowest: float, highest: float, bound: float) -> Range:
    """Return where the squares reach the bound on either side of the best value, by bisection."""

    def towards(end: float) -> float | None:
        if squares(end) <= bound:
            return None
        inside, outside = best, end
        for _ in range(50):
            between = (inside + outside) / 2
            inside, outside = (between, outside) if squares(between) <= bound else (inside, between)
        return inside

    return towards(lowest), towards(highest)
