"""Budgets and the time limit: when a run ends, and how the learning rate gets there. Time is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import assert_equal_tensors, lilliput, small_config, timeless, train_small
from helpers.user_errors import refused
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder, describe
from lilliput.training import budget
from lilliput.training.events import Evaluated, Event, Finished, Saved, Stepped
from lilliput.training.session import open_session


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# ---- budgets


def test_tokens_as_budget(tmp_path: Path) -> None:
    _, events = train_small(small_config(tmp_path, train__tokens="1000"))
    steps = of_kind(events, Stepped)
    assert steps[-1].tokens >= 1000 > steps[-2].tokens
    assert steps[-1].progress == 1.0
    (finished,) = of_kind(events, Finished)
    assert finished == Finished(steps[-1].step, steps[-1].tokens, finished.seconds, interrupted=False, early=False)


class Clock:
    """A clock that advances by a second when it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_minutes_as_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "time", Clock())
    config = small_config(tmp_path, train__minutes="2.0", evaluate__every="1000", train__save_every="1000")
    run, events = train_small(config)
    steps = of_kind(events, Stepped)
    pace = steps[-1].seconds - steps[-2].seconds
    assert abs(steps[-1].seconds - 120.0) <= pace / 2 + 2.0, "half a step, and the reads of the clock"
    assert steps[-1].progress == 1.0
    assert of_kind(events, Finished) == [events[-1]]
    # A resumed run that has used up its minutes makes no more steps.
    run, again = train_small(config, resume=True)
    assert of_kind(again, Stepped) == []
    assert run.last and run.last.step == steps[-1].step


class WorkClock:
    """A clock that advances when work is done, and by a microsecond when it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def timed(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.now += seconds
            return work(*arguments, **named)

        return call


def test_minutes_end_on_time_and_the_learning_rate_reaches_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation takes as long as 30 steps: none is made in the time of the last steps."""
    clock = WorkClock()
    monkeypatch.setattr(budget, "time", clock)
    falling = {"schedule__kind": "linear", "schedule__final": "0.0", "optimizer__lr": "0.01"}
    config = small_config(tmp_path, train__minutes="0.05", evaluate__every="40", train__save_every="40", **falling)
    with open_session(config) as session:
        kind = type(session.trainer.objective)
        monkeypatch.setattr(kind, "losses", clock.timed(kind.losses, 0.01))
        monkeypatch.setattr(kind, "measure", clock.timed(kind.measure, 0.3))
        events = list(session.events([]))
    steps, sampled = of_kind(events, Stepped), [event for event in of_kind(events, Evaluated) if not event.whole]
    assert len(sampled) > 2
    assert steps[-1].seconds == pytest.approx(3.0, abs=0.02)
    assert steps[-1].lr < 0.05 * 0.01
    rates = [event.lr for event in steps[2:]]
    assert rates == sorted(rates, reverse=True)
    assert sampled[-1].step == steps[-1].step == session.run.metrics()[-1]["step"]


def test_a_budget_that_is_too_short_still_gives_one_step(tmp_path: Path) -> None:
    run, events = train_small(small_config(tmp_path, train__minutes="1e-9"))
    assert [event.step for event in of_kind(events, Stepped)] == [1]
    assert run.best and run.best.step == 1


