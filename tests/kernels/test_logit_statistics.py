"""Peaks and norms of logits: compiled code compared with NumPy, plain Python and float64."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.user_errors import refused
from lilliput.kernels.logit_statistics import SETS, find_peaks, logit_statistics, statistics_in_numpy

WIDTHS = [1, 15, 16, 17, 63, 64, 65, 127, 1000, 4096, 4099]


def draw_logits(rows: int, width: int, seed: int, banned: float = 0.3) -> np.ndarray:
    random = np.random.default_rng(seed)
    logits = (4 * random.normal(size=(rows, width))).astype(np.float32)
    logits[random.random(logits.shape) < banned] = -np.inf
    logits[np.arange(rows), random.integers(0, width, rows)] = 1.5  # every row has at least one finite logit
    return logits


@pytest.mark.parametrize("width", WIDTHS)
def test_compiled_statistics_equal_numpy_in_float64(width: int) -> None:
    logits = draw_logits(7, width, seed=width)
    found, exact = logit_statistics(logits), statistics_in_numpy(logits.astype(np.float64))
    assert np.array_equal(found.peaks, exact.peaks)
    reference = torch.from_numpy(logits).double().logsumexp(dim=1).numpy()
    np.testing.assert_allclose(exact.norms, reference, rtol=1e-14)
    np.testing.assert_allclose(found.norms, reference, rtol=1e-6, atol=1e-6)


@given(row=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=200))
def test_peak_is_the_largest_of_its_set(row: list[float]) -> None:
    for values in (np.array([row], np.float32), np.array([row], np.float64)):
        expected = [max(values[0, own::SETS].tolist(), default=-math.inf) for own in range(SETS)]
        assert logit_statistics(values).peaks.tolist() == find_peaks(values).tolist() == [expected]


def test_large_logits_do_not_overflow() -> None:
    for size in (1e3, 1e30):
        logits = np.array([[size, size, -size], [-size, -size, -size]], np.float32)
        expected = [float(logits[0, 0]) + math.log(2), -float(logits[0, 0]) + math.log(3)]
        assert logit_statistics(logits).norms.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_statistics_do_not_depend_on_the_batch(width: int) -> None:
    """Bit for bit in float32, so that generated texts do not depend on the batch either."""
    logits = draw_logits(9, width, seed=1)
    together = logit_statistics(logits)
    for row in range(9):
        alone = logit_statistics(logits[row : row + 1])
        assert np.array_equal(alone.peaks[0], together.peaks[row])
        assert alone.norms[0] == together.norms[row]


def test_non_contiguous_views() -> None:
    """Rows with a stride, reversed rows, and columns with a stride."""
    whole = draw_logits(6, 200, seed=2, banned=0.0)
    for view in (whole[:, 3:98], whole[::-1, :70], whole[::2], whole[:, ::3], whole.T):
        found, exact = logit_statistics(view), statistics_in_numpy(view.astype(np.float64))
        assert np.array_equal(found.peaks, exact.peaks)
        np.testing.assert_allclose(found.norms, exact.norms, rtol=1e-6)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nan_or_infinite_logits_are_an_error(wrong: float) -> None:
    """In all or some places of a row; compiled code ignores a single NaN."""
    for dtype, places in itertools.product((np.float32, np.float64), (slice(None), [0], [-1])):
        for width in (1, 70, 300):
            logits = draw_logits(3, width, seed=1).astype(dtype)
            logits[1, places] = wrong
            if dtype is np.float64 or wrong == math.inf or places == slice(None):
                assert refused(partial(logit_statistics, logits)).code == "model.not-finite"


def test_row_without_a_finite_logit_fails_an_assertion() -> None:
    for dtype in (np.float32, np.float64):
        with pytest.raises(AssertionError, match="finite logit"):
            logit_statistics(np.full((2, 70), -np.inf, dtype))
