"""Tests of the summary after training: warnings and samples."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.small_runs import FLAGS, lilliput, write_text
from lilliput.cli.training_summary import print_limit, print_warnings
from lilliput.storage.run_folders import Run


def test_warnings_are_printed_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "mine", {}, overwrite=False)
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
    run = Run.create(tmp_path / "mine", {}, overwrite=False)
    run.metrics_path.write_text(
        json.dumps({"event": "finished", "step": 5, "tokens": 9, "seconds": 1.0, **ended}) + "\n"
    )
    console = Console(file=io.StringIO(), width=200)
    print_limit(run, console)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert ("62%" in printed and "train.max_minutes" in printed) if shown else printed == ""


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
