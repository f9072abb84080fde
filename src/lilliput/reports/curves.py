"""Arithmetic of loss curves: smoothing, and the plotted range.

Owns: one curve as two arrays. Does not own: drawing (`run_plots`, `studies.study_curves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BEGINNING = 0.2  # first part of the steps, ignored for the plotted range
SMOOTH = 0.05  # window of the running mean, as a share of the steps
Numbers = NDArray[np.float64]


class Curve(NamedTuple):
    x: Numbers
    y: Numbers


def running_mean(y: Numbers) -> Numbers:
    """Return a centred running mean; shorter windows at the ends."""
    reach = max(1, round(len(y) * SMOOTH / 2))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    low = np.maximum(np.arange(len(y)) - reach, 0)
    high = np.minimum(np.arange(len(y)) + reach + 1, len(y))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def visible_height(curves: Sequence[Curve]) -> float:
    """Return the maximum of the curves after their first part, which is usually much higher."""
    return max(float(y[~in_beginning(x)].max()) for x, y in curves)


def clipped_note(curves: Sequence[Curve], top: float) -> str:
    """Return a caption sentence if the start of a curve is above the plotted range, else an empty string."""
    return (
        " The start of the curve is above the plotted range."
        if any((y[in_beginning(x)] > top).any() for x, y in curves)
        else ""
    )


def in_beginning(x: Numbers) -> NDArray[np.bool_]:
    """Return which points belong to the first part; never the last point."""
    return np.asarray(x < x[0] + BEGINNING * (x[-1] - x[0]))
