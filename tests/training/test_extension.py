"""A run is extended by a larger budget: it continues as a run of that budget, also if it is killed meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from torch import Tensor

from helpers.small_runs import abandon, assert_equal_tensors, lilliput, small_config, train_small
from helpers.user_errors import refused
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Evaluated, Event, Finished, Stepped
from lilliput.training.extension import larger_budget
from torture import outcome


def rates(events: list[Event]) -> list[tuple[int, float, float]]:
    return [(event.step, event.lr, event.loss) for event in events if isinstance(event, Stepped)]


def weights_of(run: RunFolder) -> dict[str, Tensor]:
    assert run.last is not None
    return run.last.load_model()


@pytest.mark.parametrize("budget", ["steps", "tokens", "epochs"])
def test_with_a_constant_rate_an_extended_run_equals_a_long_one(tmp_path: Path, budget: str) -> None:
    """Bit for bit: weights, and loss and learning rate of every step."""
    part, whole = {"steps": ("4", "9"), "tokens": ("400", "1000"), "epochs": ("0.2", "0.5")}[budget]
    changes = {"schedule__kind": "constant", "model__dropout": "0.2", "train__steps": "none"}
    changes = {name: value for name, value in changes.items() if name != "train__steps" or budget != "steps"}

    def config(name: str, value: str) -> Config:
        return small_config(tmp_path, name, **changes | {f"train__{budget}": value})

    expected, events = train_small(config("long", whole))
    first, before = train_small(config("short", part))
    extended, after = train_small(config("short", whole), resume=True)
    assert first.last is not None and 0 < len(rates(before)) < len(rates(events))
    assert rates(before) + rates(after) == rates(events)
    assert_equal_tensors(weights_of(extended), weights_of(expected))
    assert extended.config()["train"][budget] == getattr(config("long", whole).train, budget)
    assert isinstance(after[-1], Finished) and not after[-1].interrupted


def test_the_rate_is_that_of_the_new_budget(tmp_path: Path) -> None:
    _, whole = train_small(small_config(tmp_path, "long", train__steps="12"))
    _, part = train_small(small_config(tmp_path, "short", train__steps="6"))
    _, rest = train_small(small_config(tmp_path, "short", train__steps="12"), resume=True)
    lr = [rate for _, rate, _ in rates(whole)]
    assert [rate for _, rate, _ in rates(rest)] == lr[6:]
    assert rates(rest)[0][1] > rates(part)[-1][1]  # it had fallen to its end


@pytest.mark.parametrize(
    "changes", [{}, {"optimizer__average": "0.9"}, {"train__patience": "1", "optimizer__lr": "100"}]
)
def test_an_extension_that_is_killed_equals_one_that_is_not(tmp_path: Path, changes: dict[str, str]) -> None:
    short, long = (small_config(tmp_path, "mine", train__steps=steps, **changes) for steps in ("5", "9"))
    run, _ = train_small(short)
    kept = shutil.copytree(run.folder, tmp_path / "kept")
    _, events = train_small(long, resume=True)
    expected = outcome(run.folder)
    assert sum(isinstance(event, Stepped) for event in events) >= 1
    for after in range(len(events)):
        shutil.rmtree(run.folder)
        shutil.copytree(kept, run.folder)
        assert abandon(long, after, resume=True)
        run, _ = train_small(long, resume=True)
        assert outcome(run.folder) == expected, f"killed after event {after}"


def test_the_end_of_the_first_part_is_evaluated_and_can_be_the_best(tmp_path: Path) -> None:
    run, before = train_small(small_config(tmp_path, train__steps="5"))
    run, after = train_small(small_config(tmp_path, train__steps="7"), resume=True)
    old = [event.loss for event in before if isinstance(event, Evaluated) and event.step == 5 and not event.whole]
    first = next(event for event in after if isinstance(event, Evaluated))
    assert (first.step, [first.loss]) == (5, old)
    assert [line["step"] for line in run.metrics() if line["event"] == "finished"] == [7]
    assert run.best is not None and run.best.step in (3, 5, 6, 7)


def test_errors_change_nothing(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path))
    log, config = run.metrics_path.read_bytes(), run.config()
    error = refused(lambda: train_small(small_config(tmp_path, train__steps="7"), resume=True))
    assert (error.code, error.setting) == ("budget.smaller", "train.steps")
    error = refused(lambda: train_small(small_config(tmp_path, train__tokens="100"), resume=True))
    assert (error.code, error.setting) == ("budget.smaller", "train.tokens")
    error = refused(lambda: train_small(small_config(tmp_path, train__steps="9", optimizer__lr="1"), resume=True))
    assert (error.code, error.setting) == ("setting.changed", "optimizer.lr")
    assert (run.metrics_path.read_bytes(), run.config()) == (log, config)


def test_larger_budgets() -> None:
    old = {"train.minutes": 10.0, "train.steps": None, "seed": 1}
    assert larger_budget(old, {"train.minutes": 10.0}, "x") == larger_budget(old, {"seed": 2}, "x") == {}
    assert larger_budget(old, {"train.minutes": 10.5, "train.steps": None}, "x") == {"train.minutes": 10.5}
    assert larger_budget(old, {"train.steps": 3}, "x") == {"train.steps": 3}
    assert refused(lambda: larger_budget(old, {"train.minutes": 9.0}, "x")).setting == "train.minutes"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_small(small_config(tmp_path))
    monkeypatch.chdir(tmp_path)
    for target in ("mine", "runs/mine"):
        steps = "10" if target == "mine" else "12"
        code, _, err = lilliput("train", target, "--resume", "--train.steps", steps)
        assert code == 0, err
        assert f"the budget is now train.steps {steps}" in err and "from step" in err
    assert RunFolder(Path("runs/mine")).config()["train"]["steps"] == 12
    code, _, err = lilliput("train", "mine", "--resume", "--train.minutes", "0.01")
    assert code == 0, err
    assert RunFolder(Path("runs/mine")).config()["train"]["steps"] is None
