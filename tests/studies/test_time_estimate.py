"""How long a study is expected to take, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_studies import write_study
from lilliput.studies.grid import load_study
from lilliput.studies.job_plan import Preparation, plan
from lilliput.studies.time_estimate import Pace


@pytest.fixture
def pace(tmp_path: Path) -> Pace:
    """full 1, its measurement, 4 tokens 1, its measurement; 4 tokens 2 and so on, backwards."""
    return Pace(plan(load_study(write_study(tmp_path, seeds=[1, 2]))), [])


def test_nothing_is_known_until_a_training_tells(pace: Pace) -> None:
    assert pace.look(Preparation("data1"), 5.0, None) == (0.0, None)
    assert pace.look(pace.work[0], 5.0, None) == (0.0, None)
    # 30 s for the rest of it, 40 s for each of the three others.
    assert pace.look(pace.work[0], 10.0, 30.0) == (10 / 160, 150.0)


def test_the_same_work_with_another_seed_goes_before_the_mean_of_all(pace: Pace) -> None:
    for job, seconds in zip(pace.work[:4], (10.0, 1.0, 30.0, 3.0), strict=True):
        pace.learn(job, seconds)
        pace.leave(job)
    assert [pace.expect(job) for job in pace.left] == [30.0, 3.0, 10.0, 1.0]
    assert pace.look(pace.left[0], 4.0, None) == (48 / 88, 40.0)
    assert pace.look(pace.left[0], 32.0, None) == (76 / 90, 14.0), "longer than expected: nothing is left of it"
    assert pace.look(pace.left[0], 4.0, 16.0) == (48 / 78, 30.0), "what it tells itself goes before"


def test_what_was_known_before_helps_and_what_is_left_out_takes_no_time(pace: Pace) -> None:
    lines = [
        {"kind": "training", "name": "full-seed1", "code": 0, "seconds": 8.0},
        {"kind": "training", "name": "4-tokens-seed1", "code": 1, "seconds": 99.0},
        {"kind": "training", "name": "gone-seed1", "code": 0, "seconds": 99.0},
        {"kind": "measuring", "name": "full-seed1", "code": 0, "seconds": 2.0},
    ]
    again = Pace(pace.work, lines)
    for job in again.work[:4]:
        again.leave(job)
    assert again.look(again.work[4], 0.0, None) == (0.0, 8 + 2 + 8 + 2)
