"""Running a study with real processes: finished work is skipped, and interruptions do not change the metrics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import MEMORY
from helpers.small_studies import timeless, write_study
from lilliput.cli.study import print_outcome
from lilliput.storage.run_folders import RunFolder, list_runs
from lilliput.studies.grid import load_study
from lilliput.studies.runner import Event, Failed, Waiting, run_study, training_left
from lilliput.studies.study_results import METRICS, PROCESSES, StudyResult, read_lines, read_result

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX system")

PATIENCE = 240.0
LABELS = {"full": {}, "4 tokens": {"model.window": 4}}
STRATEGY = {"own": {}, "short": {"generate.tokens": 5}}
STEPS = {"steps": 60}  # long enough to be interrupted
SELDOM = {"train.save_every": 10, "evaluate.every": 30}


@pytest.fixture(scope="module")
def here() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def started(path: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lilliput", "study", path.name, *words],
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_steps(folder: Path, lines: int) -> None:
    until = time.monotonic() + PATIENCE
    while not (folder / METRICS).exists() or (folder / METRICS).read_bytes().count(b"\n") < lines:
        assert time.monotonic() < until, "the process did not train"
        time.sleep(0.002)


def processes(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / PROCESSES) if line["kind"] == kind]


@pytest.fixture(scope="module")
def whole(here: Path) -> Path:
    """A study of two runs and four cells, run without interruption, and two cells whose text file is missing."""
    axes = {"window": LABELS | {"no text": {"data.source": "nothere.txt"}}, "strategy": STRATEGY}
    path = write_study(here, axes, budget=STEPS, settings=SELDOM, name="whole")
    out, err = started(path, "--json").communicate(timeout=PATIENCE)
    (here / "whole.json").write_text(out)
    (here / "whole.txt").write_text(err)
    shutil.copy(here / "runs" / "whole" / PROCESSES, here)  # before any test resumes the study
    return path


@pytest.fixture(scope="module")
def result(whole: Path) -> StudyResult:
    return read_result(whole.parent / "runs" / "whole")


def test_rows_runs_and_shares(whole: Path, result: StudyResult) -> None:
    expected = [
        (label, strategy, run) for label, run in (("full", "full"), ("4 tokens", "4-tokens")) for strategy in STRATEGY
    ]
    assert [(*row.cell.values(), row.run.removesuffix("-seed1")) for row in result.rows] == expected
    full, short, *_ = timeless(result)
    assert full[3] == short[3], "one run, measured twice"
    assert full[3]["updates"] == 60
    assert full[3]["validation.loss"] != timeless(result)[2][3]["validation.loss"]
    assert [run["name"] for run in list_runs(result.folder)] == ["4-tokens-seed1", "full-seed1"]
    assert result.curve("full-seed1")[-1]["event"] == "finished"
    assert len(processes(whole.parent, "training")) == 2
    assert len(processes(whole.parent, "measuring")) == 4
    assert result.about["command"] == "lilliput study whole.toml"


def test_peak_memory_is_that_of_the_training_process(result: StudyResult) -> None:
    peaks = {line["name"]: line["peak_memory_bytes"] for line in processes(result.folder, "training")}
    for row in result.rows:
        assert row.figures["train.peak_memory_bytes"] == peaks[row.run] > 100_000_000
        logged = [event["memory_bytes"] for event in result.curve(row.run) if event["event"] == "step"]
        assert peaks[row.run] >= max(logged)


def test_failed_process_is_reported_and_the_others_continue(whole: Path, result: StudyResult) -> None:
    printed = json.loads((whole.parent / "whole.json").read_text())
    assert [one["cell"]["window"] for one in printed["missing"]] == ["no text"] * 2
    (failure,) = printed["failed"]
    assert failure["kind"] == "preparing" and "nothere.txt" in failure["what"]
    assert result.about["failed"] == [failure]
    err = (whole.parent / "whole.txt").read_text()
    assert "preparing data2" in err and "nothere.txt" in err and "Traceback" not in err
    assert Path(whole.parent, printed["report"]).is_file() and Path(whole.parent, printed["table"]).is_file()


def test_printed_result(result: StudyResult, capsys: pytest.CaptureFixture[str]) -> None:
    assert print_outcome(result, as_json=False) == 1, "cells are missing"
    out = capsys.readouterr().out
    assert out.startswith("One seed") and "\nValidation loss: " in out
    for fact in ("preparing data2", "2 of 6", "no text/own", "no text/short", str(result.folder / "report.html")):
        assert fact in out


def test_second_call_runs_only_missing_jobs(whole: Path, result: StudyResult) -> None:
    before, events = [processes(result.folder, kind) for kind in ("training", "measuring")], list[Event]()
    log = result.folder / METRICS
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # as if killed while writing the last line
    with chdir(whole.parent):
        again = run_study(load_study(whole.name), result.folder, events.append)
    assert timeless(again) == timeless(result)
    assert processes(result.folder, "training") == before[0]
    assert len(processes(result.folder, "measuring")) == len(before[1]) + 1
    assert [event.job.kind for event in events if isinstance(event, Failed)] == ["preparing"]


def test_metrics_are_the_same_after_ctrl_c_and_kill(whole: Path, result: StudyResult) -> None:
    """Ctrl-C stops both processes, and the run is resumed; kill -9 leaves the training process, which is waited for."""
    quick = '[quick]\naxes.window = ["4 tokens"]'
    path = write_study(whole.parent, {"window": LABELS}, budget=STEPS, settings=SELDOM, name="broken", extra=quick)
    folder = path.parent / "runs" / "broken-quick"
    run = folder / "4-tokens-seed1"
    stopped = started(path, "--quick")
    wait_for_steps(run, 5)
    stopped.send_signal(signal.SIGINT)
    out, err = stopped.communicate(timeout=PATIENCE)
    assert (stopped.returncode, out) == (130, "")
    assert err.splitlines()[-1].endswith("lilliput study broken.toml --quick")
    last = RunFolder(run).last
    assert last is not None and last.step < STEPS["steps"]
    lines = (run / METRICS).read_bytes().count(b"\n")
    killed = started(path, "--quick")
    wait_for_steps(run, lines + 3)
    killed.kill()
    killed.communicate()
    with chdir(path.parent):
        resumed = run_study(load_study(path.name, quick=True), folder.relative_to(path.parent))
    ((_, seed, name, figures),) = timeless(resumed)
    assert (seed, name, figures) == timeless(result)[2][1:]
    first, *again = [line["command"] for line in processes(folder, "training")]
    assert first.startswith("lilliput train mytext.txt --train.steps=60")
    assert set(again) <= {"lilliput train runs/broken-quick/4-tokens-seed1 --resume --json"}


def test_study_waits_for_a_run_in_training_until_a_signal(whole: Path, result: StudyResult) -> None:
    run, events = RunFolder(result.folder / "full-seed1"), list[Event]()

    def report(event: Event) -> None:
        events.append(event)
        os.kill(os.getpid(), signal.SIGTERM)

    with chdir(whole.parent), run.lock(), pytest.raises(KeyboardInterrupt):
        run_study(result.study, result.folder, report)
    assert [type(event) for event in events] == [Waiting]


def test_training_time_left(result: StudyResult, tmp_path: Path) -> None:
    assert training_left(tmp_path) is None
    assert training_left(result.folder / "full-seed1") == 0.0
    lines = [json.dumps({"event": "step", "seconds": n, "progress": n / 8}) for n in (1, 2)]
    (tmp_path / METRICS).write_text("\n".join([*lines, '{"event": "saved"}', '{"event": "step", "sec']))
    assert training_left(tmp_path) == 6.0
