"""The learning rate over the budget."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.settings.rules import conflicts
from lilliput.settings.tree import Config, ScheduleSettings, TrainSettings
from lilliput.training.schedules import learning_rate, warm_up_note
from lilliput.training.training_choices import SCHEDULES

schedules = st.builds(
    ScheduleSettings,
    kind=st.sampled_from(sorted(SCHEDULES)),
    decay=st.just(0.0) | st.floats(0.01, 1.0),
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


@given(warmup=st.integers(1, 100), step=st.integers(1, 300), kind=st.sampled_from(sorted(SCHEDULES)))
def test_warm_up_is_a_straight_line_to_the_peak(warmup: int, step: int, kind: str) -> None:
    """The first step has the share 1 / warmup, not 0. After the warm-up, only inverse-sqrt falls at progress 0."""
    lr = learning_rate(ScheduleSettings(kind=kind, warmup=warmup, final=0.0), 2.0, step, 0.0)  # type: ignore[arg-type]
    after = math.sqrt(warmup / step) if kind == "inverse-sqrt" else 1.0
    assert lr == pytest.approx(2.0 * (step / warmup if step < warmup else after), rel=1e-15)


@given(settings=schedules, step=st.integers(100, 1000))
def test_it_ends_at_the_final_share(settings: ScheduleSettings, step: int) -> None:
    """With `decay` 0 it ends at its level."""
    end = 1.0 if settings.kind == "constant" else settings.final
    if not settings.decay:
        end = max(settings.final, SCHEDULES[settings.kind].build().level(step, settings.warmup))
    assert learning_rate(settings, 3.0, step, 1.0) == pytest.approx(3.0 * end, abs=1e-13)


@given(settings=schedules, steps=st.integers(2000, 3000))
def test_it_has_no_jumps(settings: ScheduleSettings, steps: int) -> None:
    """Between two steps it changes at most by the steepest slope of its parts."""
    rates = [learning_rate(settings, 1.0, step, (step - 1) / steps) for step in range(1, steps + 1)]
    rise = 1.0 / max(1, settings.warmup)
    # The steepest slopes of cosine, and of inverse-sqrt after the warm-up.
    fall = (math.pi / 2 / (settings.decay * steps) if settings.decay else 0.0) + rise / 2
    assert all(-fall * 1.001 <= late - early <= rise * 1.001 for early, late in itertools.pairwise(rates))


def test_cosine_equals_its_formula_and_ends_at_the_final_share() -> None:
    settings = ScheduleSettings(kind="cosine", warmup=0, final=0.1)
    for progress in (0.0, 0.25, 0.5, 0.9, 1.0):
        expected = 3e-3 * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)
        assert learning_rate(settings, 3e-3, 7, progress) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(settings, 1.0, 7, 0.0) == 1.0
    assert learning_rate(settings, 1.0, 7, 1.0) == pytest.approx(0.1)


def test_progress_is_clipped_to_the_budget() -> None:
    settings = ScheduleSettings(kind="cosine", warmup=0, final=0.1)
    assert learning_rate(settings, 1.0, 7, 1.7) == learning_rate(settings, 1.0, 7, 1.0)
    assert learning_rate(settings, 1.0, 7, -0.1) == learning_rate(settings, 1.0, 7, 0.0)


def test_constant_is_constant() -> None:
    settings = ScheduleSettings(kind="constant", warmup=10, final=0.0)
    assert {learning_rate(settings, 0.5, step, step / 100) for step in range(10, 100)} == {0.5}


def test_the_rate_is_level_and_falls_over_the_last_share() -> None:
    settings = ScheduleSettings(kind="linear", decay=0.6, warmup=0, final=0.1)
    for progress, expected in ((0.0, 1.0), (0.4, 1.0), (0.7, 0.55), (1.0, 0.1)):
        assert learning_rate(settings, 1.0, 7, progress) == pytest.approx(expected)


def test_inverse_square_root_by_hand() -> None:
    """Warm-up over 4 steps, then peak x sqrt(4 / step); over the last fifth of the budget it falls to `final`."""
    settings = ScheduleSettings(kind="inverse-sqrt", decay=0.2, warmup=4, final=0.1)
    for step, progress, expected in (
        (1, 0.0, 0.25),
        (4, 0.03, 1.0),
        (9, 0.08, 2 / 3),
        (16, 0.15, 0.5),
        (64, 0.63, 0.25),
        (80, 0.8, math.sqrt(0.05)),
        (90, 0.9, 0.1 + (math.sqrt(4 / 90) - 0.1) / 2),
        (100, 1.0, 0.1),
        (100, 0.8, 0.2),
        (900, 0.8, 0.1),  # its level would be below the final rate
    ):
        assert learning_rate(settings, 1.0, step, progress) == pytest.approx(expected, rel=1e-12), step


def test_inverse_square_root_with_decay_zero_equals_vaswani() -> None:
    """Section 5.3, with width 512: 512^-0.5 x min(step^-0.5, step x warmup^-1.5), at any progress."""
    settings = ScheduleSettings(kind="inverse-sqrt", decay=0.0, warmup=4000, final=0.0)
    peak = (512 * 4000) ** -0.5
    for step in (1, 100, 3999, 4000, 4001, 20_000, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        for progress in (0.0, 0.5, 1.0):
            assert learning_rate(settings, peak, step, progress) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_with_decay_zero_the_rate_stays_level(kind: Any) -> None:
    settings = ScheduleSettings(kind=kind, decay=0.0, warmup=10, final=0.1)
    assert {learning_rate(settings, 0.5, step, step / 100) for step in range(10, 101)} == {0.5}


def test_a_warm_up_longer_than_the_budget_gives_a_note() -> None:
    schedule = ScheduleSettings(warmup=50)

    def note(**budget: Any) -> str | None:
        return warm_up_note(Config(schedule=schedule, train=TrainSettings(**budget)))

    text = note(steps=20, minutes=None)
    assert text is not None and "50 steps" in text and "20 steps" in text and "schedule.warmup to 2" in text
    assert note(steps=50, minutes=None) is note(tokens=1, minutes=None) is note() is None


def test_warm_up_stable_decay_by_hand() -> None:
    settings = ScheduleSettings(kind="cosine", decay=0.2, warmup=10, final=0.0)
    for step, progress, expected in ((5, 0.04, 0.5), (10, 0.09, 1.0), (80, 0.8, 1.0), (90, 0.9, 0.5), (100, 1.0, 0.0)):
        assert learning_rate(settings, 1.0, step, progress) == pytest.approx(expected, abs=1e-12)


def test_inverse_square_root_without_a_warm_up_is_an_error() -> None:
    """Its level would be zero from the first step on."""
    schedule = ScheduleSettings(kind="inverse-sqrt", warmup=0)
    assert [one.setting for one in conflicts(Config(schedule=schedule))] == ["schedule.warmup"]