def test_the_time_of_an_evaluation_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run omits the same evaluations near the end as an uninterrupted run, also at the step where it stopped."""
    monkeypatch.setattr(budget, "time", Clock())
    config = small_config(tmp_path, train__minutes="60", evaluate__every="2")
    with open_session(config) as session:
        for event in session.events([]):
            if isinstance(event, Stepped) and event.step == 6:
                session.trainer.late = True
                session.trainer.stop()
    with open_session(config, resume=True) as resumed:
        assert resumed.trainer.budget.pause == session.trainer.budget.pause > 0.0
        first = next(event for event in resumed.events([]) if not isinstance(event, Saved))
    assert isinstance(first, Stepped) and first.step == 7


# ---- the time limit


FALLING = {"schedule__kind": "linear", "schedule__final": "0.0", "optimizer__lr": "0.01", "schedule__warmup": "0"}
RARELY = {"evaluate__every": "40", "train__save_every": "40"}


class Machine:
    """Train small runs with a clock on which a step of a session takes the next of `seconds`, the last one repeatedly, and
    each evaluation 0.05 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.clock = monkeypatch, WorkClock()
        monkeypatch.setattr(budget, "time", self.clock)

    def train(
        self, config: Config, *seconds: float, resume: bool = False, stop_at: int = 0
    ) -> tuple[RunFolder, list[Event]]:
        events, times = list[Event](), iter(seconds)
        with open_session(config, resume=resume) as session, self.patch.context() as patch:
            kind = type(session.trainer.objective)
            patch.setattr(kind, "losses", self.timed(kind.losses, times, seconds[-1]))
            patch.setattr(kind, "measure", self.clock.timed(kind.measure, 0.05))
            for event in session.events([]):
                events.append(event)
                if isinstance(event, Stepped) and event.step == stop_at:
                    session.trainer.stop()
        return session.run, events

    def timed(self, work: Callable[..., Any], times: Iterator[float], usual: float) -> Callable[..., Any]:
        def call(*arguments: Any, batch: Any = None) -> Any:  # named in a step, not in the empty pass before the first
            self.clock.now += next(times, usual) if batch is not None else 0.0
            return work(*arguments, batch=batch) if batch is not None else work(*arguments)

        return call


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def rates(events: list[Event]) -> list[float]:
    return [event.lr for event in of_kind(events, Stepped)]


def end_of(events: list[Event]) -> Finished:
    (finished,) = of_kind(events, Finished)
    assert isinstance(finished, Finished) and not finished.interrupted
    return finished


BUDGETS = [{"train__steps": "40"}, {"train__tokens": "5000"}, {"train__epochs": "0.4", "train__steps": "none"}]


@pytest.mark.parametrize("given", BUDGETS, ids=["steps", "tokens", "epochs"])
def test_a_limit_that_is_not_reached_changes_nothing(tmp_path: Path, machine: Machine, given: dict[str, str]) -> None:
    """Bit for bit, although the first step takes longer than all others together and the next ones are slow."""
    changes = FALLING | RARELY | given | {"model__dropout": "0.2"}
    expected, plain = train_small(small_config(tmp_path, "plain", **changes))
    config = small_config(tmp_path, "limited", train__max_minutes="0.05", **changes)
    run, events = machine.train(config, 1.0, 0.04, 0.04, 0.02)
    assert 1.5 < end_of(events).seconds < 3.0 and end_of(events).limited_at is None
    assert rates(events) == rates(plain) and len(rates(events)) >= 30
    assert timeless(run) == timeless(expected)
    assert run.last and expected.last
    assert_equal_tensors(run.last.load_model(), expected.last.load_model())
    assert describe(run)["limited_at"] is None


@pytest.mark.parametrize(
    "given",
    [*({**one, next(iter(one)): "100000"} for one in BUDGETS), {"train__minutes": "5"}],
    ids=["steps", "tokens", "epochs", "minutes"],
)
def test_a_limit_ends_the_run_with_a_complete_schedule(tmp_path: Path, machine: Machine, given: dict[str, str]) -> None:
    run, events = machine.train(small_config(tmp_path, train__max_minutes="0.05", **FALLING, **RARELY, **given), 0.02)
    steps, sampled = of_kind(events, Stepped), [event for event in of_kind(events, Evaluated) if not event.whole]
    assert steps[-1].seconds == pytest.approx(3.0, abs=0.03) and steps[-1].progress == 1.0
    late = [event.lr for event in steps if event.seconds > 0.2]  # the speed is not known before
    assert late == sorted(late, reverse=True) and late[-1] < 0.02 * 0.01
    middle = min(steps, key=lambda event: abs(event.seconds - 1.5))
    assert middle.lr == pytest.approx(0.5 * 0.01, rel=0.05), "the rate follows the time"
    assert sampled[-1].step == steps[-1].step and sum(event.whole for event in of_kind(events, Evaluated)) == 1
    assert run.last and run.best and run.last.step == steps[-1].step
    limited_at = end_of(events).limited_at
    assert limited_at is not None and 0.0 < limited_at < 0.2
    assert describe(run)["limited_at"] == run.metrics()[-1]["limited_at"] == limited_at


