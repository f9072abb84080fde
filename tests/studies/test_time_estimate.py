"""Estimated time of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_studies import write_study
from lilliput.studies.grid import load_study
from lilliput.studies.job_plan import Preparation, plan
from lilliput.studies.time_estimate import STARTING, Pace, estimate_study


@pytest.fixture
def pace(tmp_path: Path) -> Pace:
    """Jobs: full 1, its measurement, 4 tokens 1, its measurement, then seed 2 in reverse order."""
    return Pace(plan(load_study(write_study(tmp_path, seeds=[1, 2]))), [])


def test_no_estimate_before_the_first_progress_of_a_training(pace: Pace) -> None:
    assert pace.estimate(Preparation("data1"), 5.0, None) == (0.0, None)
    assert pace.estimate(pace.work[0], 5.0, None) == (0.0, None)
    # 30 s left, and 40 s for each of the three other trainings.
    assert pace.estimate(pace.work[0], 10.0, 30.0) == (10 / 160, 150.0)


def test_same_job_with_another_seed_is_preferred_to_the_mean(pace: Pace) -> None:
    for job, seconds in zip(pace.work[:4], (10.0, 1.0, 30.0, 3.0), strict=True):
        pace.record(job, seconds)
        pace.remove(job)
    assert [pace.expect(job) for job in pace.left] == [30.0, 3.0, 10.0, 1.0]
    assert pace.estimate(pace.left[0], 4.0, None) == (48 / 88, 40.0)
    assert pace.estimate(pace.left[0], 32.0, None) == (76 / 90, 14.0), "longer than expected: no time left"
    assert pace.estimate(pace.left[0], 4.0, 16.0) == (48 / 78, 30.0), "its own estimate is preferred"


def test_earlier_calls_are_used_and_removed_jobs_are_not_counted(pace: Pace) -> None:
    lines = [
        {"kind": "training", "name": "full-seed1", "code": 0, "seconds": 8.0},
        {"kind": "training", "name": "4-tokens-seed1", "code": 1, "seconds": 99.0},
        {"kind": "training", "name": "gone-seed1", "code": 0, "seconds": 99.0},
        {"kind": "measuring", "name": "full-seed1", "code": 0, "seconds": 2.0},
    ]
    again = Pace(pace.work, lines)
    for job in again.work[:4]:
        again.remove(job)
    assert again.estimate(again.work[4], 0.0, None) == (0.0, 8 + 2 + 8 + 2)


def test_estimate_before_the_study_runs(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, seeds=[1, 2]))
    found = estimate_study(study, tmp_path / "runs" / "small")
    assert ([job.run for job in found.trainings], found.measurements, found.measured) == (
        ["full-seed1", "4-tokens-seed1", "4-tokens-seed2", "full-seed2"],
        4,
        0,
    )
    assert found.lacking == []
    jobs = 1 + 4 + 4  # one preparation
    assert jobs * STARTING < found.seconds < jobs * STARTING + 60
