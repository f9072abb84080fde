"""Estimates of a run: arithmetic with given costs, and real measurements of small runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.small_runs import small_config, train_small
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.training.cost_estimate import TIMING
from lilliput.training.estimate_data import open_estimate_data
from lilliput.training.events import Evaluated, Saved, Stepped
from lilliput.training.run_estimate import Costs, RunEstimate, combine, estimate_run, measure_costs

CPU = torch.device("cpu")
COSTS = Costs(step=1.0, save=0.25, sample=10.0, final=100.0, memory=7)


def combined(config: Config, costs: Costs = COSTS) -> RunEstimate:
    with open_estimate_data(config) as data:
        return combine(data.config, data, costs, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"train__steps": "8"},
        {"train__steps": "9", "train__save_every": "4", "evaluate__at": "0,1"},
        {"train__steps": "none", "train__epochs": "1.5", "evaluate__every": "epoch"},
        {"train__steps": "none", "train__epochs": "1", "train__accumulate": "3"},
        {"train__tokens": "2000"},
    ],
)
def test_steps_checkpoints_and_evaluations_are_those_of_the_run(changes: dict[str, str], tmp_path: Path) -> None:
    config = small_config(tmp_path, **changes)
    found = combined(config)
    _, events = train_small(config)
    steps = [event for event in events if isinstance(event, Stepped)]
    evaluations = [event for event in events if isinstance(event, Evaluated) and not event.whole]
    assert found.steps is not None and found.tokens is not None and found.epochs is not None
    assert found.steps == pytest.approx(len(steps), abs=1)  # a budget in tokens is estimated from the mean row
    assert found.tokens == pytest.approx(steps[-1].tokens, rel=0.1)
    assert found.epochs == pytest.approx(evaluations[-1].epoch, rel=0.1)
    assert found.memory == 7
    if found.steps == len(steps):
        saves = sum(isinstance(event, Saved) for event in events)
        assert found.evaluation == 10.0 * len(evaluations) + 100.0
        seconds = found.steps + found.evaluation + 0.25 * saves
        assert found.seconds == pytest.approx(seconds, abs=0.25 * found.steps)  # a step may be due for both


def test_minutes_contain_evaluations_except_the_last_ones(tmp_path: Path) -> None:
    config = small_config(tmp_path, train__minutes="10", evaluate__every="50", train__save_every="100")
    found = combined(config)
    pace = 1.0 + 10.25 / 50 + 0.25 / 100
    assert found.steps == int(600 / pace)
    assert found.seconds == 600 + 0.25 + 10.0 + 100.0


def test_a_limit_shortens_the_estimate_of_any_budget(tmp_path: Path) -> None:
    limited = {"evaluate__every": "50", "train__save_every": "100", "train__max_minutes": "10"}
    by_minutes = combined(small_config(tmp_path, train__minutes="10", evaluate__every="50", train__save_every="100"))
    for budget in ({"train__steps": "100000"}, {"train__minutes": "30"}):
        found = combined(small_config(tmp_path, **limited, **budget))
        assert (found.steps, found.seconds) == (by_minutes.steps, by_minutes.seconds)
    assert combined(small_config(tmp_path, **limited, train__steps="8")).steps == 8


def test_rows_of_a_part_are_scaled(tmp_path: Path) -> None:
    config = small_config(tmp_path, train__steps="none", train__epochs="1")
    with open_estimate_data(config) as data:
        whole = combine(data.config, data, COSTS, [])
        double = combine(data.config, type(data)(**vars(data) | {"scale": 2.0}), COSTS, [])
    rows = len(data.splits["train"].rows)
    assert (whole.steps, double.steps) == (math.ceil(rows / 4), math.ceil(2 * rows / 4))


def test_an_unknown_text_has_no_epochs(tmp_path: Path) -> None:
    config = replace(small_config(tmp_path), {"data.source": "absent.txt"})
    found = combined(config)
    assert (found.steps, found.tokens, found.epochs) == (8, 8 * 4 * 32, None)
    epochs = combined(replace(config, {"train.epochs": 2.0}))
    assert (epochs.steps, epochs.tokens, epochs.seconds) == (None, None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer__kind": "muon", "optimizer__average": "0.9"},
        {"evaluate__train_rows": "4", "model__dropout": "0.1"},
    ],
)
def test_costs_are_measured(changes: dict[str, str], tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    config = small_config(tmp_path, **changes)
    with open_estimate_data(config) as data:
        costs = measure_costs(data.config, data, CPU, lambda *_: None)
    assert all(0.0 < seconds < 60.0 for seconds in (costs.step, costs.save, costs.sample, costs.final))
    assert costs.memory > 50e6
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mytext.txt"]


def test_the_floor_of_the_storybook_is_part_of_the_final_evaluation(tmp_path: Path) -> None:
    config = replace(small_config(tmp_path), {"data.source": "storybook", "data.documents": 60})
    with open_estimate_data(config) as data:
        costs = measure_costs(data.config, data, CPU, lambda *_: None)
    assert costs.final > 0.0


@pytest.mark.parametrize("processes", [1, 2])
def test_formulas_replace_the_measurement(processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if processes == 2:
        monkeypatch.delenv(TIMING)

    def refuse(*_: Any) -> Any:
        raise AssertionError("nothing is measured")

    monkeypatch.setattr("lilliput.training.run_estimate.measure_costs", refuse)
    with open_estimate_data(small_config(tmp_path)) as data:
        found = estimate_run(data, CPU, processes)
    assert found.seconds is not None and found.seconds > 0.0 and found.evaluation == 0.0
