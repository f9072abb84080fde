"""Machine, versions, speed and memory of a run: equal to its log, and independent of the machine that writes the report."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

import lilliput
from helpers.small_runs import abandon, copy_of_trained, small_config, train_small, trained
from lilliput.model.counting import count
from lilliput.reports.document import Block, FactList, Paragraph
from lilliput.reports.run_environment import training_blocks, training_parts
from lilliput.reports.run_report import describe_run
from lilliput.settings.loading import config_from_dict
from lilliput.storage.run_folders import RunFolder

SESSION: dict[str, Any] = {
    "event": "session",
    "step": 0,
    "versions": {"lilliput": "0.2.0", "python": "3.11.2", "torch": "2.13.0"},
    "machine": {"processor": "a processor", "cores": 2, "memory_bytes": 8_000_000_000, "processes": 1},
    "device_memory_bytes": 8_000_000_000,
    "peak_flops": 5e10,
    "flops_per_token": 1_000_000,
}


def step(number: int, speed: float, memory: int) -> dict[str, Any]:
    share = speed * SESSION["flops_per_token"] / SESSION["peak_flops"]
    return {
        "event": "step",
        "step": number,
        "tokens_per_second": speed,
        "share_of_peak": share,
        "memory_bytes": memory,
    }


def facts(block: Block) -> dict[str, str]:
    assert isinstance(block, FactList)
    return dict(block.items)


def section_facts(run: RunFolder) -> dict[str, str]:
    (block,) = next(one for one in describe_run(run).sections if one.title == "Speed and machine").blocks
    return facts(block)


def test_session_event_describes_this_machine() -> None:
    run = RunFolder(trained() / "runs" / "mine")
    event, *others = run.metrics()
    config = config_from_dict(run.config(), "config")
    assert (event["event"], event["step"]) == ("session", 0)
    assert event["versions"] == {
        "lilliput": lilliput.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert event["device_memory_bytes"] == event["machine"]["memory_bytes"] == memory
    assert event["machine"]["cores"] == os.cpu_count()
    assert event["machine"]["processor"]
    expected = {"threads": 1, "processes": 1, "device": "cpu", "precision": "float64"}
    assert {name: event["machine"][name] for name in expected} == expected
    assert event["flops_per_token"] == count(config.model, config.vectors).flops_per_token
    assert all(one["event"] != "session" for one in others)


def test_share_of_peak_is_model_flops_over_the_measured_peak() -> None:
    session, *others = RunFolder(trained() / "runs" / "mine").metrics()
    assert session["peak_flops"] > 0
    for event in others:
        if event["event"] == "step":
            achieved = event["tokens_per_second"] * session["flops_per_token"]
            assert event["share_of_peak"] == pytest.approx(achieved / session["peak_flops"], rel=1e-12)


def test_facts_equal_the_log() -> None:
    run = RunFolder(trained() / "runs" / "mine")
    found, events = section_facts(run), run.metrics()
    steps = [event for event in events if event["event"] == "step"]
    speeds, peak = [one["tokens_per_second"] for one in steps], max(one["memory_bytes"] for one in steps)
    mean, session = sum(speeds) / len(speeds), events[0]
    assert found["speed, mean of steps"] == f"{mean:,.0f} tokens/s"
    share = mean * session["flops_per_token"] / session["peak_flops"]
    assert found["share of peak FLOP/s, mean of steps"] == f"{share:.1%}"
    available = session["device_memory_bytes"]
    assert found["peak memory"] == f"{peak / 1e9:.2f} GB, {peak / available:.1%} of {available / 1e9:.1f} GB"
    assert found["memory"] == f"{available / 1e9:.1f} GB"
    assert found["processor"] == session["machine"]["processor"]
    assert found["python version"] == platform.python_version()


def test_facts_are_those_of_the_training_not_of_the_present_machine(tmp_path: Path) -> None:
    run = RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")
    events = run.metrics()
    events[0] = events[0] | {key: SESSION[key] for key in ("versions", "machine", "device_memory_bytes", "peak_flops")}
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = section_facts(run)
    assert (found["processor"], found["memory"], found["lilliput version"]) == ("a processor", "8.0 GB", "0.2.0")
    assert found["peak, measured with matrix products"] == "50.0 GFLOP/s"


def test_sessions_in_one_environment_are_one_part() -> None:
    events = [SESSION, step(1, 100.0, 10**9), SESSION | {"step": 1, "peak_flops": 4e10}, step(2, 300.0, 2 * 10**9)]
    (block,) = training_blocks(events, {})
    found = facts(block)
    assert found["speed, mean of steps"] == "200 tokens/s"
    assert found["share of peak FLOP/s, mean of steps"] == "0.4%"
    assert found["peak memory"] == "2.00 GB, 25.0% of 8.0 GB"


def test_each_environment_of_a_resumed_run_is_listed() -> None:
    other = SESSION | {"step": 20, "machine": SESSION["machine"] | {"processor": "another", "processes": 2}}
    events = [
        SESSION,
        step(10, 100.0, 10**9),
        step(20, 100.0, 10**9),
        SESSION | {"step": 20},
        other,
        step(30, 400.0, 10**9),
    ]
    first, one, second, two = training_blocks(events, {})
    assert first == Paragraph("Logged steps 10 to 20:") and second == Paragraph("Logged steps 30 to 30:")
    assert (facts(one)["processor"], facts(one)["speed, mean of steps"]) == ("a processor", "100 tokens/s")
    assert (facts(two)["processor"], facts(two)["speed, mean of steps"]) == ("another", "400 tokens/s")
    assert "peak memory of the first process" in facts(two)


def test_older_logs_show_what_they_have() -> None:
    machine = {"torch": "2.0.0", "threads": 2}
    bare = {"event": "step", "step": 1, "tokens_per_second": 50.0}
    (block,) = training_blocks([bare], machine)
    assert facts(block) == {"speed, mean of steps": "50 tokens/s", "torch": "2.0.0", "threads": "2"}
    old = training_blocks([bare, SESSION, step(2, 1.0, 10**9)], machine)[1]
    assert facts(old) == {"speed, mean of steps": "50 tokens/s"}, "the last checkpoint is of the later part"
    assert training_blocks([], {}) == []


def test_a_resumed_run_logs_each_session_once(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    assert abandon(config, 12)
    for _ in range(2):  # the second time, the run has finished
        run, _ = train_small(config, resume=True)
    sessions = [event["step"] for event in run.metrics() if event["event"] == "session"]
    assert sessions[0] == 0 and sessions == sorted(set(sessions))
    assert len(training_parts(run.metrics())) == 1
