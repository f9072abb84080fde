"""Tests of the summary after training: warnings and samples."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.small_runs import FLAGS, lilliput, write_text
from lilliput.api import training_progress
from lilliput.cli.training_summary import print_limit, print_warnings
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Evaluated, Event, Saved, Stepped
from torture import outcome


def test_warnings_are_printed_again(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "mine", {}, overwrite=False)
    warned: list[dict[str, Any]] = [
        {"event": "warning", "step": 1350, "kind": "overfitting", "text": "overfitting since step 900: more [text]"},
        {"event": "step", "step": 1400},
        {"event": "warning", "step": 1500, "kind": "spike", "text": "the loss jumped [/from] 2 to 3: look at it"},
    ]
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in warned))
    console = Console(file=io.StringIO(), width=80)
    print_warnings(run, console)
    assert isinstance(console.file, io.StringIO)
    printed = " ".join(console.file.getvalue().split())
    expected = [f"warning step {event['step']:,}: {event['text']}" for event in warned if event["event"] == "warning"]
    assert printed == " ".join(expected)


@pytest.mark.parametrize(
    ("ended", "shown"), [({"limited_at": 0.625}, True), ({"limited_at": None}, False), ({}, False)]
)
def test_the_time_limit_is_printed_if_it_ended_the_run(tmp_path: Path, ended: dict[str, Any], shown: bool) -> None:
    """Older logs do not have the key."""
    run = RunFolder.create(tmp_path / "mine", {}, overwrite=False)
    run.metrics_path.write_text(
        json.dumps({"event": "finished", "step": 5, "tokens": 9, "seconds": 1.0, **ended}) + "\n"
    )
    console = Console(file=io.StringIO(), width=200)
    print_limit(run, console)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert ("62%" in printed and "train.max_minutes" in printed) if shown else printed == ""


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def show_samples_of_a_run(total: float, pace: float, every: float, seconds: float | None) -> list[float]:
    """Simulate a run: steps of `pace` seconds, evaluations `every` seconds; return the times of its samples."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_progress, "time", clock)
        samples, shown, evaluations = training_progress.SampleTimes(seconds), list[float](), 0
        while clock.now < total:
            clock.now += pace
            step = round(clock.now / pace)
            stepped = Stepped(
                step, 2.0, 1e-3, 0.5, 100 * step, min(1.0, clock.now / total), clock.now, 1.0, None, False, False, None
            )
            figures = {"perplexity": None, "bits_per_byte": None, "accuracy": None, "tokens": 9, "documents": None}
            whole = Evaluated(step=step, whole=True, weights=step, floor=None, loss=1.0, **figures)  # type: ignore[arg-type]
            events: list[Event] = [stepped, whole, Saved(step, "step")]
            if clock.now // every > evaluations:
                evaluations += 1
                events.append(dataclasses.replace(whole, whole=False))
            for event in events:
                if samples.may_follow(event) and samples.is_due(event):
                    shown.append(clock.now)
                    samples.shown()
    return shown


@pytest.mark.parametrize(
    ("total", "pace", "every", "seconds", "times"),
    [
        (300.0, 0.5, 100.0, 60.0, [15.0, 100.0, 200.0, 300.0]),
        (300.0, 0.5, 1000.0, 60.0, [15.0]),
        (300.0, 0.5, 5.0, 100.0, [15.0, 115.0, 215.0]),
        (300.0, 0.5, 10.0, 10.0, [10.0, *(float(t) for t in range(20, 301, 10))]),
        (300.0, 40.0, 1000.0, 60.0, [40.0]),
        (60.0, 0.5, 1000.0, 60.0, []),
        (300.0, 0.5, 100.0, None, []),
    ],
    ids=["usual", "no evaluation", "frequent", "very frequent", "slow steps", "a minute", "off"],
)
def test_the_first_sample_does_not_wait_for_an_evaluation(
    total: float, pace: float, every: float, seconds: float | None, times: list[float]
) -> None:
    assert show_samples_of_a_run(total, pace, every, seconds) == times


def test_a_sample_between_evaluations_does_not_change_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    monkeypatch.setattr(training_progress, "FIRST_SAMPLE", 0.0)
    monkeypatch.setattr(training_progress, "SHORT_RUN", 0.0)
    for name, seconds, samples in (("with", "1000", 1), ("without", "none", 0)):
        flags = ("--name", name, "--log.sample_seconds", seconds, "--model.dropout", "0.2")
        result = lilliput("train", "mytext.txt", *FLAGS, *flags)
        assert result.code == 0, result.err
        assert result.err.count("a sample after") == samples
        assert samples == 0 or "a sample after 1 steps" in result.err
    assert outcome(Path("runs/with")) == outcome(Path("runs/without"))


@pytest.mark.parametrize(("seconds", "samples"), [("1e-9", 3), ("1000", 0), ("none", 0)])
def test_samples_are_printed_with_evaluations(
    seconds: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    result = lilliput("train", "mytext.txt", *FLAGS, "--log.sample_seconds", seconds, "--json")
    assert result.code == 0, result.err
    assert result.err.count("a sample after") == samples
    assert result.err.count("validation loss") == 3
