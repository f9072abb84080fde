"""A power law through measured points: y = floor + scale * x ** -exponent, with intervals.

Owns: the least-squares fit and its profile intervals. Does not own: which points (`study_plots`).

For a given exponent the law is linear in the two others, so the fit is a search along one line: no starting values,
no optimizer
that may fail. An interval holds every value with which the best law leaves squares of at most 1 + F(1, n - 3) / (n -
3) times
the least (the profile likelihood under normal noise; F(1, f) is t(f) squared). It is honest where the points do not
determine a
parameter: it is then open at that end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lilliput.evaluation.intervals import LEVEL, t_quantile

LOWEST, HIGHEST, GRID = 1e-3, 5.0, 100  # exponents that are tried: published ones of losses are 0.05 to 0.5
ZOOMS, FINER = 10, 21  # each grid is a tenth of the one before
PARAMETERS = 3
Numbers = NDArray[np.float64]
Range = tuple[float | None, float | None]  # None: open


@dataclass(frozen=True)
class Law:
    """`exponent_range` and `floor_range` are 95% intervals, None where there are no more points than parameters."""

    floor: float
    scale: float
    exponent: float
    exponent_range: Range | None
    floor_range: Range | None
    points: int

    def __call__(self, x: Numbers) -> Numbers:
        return np.asarray(self.floor + self.scale * x**-self.exponent)


def fit_law(x: Sequence[float], y: Sequence[float]) -> Law | None:
    """None where fewer than three different x cannot tell three parameters, or where y does not fall with x."""
    assert len(x) == len(y)
    if len(set(x)) < PARAMETERS or min(x) <= 0:
        return None
    logs, values = np.log(np.asarray(x, np.float64)), np.asarray(y, np.float64)
    middle = float(logs.mean())  # about which x is measured, so that scale and exponent hardly depend on each other
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
        # Rounding leaves squares of its own: below them one law is as good as another.
        least = max(of_exponent(exponent), len(x) * (1e-14 * float(np.abs(values).max())) ** 2)
        bound = least * (1 + t_quantile((1 + LEVEL) / 2, freedom) ** 2 / freedom)
        exponents = crossings(of_exponent, exponent, LOWEST, HIGHEST, bound)
        floors = crossings(points.squares_of_floor, floor, 0.0, float(values.min()), bound)
    return Law(floor, scale * math.exp(exponent * middle), exponent, exponents, floors, len(x))


@dataclass(frozen=True)
class Points:
    """E exponents at a time, which costs hardly more than one, over P points."""

    logs: Numbers  # (P,), centred
    values: Numbers  # (P,)

    def falling(self, exponents: Numbers) -> Numbers:
        return np.asarray(np.exp(-exponents[:, None] * self.logs))  # (E, P)

    def solve(self, exponents: Numbers) -> tuple[Numbers, Numbers]:
        """The best floor, which cannot be negative, and scale with each exponent."""
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
        """With whatever exponent is best for it."""

        def of(exponents: Numbers) -> Numbers:
            falling = self.falling(exponents)
            return self.left(np.full(len(exponents), floor), self.scale_above(floor, falling), falling)

        return float(of(np.array([lowest_point(of)]))[0])

    def left(self, floor: Numbers, scale: Numbers, falling: Numbers) -> Numbers:
        return np.asarray(np.square(self.values - floor[:, None] - scale[:, None] * falling).sum(axis=1))


def lowest_point(squares: Callable[[Numbers], Numbers]) -> float:
    """The exponent of least squares: by a grid, and finer ones between the neighbours of its best point."""
    tried = np.geomspace(LOWEST, HIGHEST, GRID)
    for _ in range(ZOOMS):
        at = int(np.argmin(squares(tried)))
        tried = np.linspace(tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)], FINER)
    return float(tried[int(np.argmin(squares(tried)))])


def crossings(squares: Callable[[float], float], best: float, lowest: float, highest: float, bound: float) -> Range:
    """Where the squares come to the bound on either side of the best value."""

    def towards(end: float) -> float | None:
        if squares(end) <= bound:
            return None
        inside, outside = best, end
        for _ in range(50):
            between = (inside + outside) / 2
            inside, outside = (between, outside) if squares(between) <= bound else (inside, between)
        return inside

    return towards(lowest), towards(highest)
