"""The choice of precision and threads, with injected times, and runs that keep it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.small_runs import assert_equal_tensors, small_config, timeless, train_small
from lilliput import devices
from lilliput.data.progress import silent
from lilliput.devices import name_machine
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder
from lilliput.training import session, speed_choice, step_timing
from lilliput.training.cost_estimate import TIMING
from lilliput.training.estimate_data import open_estimate_data
from lilliput.training.process_group import World
from lilliput.training.speed_choice import SpeedChoice, choose_speed, is_worth_timing, milliseconds, shape_of_step
from lilliput.training.step_timing import Candidate, StepTime, Timing, Work

CPU = torch.device("cpu")
OPEN = {"train__precision": "auto", "train__threads": "none"}
PRODUCTS = {"float32": 1e11, "bfloat16": 2e11}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A quiet machine with two threads, fast bfloat16 products, and an empty cache of steps; yields the cache file."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(TIMING)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(speed_choice, "is_loaded", lambda: False)
    yield know(tmp_path, PRODUCTS)
    torch.set_num_threads(threads)


def know(folder: Path, measured: dict[str, Any]) -> Path:
    path = folder / "cache" / "lilliput" / "machine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name_machine(CPU): measured}))
    return path


def work_of(config: Config) -> Work[Any]:
    with open_estimate_data(config) as data:
        return Work(data.config, data.objective, data.splits["train"], CPU)


class Measure:
    """Injected times in ms: float32 with 2 threads, bfloat16 with 2 threads, float32 with 1 thread."""

    def __init__(self, *times: float, busy: bool = False) -> None:
        names = [("float32", 2), ("bfloat16", 2), ("float32", 1)]
        self.times = {Candidate(*name): StepTime(ms / 1000, ms / 4000) for name, ms in zip(names, times, strict=False)}
        self.busy, self.asked = busy, list[list[Candidate]]()

    def __call__(self, candidates: Sequence[Candidate]) -> Timing:
        self.asked.append(list(candidates))
        return Timing({one: self.times[one] for one in candidates if one in self.times}, self.busy)


def choose(config: Config, measure: Callable[[Sequence[Candidate]], Timing]) -> SpeedChoice:
    return choose_speed(work_of(config), World(), silent, measure)


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((20, 24, 36), ("float32", 2)),
        ((20, 18.5, 36), ("float32", 2)),  # less than 1.1 times as fast
        ((20, 18, 36), ("bfloat16", 2)),
        ((20, 24, 18.5), ("float32", 2)),
        ((20, 24, 15), ("float32", 1)),
        ((20, 16, 15), ("float32", 1)),
        ((20, 14, 15), ("bfloat16", 2)),
    ],
)
def test_the_fastest_is_chosen_if_it_is_clearly_faster(
    times: tuple[float, ...], chosen: tuple[str, int], tmp_path: Path
) -> None:
    measure = Measure(*times)
    found = choose(small_config(tmp_path, **OPEN), measure)
    assert (found.precision, found.threads) == chosen
    assert measure.asked == [[("float32", 2), ("bfloat16", 2), ("float32", 1)]]


def test_the_note(tmp_path: Path) -> None:
    config = small_config(tmp_path, **OPEN)
    found = choose(config, Measure(16.8, 19.2, 28))
    assert found.note == "using float32 with 2 threads: a training step takes 21 ms; bfloat16 24 ms, 1 thread 35 ms"
    assert choose(config, Measure(16.8, 19.2, 28)) == found, "from the cache"
    busy = choose(replace(config, {"train.batch": 3}), Measure(16.8, 19.2, 8, busy=True))
    assert busy.note == (
        "using float32 with 1 thread: a training step takes 10 ms; 2 threads 21 ms, bfloat16 with 2 threads 24 ms; "
        "the machine is busy"
    )


@pytest.mark.parametrize(("seconds", "text"), [(1.234, "1,234 ms"), (0.0214, "21 ms"), (0.00123, "1.2 ms")])
def test_milliseconds(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"train__precision": "float64", "train__threads": "none"}, [("float64", 2), ("float64", 1)]),
        ({"train__precision": "auto", "train__threads": "2"}, [("float32", 2), ("bfloat16", 2)]),
        ({"train__precision": "auto", "train__threads": "1"}, [("float32", 1), ("bfloat16", 1)]),
        ({"train__precision": "bfloat16", "train__threads": "1"}, None),
    ],
)
def test_only_what_the_settings_leave_open_is_measured(
    changes: dict[str, str], asked: list[Any] | None, tmp_path: Path
) -> None:
    def measure(candidates: Sequence[Candidate]) -> Timing:
        found.append(list(candidates))
        return Timing({one: StepTime(0.01, 0.001) for one in candidates}, busy=False)

    found: list[list[Candidate]] = []
    chosen = choose(small_config(tmp_path, **changes), measure)
    assert found == ([] if asked is None else [asked])
    if asked is None:
        assert (chosen.precision, chosen.threads, chosen.note) == ("bfloat16", 1, None)


def test_steps_in_a_type_with_slow_products_are_not_tried(tmp_path: Path) -> None:
    know(tmp_path, PRODUCTS | {"bfloat16": 1e9})
    measure = Measure(20, 2000, 35)
    found = choose(small_config(tmp_path, **OPEN), measure)
    assert measure.asked == [[("float32", 2), ("float32", 1)]]
    assert found.note and found.note.endswith("; bfloat16 is 100 times slower in products on this CPU")
    alone = choose(small_config(tmp_path, train__precision="auto", train__threads="1"), measure)
    assert alone == SpeedChoice("float32", 1, "using float32: bfloat16 is 100 times slower in products on this CPU")
    assert len(measure.asked) == 1


def test_a_type_that_torch_does_not_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device, dtype: torch.dtype) -> float:
        raise TypeError("BFloat16 is not supported")

    know(tmp_path, {"float32": 1e11})
    monkeypatch.setattr(devices, "measure_flops", refuse)
    found = choose(small_config(tmp_path, train__precision="auto", train__threads="1"), Measure())
    assert found == SpeedChoice("float32", 1, "using float32: this CPU does not support bfloat16")


def test_a_load_of_more_than_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real function
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    loads = {2.0: False, 2.9: False, 3.5: True}
    for load, loaded in loads.items():
        monkeypatch.setattr(os, "getloadavg", lambda now=load: (now, 0.0, 0.0))
        assert speed_choice.is_loaded() == loaded
    monkeypatch.delattr(os, "getloadavg")
    assert not speed_choice.is_loaded()


# ---- when it measures


def test_a_short_run_is_not_measured(tmp_path: Path) -> None:
    config = small_config(tmp_path, **OPEN)
    found = choose(config, Measure(20))
    assert (found.precision, found.threads) == ("float32", 2)
    assert found.note and "too short" in found.note
    assert choose(replace(config, {"train.precision": "float32"}), Measure(20)).note is None


@pytest.mark.parametrize(
    ("changes", "step", "worth"),
    [
        ({"train__steps": "100"}, 0.2, True),
        ({"train__steps": "100"}, 0.05, False),
        ({"train__steps": "50"}, 30.0, False),  # the measurement would take longer than a tenth of the run
        ({"train__steps": "100", "train__accumulate": "8"}, 0.05, True),
        ({"train__minutes": "1"}, 0.001, True),
        ({"train__minutes": "0.1"}, 0.001, False),
        ({"train__tokens": "12800"}, 0.2, True),  # 100 steps of 4 x 32
        ({"train__tokens": "12800"}, 0.05, False),
        ({"train__steps": "none", "train__epochs": "100"}, 0.05, True),  # 22 or more steps each
        ({"train__steps": "none", "train__epochs": "0.1"}, 0.05, False),
    ],
)
def test_only_long_runs_are_worth_it(changes: dict[str, str], step: float, worth: bool, tmp_path: Path) -> None:
    assert is_worth_timing(work_of(small_config(tmp_path, **changes)), 3, step, step) == worth


def test_a_short_run_is_worth_it_if_its_threads_wait_for_each_other(tmp_path: Path) -> None:
    work = work_of(small_config(tmp_path, train__steps="100"))
    assert not is_worth_timing(work, 3, 0.01, 0.01)
    assert is_worth_timing(work, 3, 1.0, 0.01)


@pytest.mark.parametrize("case", ["switched off", "compiled", "gpu", "processes"])
def test_products_decide_where_steps_are_not_timed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Group(World):
        processes = 2

    config, world, device = small_config(tmp_path, **OPEN), World(), CPU
    if case == "switched off":
        monkeypatch.setenv(TIMING, "0")
    elif case == "compiled":
        config = replace(config, {"train.compile": True})
    elif case == "processes":
        world = Group()
    else:
        device = torch.device("meta")
        monkeypatch.setattr(speed_choice, "choose_precision", lambda name, _: devices.choose_precision(name, CPU))
    work, measure = work_of(config), Measure()
    found = choose_speed(Work(work.config, work.objective, work.train, device), world, silent, measure)
    assert found == SpeedChoice(
        "bfloat16",
        2 if case in ("switched off", "compiled") else None,
        "using bfloat16: bfloat16 is 2.0 times faster than float32 on this CPU",
    )
    assert not measure.asked


# ---- the cache


def test_times_are_measured_once_per_shape(tmp_path: Path, machine: Path) -> None:
    config, measure = small_config(tmp_path, **OPEN), Measure(20, 24, 35)
    first = choose(config, measure)
    assert choose(replace(config, {"seed": 2, "train.accumulate": 4, "train.steps": 900}), Measure()).threads == 2
    assert choose(config, Measure()) == first
    assert choose(replace(config, {"train.precision": "float32"}), Measure()).note, "a part of the times is enough"
    choose(replace(config, {"model.layers": 3}), measure)
    choose(replace(config, {"train.batch": 5}), measure)
    assert len(measure.asked) == 3
    (stored,) = json.loads(machine.read_text()).values()
    assert stored.keys() == {"float32", "bfloat16", "steps"}
    assert stored["steps"][shape_of_step(work_of(config).config)]["float32 2"] == [0.02, 0.005]


def test_accumulation_uses_the_same_times(tmp_path: Path) -> None:
    """bfloat16: a fast pass and a slow update, which several micro-batches share."""
    config = small_config(tmp_path, **OPEN)

    def measure(candidates: Sequence[Candidate]) -> Timing:
        times = [StepTime(0.010, 0.002), StepTime(0.007, 0.006), StepTime(0.02, 0.004)]
        return Timing(dict(zip(candidates, times, strict=True)), busy=False)

    assert choose(config, measure).precision == "float32"
    assert choose(replace(config, {"train.accumulate": 8}), Measure()).precision == "bfloat16"


def test_times_of_a_busy_machine_are_neither_stored_nor_replaced_by_stored_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, busy = small_config(tmp_path, **OPEN), Measure(20, 24, 10, busy=True)
    assert [choose(config, busy).threads for _ in range(2)] == [1, 1]
    assert len(busy.asked) == 2
    assert choose(config, Measure(20, 24, 35)).threads == 2
    monkeypatch.setattr(speed_choice, "is_loaded", lambda: True)
    assert choose(config, busy).threads == 1
    assert len(busy.asked) == 3


def test_the_oldest_shapes_are_removed(tmp_path: Path, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_choice, "SHAPES", 2)
    configs = [small_config(tmp_path, train__batch=str(batch), **OPEN) for batch in (2, 3, 5)]
    for config in configs:
        choose(config, Measure(20, 24, 35))
    (stored,) = json.loads(machine.read_text()).values()
    assert list(stored["steps"]) == [shape_of_step(work_of(config).config) for config in configs[1:]]


@pytest.mark.parametrize(
    "entry", [None, 3, {}, {"float32 2": [0.1, 0.1]}, {"float32 2": "x", "bfloat16 2": [-1.0, 0.1], "float32 1": [0.1]}]
)
def test_an_invalid_entry_is_measured_again(entry: Any, tmp_path: Path) -> None:
    config, measure = small_config(tmp_path, **OPEN), Measure(20, 24, 35)
    know(tmp_path, PRODUCTS | {"steps": {shape_of_step(work_of(config).config): entry}})
    assert choose(config, measure).threads == 2
    assert len(measure.asked) == 1
    know(tmp_path, PRODUCTS | {"steps": [entry]})
    choose(config, measure)
    assert len(measure.asked) == 2


# ---- runs


def chosen_settings(run: RunFolder) -> tuple[str, int]:
    train = run.config()["train"]
    return train["precision"], train["threads"]


def test_a_run_saves_the_choice_and_a_resumed_run_does_not_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_choice, "time_candidates", lambda *rest: Measure(20, 24, 10)(rest[-1]))
    config = small_config(tmp_path, **OPEN)
    with session.open_session(config) as opened:
        assert any(note.startswith("using float32 with 1 thread: ") for note in opened.notes)
        assert chosen_settings(opened.run) == ("float32", 1)
        events = opened.events([])
        for _ in range(5):
            next(events)
        events.close()  # type: ignore[attr-defined]

    def refuse(*_: Any) -> Any:
        raise AssertionError("a resumed run measures nothing")

    monkeypatch.setattr(session, "choose_speed", refuse)
    run, _ = train_small(config, resume=True)
    assert chosen_settings(run) == ("float32", 1)
    assert run.last and run.last.config()["train"]["threads"] == 1


def test_a_measured_run_equals_one_with_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real steps in both types and with one and two threads are timed before the run. Dropout uses torch's generator."""
    monkeypatch.setattr(speed_choice, "SHORTEST", 0.0)
    monkeypatch.setattr(speed_choice, "ROUNDS", 0)
    monkeypatch.setattr(step_timing, "TURNS", 1)
    monkeypatch.setattr(step_timing, "TURN_SECONDS", 0.0)
    timed: list[Timing] = []

    def measure(*arguments: Any) -> Timing:
        timed.append(step_timing.time_candidates(*arguments))
        return timed[-1]

    monkeypatch.setattr(speed_choice, "time_candidates", measure)
    changes = {"model__dropout": "0.1", "model__dim": "32", "optimizer__kind": "muon"}
    measured, _ = train_small(small_config(tmp_path, "measured", **OPEN, **changes))
    assert len(timed) == 1 and len(timed[0].times) == 3
    precision, threads = chosen_settings(measured)
    settings = {"train__precision": precision, "train__threads": str(threads)}
    plain, _ = train_small(small_config(tmp_path, "plain", **settings, **changes))
    assert len(timed) == 1
    assert timeless(measured) == timeless(plain)
    assert measured.last and plain.last
    assert_equal_tensors(measured.last.load_model(), plain.last.load_model())
    assert_equal_tensors(measured.last.load_state(), plain.last.load_state())
