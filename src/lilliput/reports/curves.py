"""Arithmetic of loss curves: smoothing, and the range of values that a plot shows.

Owns: one curve as two arrays. Does not own: drawing (`run_plots`, `studies.study_curves`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BEGINNING = 0.2  # of a training, which is not looked at when the height of the picture is chosen
SMOOTH = 0.05  # of a training, over which the losses of batches are averaged
Numbers = NDArray[np.float64]


class Curve(NamedTuple):
    x: Numbers
    y: Numbers


def running_mean(y: Numbers) -> Numbers:
    """Centred; at the ends over what there is."""
    reach = max(1, round(len(y) * SMOOTH / 2))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    low = np.maximum(np.arange(len(y)) - reach, 0)
    high = np.minimum(np.arange(len(y)) + reach + 1, len(y))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def visible_height(curves: Sequence[Curve]) -> float:
    """The height up to which curves are worth seeing: what comes after their beginning."""
    return max(float(y[~begins(x)].max()) for x, y in curves)


def clipped_note(curves: Sequence[Curve], top: float) -> str:
    """The sentence for a caption where something of what is drawn begins above the picture, else nothing."""
    return " The beginning is above the picture." if any((y[begins(x)] > top).any() for x, y in curves) else ""


def begins(x: Numbers) -> NDArray[np.bool_]:
    """Which points are of the beginning; never the last."""
    return np.asarray(x < x[0] + BEGINNING * (x[-1] - x[0]))
