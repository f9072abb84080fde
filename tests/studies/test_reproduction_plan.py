"""The work of a reproduction: forms, budgets and folders; an interrupted one, resumed, gives the same document."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from helpers.small_reproductions import reproduced, write_reproduction
from lilliput.reports.document import Section
from lilliput.storage.run_folders import METRICS
from lilliput.studies.grid import budget_of, cells
from lilliput.studies.reproduction_plan import CELLS, Form, load_plan, run_plan, scale_budget
from lilliput.studies.reproduction_report import describe_reproduction, produce
from lilliput.studies.study_results import PROCESSES, read_lines

PATIENCE = 240.0


@pytest.mark.parametrize(
    ("form", "folder", "budget", "every"),
    [
        (Form(), "reproduce-mine", 8, 3),
        (Form(quick=True), "reproduce-mine-quick", 3, 1),
        (Form(minutes=1), "reproduce-mine-1-minutes", 4, 3),
        (Form(quick=True, minutes=2), "reproduce-mine-quick-2-minutes", 6, 1),
        (Form(minutes=0.001), "reproduce-mine-0.001-minutes", 1, 3),
    ],
)
def test_forms(tmp_path: Path, form: Form, folder: str, budget: int, every: int) -> None:
    path = write_reproduction(tmp_path)
    plan = load_plan(path, tmp_path / "runs", form)
    base = plan.runs["base"]
    assert plan.folder == tmp_path / "runs" / folder
    assert base.folder == plan.folder / "base"
    assert budget_of(cells(base.study)[0]) == ("steps", budget)
    assert base.study.settings["evaluate.every"] == every
    assert [cell.labels for cell in cells(base.study)] == [{CELLS: "greedy"}, {CELLS: "sampling"}]
    assert plan.studies["small.toml"].folder.parent == tmp_path / "runs"


def test_budgets_are_scaled() -> None:
    assert scale_budget({"steps": 500}, 0.1) == {"steps": 50}
    assert scale_budget({"tokens": 3}, 0.01) == {"tokens": 1}
    assert scale_budget({"epochs": 15}, 0.5) == {"epochs": 7.5}
    assert scale_budget({"minutes": 4}, 2.5) == {"minutes": 10.0}


def test_finished_work_is_kept() -> None:
    folder = reproduced()
    with chdir(folder):
        plan = load_plan("mine.toml")
        logs = [part.folder / PROCESSES for part in plan.parts]
        before = [read_lines(log) for log in logs]
        assert [len(lines) for lines in before] == [4, 5]
        assert run_plan(plan) == []
        assert [read_lines(log) for log in logs] == before
        assert all(part.is_finished() for part in plan.parts)


def test_seeds_of_a_finished_study_are_kept(tmp_path: Path) -> None:
    """Another reproduction or `lilliput study` may have used other seeds."""
    folder = reproduced()
    with chdir(folder):
        text = Path("mine.toml").read_text("utf-8").replace('name = "small.toml"', 'name = "small.toml"\nseeds = [7]')
        other = folder / "other.toml"
        other.write_text(text, "utf-8")
        plan = load_plan(other)
        other.unlink()
    assert plan.studies["small.toml"].study.seeds == (7, 1)
    assert not plan.studies["small.toml"].is_finished()


def timeless(folder: Path) -> list[Section]:
    """Return the sections without the times of runs and the pictures of speeds."""
    with chdir(folder):
        document = describe_reproduction(produce(load_plan("mine.toml")))
    return [section for section in document.sections if section.title not in ("Runs and studies", "All evaluations")]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX system")
def test_interrupted_and_resumed_gives_the_same_document(tmp_path: Path) -> None:
    write_reproduction(tmp_path)
    log = tmp_path / "runs" / "reproduce-mine" / "base" / "seed1" / METRICS

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lilliput", "reproduce", "mine.toml"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)

    process, until = start(), time.monotonic() + PATIENCE
    while not log.exists() or log.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "lilliput reproduce mine.toml" in err
    assert not (tmp_path / "runs" / "reproduce-mine" / "report.html").exists()
    out, err = start().communicate(timeout=PATIENCE)
    assert "A photograph: no camera" in out, err
    assert timeless(tmp_path) == timeless(reproduced())
