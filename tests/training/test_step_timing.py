"""Timing of training steps: turns, and a trial that changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.small_runs import small_config
from lilliput.data.progress import silent
from lilliput.model.transformer import weights
from lilliput.settings.tree import Config
from lilliput.training import step_timing
from lilliput.training.estimate_data import open_estimate_data
from lilliput.training.step_timing import (
    TURNS,
    Candidate,
    StepTime,
    Work,
    open_trial,
    time_candidates,
    time_in_turns,
)

CPU = torch.device("cpu")
BOTH, ONE, SHORT = Candidate("float32", 2), Candidate("float32", 1), Candidate("bfloat16", 2)


def work_of(config: Config) -> Work[Any]:
    with open_estimate_data(config) as data:
        return Work(data.config, data.objective, data.splits["train"], CPU)


def test_a_step_is_its_micro_batches_and_one_update() -> None:
    assert StepTime(0.25, 0.5).step(4) == 1.5


def test_candidates_alternate_and_the_median_counts() -> None:
    order: list[Candidate] = []
    numbers = iter(range(100))

    def turn(candidate: Candidate) -> StepTime:
        order.append(candidate)
        disturbed = 10.0 if next(numbers) in (2, 3, 8) else 0.0  # at most three turns of each
        return StepTime({BOTH: 1.0, ONE: 1.25}[candidate] + disturbed, 0.125)

    found = time_in_turns([BOTH, ONE], turn, clock=lambda: 0.0)
    assert found == {BOTH: StepTime(1.0, 0.125), ONE: StepTime(1.25, 0.125)}
    assert order[:4] == [BOTH, ONE, ONE, BOTH]
    assert len(order) == 2 * TURNS


def test_a_clearly_slower_candidate_takes_one_turn() -> None:
    order: list[Candidate] = []

    def turn(candidate: Candidate) -> StepTime:
        order.append(candidate)
        return StepTime({BOTH: 1.0, ONE: 1.4, SHORT: 2.0}[candidate], 0.0)

    found = time_in_turns([BOTH, ONE, SHORT], turn, clock=lambda: 0.0)
    assert order.count(SHORT) == 1 and order.count(ONE) == order.count(BOTH) == TURNS
    assert found[SHORT] == StepTime(2.0, 0.0)


def test_slow_steps_take_one_round() -> None:
    times = iter((0.0, 100.0))
    order: list[Candidate] = []

    def turn(candidate: Candidate) -> StepTime:
        order.append(candidate)
        return StepTime(20.0, 1.0)

    assert len(time_in_turns([BOTH, ONE], turn, clock=lambda: next(times))) == 2
    assert order == [BOTH, ONE]


@pytest.mark.parametrize(
    "changes",
    [
        {"train__precision": "float32"},
        {"train__precision": "float64", "optimizer__kind": "muon", "optimizer__average": "0.9"},
        {"train__precision": "float16", "model__dropout": "0.1", "train__recompute": "block"},
    ],
)
def test_a_trial_takes_finite_steps_and_changes_nothing(
    changes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_timing, "TURN_SECONDS", 0.0)
    work = work_of(small_config(tmp_path, **changes))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with open_trial(work) as trial:
        before = {name: tensor.clone() for name, tensor in weights(trial.model).items()}
        found = trial.turn(Candidate(work.config.train.precision, threads + 1), micro_batches=2)
        assert torch.get_num_threads() == threads + 1
        assert found.micro_batch > 0.0 and found.update > 0.0
        for name, tensor in weights(trial.model).items():
            assert torch.equal(tensor, before[name]), f"{name}: the learning rate is 0"
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_failed_trial_restores_threads_and_generator(tmp_path: Path) -> None:
    work, threads, state = work_of(small_config(tmp_path)), torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), open_trial(work):
        torch.set_num_threads(threads + 1)
        torch.rand(1)
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def test_a_run_that_is_not_worth_it_is_timed_once(tmp_path: Path) -> None:
    work = work_of(small_config(tmp_path, train__precision="float32"))
    asked: list[tuple[float, float]] = []
    found = time_candidates(work, lambda *times: bool(asked.append(times)), silent, [BOTH, SHORT, ONE])
    assert list(found.times) == [BOTH] and not found.busy
    ((step, shortest),) = asked
    assert step >= shortest > 0.0


def test_all_candidates_are_timed_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(step_timing, "HOPELESS", 0.0)  # then a single step of each decides
    monkeypatch.setattr(step_timing, "time_in_turns", lambda left, turn: {one: turn(one) for one in left})
    work = work_of(small_config(tmp_path, train__precision="float32"))
    found = time_candidates(work, lambda *_: True, silent, [BOTH, SHORT, ONE])
    assert list(found.times) == [BOTH, SHORT, ONE]
    assert all(time.step(1) > 0.0 for time in found.times.values())


def test_a_machine_is_busy_if_the_main_thread_waits(tmp_path: Path) -> None:
    with open_trial(work_of(small_config(tmp_path))) as trial:
        trial.wall, trial.cpu = 10.0, 9.5
        assert not trial.busy
        trial.cpu = 5.0
        assert trial.busy