def test_a_machine_that_was_busy_only_at_first_reaches_the_budget(tmp_path: Path, machine: Machine) -> None:
    """The rate falls with the time, and stops falling faster than its budget when that has caught up."""
    changes = FALLING | RARELY | {"train__steps": "100"}
    _, events = machine.train(small_config(tmp_path, train__max_minutes="0.1", **changes), *[0.1] * 20, 0.02)
    _, plain = train_small(small_config(tmp_path, "plain", **changes))
    assert end_of(events).step == 100 and end_of(events).limited_at is None
    assert rates(events)[2:] == sorted(rates(events)[2:], reverse=True)
    slower = [
        event.step for event, rate in zip(of_kind(events, Stepped), rates(plain), strict=True) if event.lr != rate
    ]
    assert slower and slower[0] <= 5 and 30 < slower[-1] < 90, (
        "from the first slow steps until the budget has caught up"
    )
    assert all(lr <= rate for lr, rate in zip(rates(events), rates(plain), strict=True))


def test_the_limit_counts_the_time_of_all_sessions(tmp_path: Path, machine: Machine) -> None:
    config = small_config(tmp_path, train__max_minutes="0.05", train__steps="1000", **FALLING, **RARELY)
    _, first = machine.train(config, 0.5, 0.02, stop_at=60)
    machine.clock.now += 1000.0  # between the sessions
    _, second = machine.train(config, 0.02, resume=True)
    last = of_kind(second, Stepped)[-1]
    assert last.seconds == pytest.approx(3.0, abs=0.03) and end_of(second).limited_at == last.step / 1000
    both = [event.lr for event in of_kind(first, Stepped) + of_kind(second, Stepped) if event.seconds > 0.7]
    assert both == sorted(both, reverse=True) and both[-1] < 0.02 * 0.01
    _, again = machine.train(config, 0.02, resume=True)
    assert of_kind(again, Stepped) == [] and end_of(again).limited_at == end_of(second).limited_at


def test_an_ended_run_continues_with_a_larger_limit_or_budget(tmp_path: Path, machine: Machine) -> None:
    def config(limit: str, steps: str = "150") -> Config:
        return small_config(tmp_path, train__max_minutes=limit, train__steps=steps, **FALLING, **RARELY)

    machine.train(config("0.02"), 0.02)
    error = refused(lambda: machine.train(config("0.01"), 0.02, resume=True))
    assert (error.code, error.setting) == ("budget.smaller", "train.max_minutes")
    _, more = machine.train(config("0.04"), 0.02, resume=True)
    assert end_of(more).limited_at is not None and end_of(more).seconds == pytest.approx(2.4, abs=0.1)
    run, rest = machine.train(config("none"), 0.02, resume=True)
    assert end_of(rest).step == 150 and end_of(rest).limited_at is None
    assert run.config()["train"]["max_minutes"] is None
    error = refused(lambda: machine.train(config("1"), 0.02, resume=True))
    assert (error.code, error.setting) == ("budget.smaller", "train.steps"), "the budget is used up, not the time"


def test_commands_report_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    machine.train(small_config(tmp_path, train__max_minutes="0.02", train__steps="200", **RARELY), 0.02)
    monkeypatch.chdir(tmp_path)
    assert "ended by the time limit (train.max_minutes) at" in lilliput("info", "mine").out
    assert lilliput("report", "mine").code == 0
    assert "ended by the time limit (train.max_minutes)" in Path("runs/mine/report.md").read_text()
    code, out, err = lilliput("train", "mine", "--resume", "--train.max-minutes", "0.03")
    assert code == 0 and "train.max_minutes 0.03, of which" in err, err
    code, out, err = lilliput("train", "mine", "--resume", "--train.steps", "201")
    assert code == 0 and "ended by" not in out + err, "a new budget has no limit"
    assert RunFolder(Path("runs/mine")).config()["train"]["max_minutes"] is None
