"""The learning rate over the budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.settings import ScheduleSettings
from lilliput.training.schedules import SHAPES, learning_rate

schedules = st.builds(
    ScheduleSettings,
    kind=st.sampled_from(sorted(SHAPES)),
    decay=st.floats(0.01, 1.0),
    warmup=st.integers(0, 100),
    final=st.floats(0.0, 1.0),
)
shares = st.floats(0.0, 1.0)


@given(settings=schedules, peak=st.floats(1e-6, 10.0), step=st.integers(1, 10_000), progress=shares)
def test_it_stays_between_zero_and_the_peak(
    settings: ScheduleSettings, peak: float, step: int, progress: float
) -> None:
    lr = learning_rate(settings, peak, step, progress)
    assert 0.0 <= lr <= peak * (1 + 1e-12)
    if step >= settings.warmup:
        assert lr >= settings.final * peak * (1 - 1e-12)


@given(settings=schedules, step=st.integers(1, 200), one=shares, other=shares)
def test_it_never_rises_with_progress(settings: ScheduleSettings, step: int, one: float, other: float) -> None:
    early, late = sorted((one, other))
    assert learning_rate(settings, 1.0, step, late) <= learning_rate(settings, 1.0, step, early) + 1e-15


@given(warmup=st.integers(1, 100), step=st.integers(1, 300), kind=st.sampled_from(sorted(SHAPES)))
def test_warm_up_is_a_straight_line_to_the_peak(warmup: int, step: int, kind: str) -> None:
    """The first update has a share of 1 / warmup, not nothing: no update is wasted."""
    lr = learning_rate(ScheduleSettings(kind=kind, warmup=warmup), 2.0, step, 0.0)  # type: ignore[arg-type]
    assert lr == pytest.approx(2.0 * min(1.0, step / warmup), rel=1e-15)


def test_cosine_is_its_formula_and_ends_at_the_final_share() -> None:
    settings = ScheduleSettings(kind="cosine", warmup=0, final=0.1)
    for progress in (0.0, 0.25, 0.5, 0.9, 1.0):
        expected = 3e-3 * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)
        assert learning_rate(settings, 3e-3, 7, progress) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(settings, 1.0, 7, 0.0) == 1.0
    assert learning_rate(settings, 1.0, 7, 1.0) == pytest.approx(0.1)


def test_progress_beyond_the_budget_is_its_end() -> None:
    settings = ScheduleSettings(kind="cosine", warmup=0, final=0.1)
    assert learning_rate(settings, 1.0, 7, 1.7) == learning_rate(settings, 1.0, 7, 1.0)
    assert learning_rate(settings, 1.0, 7, -0.1) == learning_rate(settings, 1.0, 7, 0.0)


def test_constant_is_constant() -> None:
    settings = ScheduleSettings(kind="constant", warmup=10, final=0.0)
    assert {learning_rate(settings, 0.5, step, step / 100) for step in range(10, 100)} == {0.5}


def test_a_decay_is_level_and_then_falls_over_the_last_share() -> None:
    settings = ScheduleSettings(kind="linear", decay=0.6, warmup=0, final=0.1)
    for progress, expected in ((0.0, 1.0), (0.4, 1.0), (0.7, 0.55), (1.0, 0.1)):
        assert learning_rate(settings, 1.0, 7, progress) == pytest.approx(expected)
