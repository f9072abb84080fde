"""A study's work, done: one process after another, what is done already left alone, and a way back after every
interruption.


Owns: what has to be done still, what is told of it, and what becomes of a process that fails. Does not own:
the processes themselves (`subprocesses`), what they do (`job_plan`), where the outcome is kept
(`study_results`), how long it takes (`time_estimate`), how it is shown (`cli.study`), nor the report.

Each run and each measurement is a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lilliput.errors import UserError
from lilliput.storage import atomic_files as files
from lilliput.storage.run_folders import Run, describe, looks_like_run
from lilliput.studies.grid import Study, load_study
from lilliput.studies.job_plan import (
    LILLIPUT,
    Job,
    Measurement,
    Preparation,
    Training,
    measure_command,
    plan,
    preparation_key,
    prepare_command,
    resume_command,
    tokens_for,
    train_command,
)
from lilliput.studies.study_results import (
    METRICS,
    PROCESSES,
    StudyResult,
    append_line,
    close_result,
    now,
    open_result,
    read_lines,
)
from lilliput.studies.subprocesses import LOOK, Signals, last_lines
from lilliput.studies.time_estimate import Pace

LOGS = "logs"  # folder of what the processes said
MARK = ".process"  # locked by the process that is at work


@dataclass(frozen=True)
class Began:
    """A process, for the `number`th piece of work of `of`."""

    job: Job
    number: int
    of: int


@dataclass(frozen=True)
class Going:
    """The share of the whole study that is done, and the seconds left, as soon as anything is known of them."""

    share: float
    left: float | None


@dataclass(frozen=True)
class Ended:
    job: Job
    seconds: float


@dataclass(frozen=True)
class Failed:
    """With the last lines that the process said."""

    job: Job
    lines: list[str]


@dataclass(frozen=True)
class Waiting:
    """For a process that is there already, and `what` it is."""

    what: str


@dataclass(frozen=True)
class Stopping:
    """A signal has come: the process that runs finishes its step and saves."""


Event = Began | Going | Ended | Failed | Waiting | Stopping
Report = Callable[[Event], None]


def ignore(event: Event) -> None:
    """For callers who show no progress."""


def study(
    name_or_path: str | Path,
    quick: bool = False,
    seeds: Sequence[int] | None = None,
    folder: str | Path = "runs",
    overwrite: bool = False,
    report: Report = ignore,
) -> StudyResult:
    """Run a study to its end from Python, as `lilliput study` does, and write its report."""
    loaded = load_study(name_or_path, quick, seeds)
    result = run_study(loaded, Path(folder) / loaded.folder_name, report, overwrite)
    from lilliput.studies.study_report import write_report

    write_report(result)
    return result


def run_study(
    study: Study, folder: Path, report: Report = ignore, overwrite: bool = False, command: str = "lilliput.study"
) -> StudyResult:
    """Whatever of the study is not done yet; a process that fails is told, and the others go on."""
    work = plan(study)
    with open_result(study, folder, command, overwrite) as result, Signals() as signals:
        measured = {key_of(row.cell, row.seed): row.measures for row in result.rows}
        runner = Runner(study, folder, report, signals, Pace(work, read_lines(folder / PROCESSES)), measured)
        with signals.alone(folder / MARK, lambda: report(Waiting("a process of an earlier call is still at work"))):
            for runner.number, job in enumerate(work, start=1):
                runner.do(job)
        return close_result(folder, sum(line["seconds"] for line in read_lines(folder / PROCESSES)), runner.failures)


@dataclass
class Runner:
    """What is known while a study is run."""

    study: Study
    folder: Path
    report: Report
    signals: Signals
    pace: Pace
    measured: dict[str, tuple[str, ...]]  # cell and seed -> measures that were taken
    number: int = 0
    stopping: bool = False
    trained: set[str] = field(default_factory=set)  # runs that this call has trained
    lost: set[str] = field(default_factory=set)  # runs that there will not be
    prepared: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # None: it failed
    failures: list[dict[str, str]] = field(default_factory=list)

    def do(self, job: Training | Measurement) -> None:
        try:
            self.train(job) if isinstance(job, Training) else self.measure(job)
        except UserError as error:
            self.fail(job, str(error).splitlines())
        self.pace.leave(job)

    def train(self, job: Training) -> None:
        self.lost.add(job.run)  # until it is there
        if not self.is_finished(job):
            found = self.prepare(job)
            if found is None:
                return
            command = resume_command(job, self.folder)
            if not looks_like_run(self.folder / job.run):
                command = train_command(self.study, job, self.folder, self.tokens(job, found))
            if self.process(job, command, lambda: training_left(self.folder / job.run)) is None:
                return
            self.trained.add(job.run)
        self.lost.remove(job.run)

    def is_finished(self, job: Training) -> bool:
        """After the process that trains it, if there is one."""
        run = Run(self.folder / job.run)
        if not looks_like_run(run.folder):
            return False
        if run.is_locked():
            self.report(Waiting(f"{job.run} is being trained by another process"))
        while run.is_locked():
            self.signals.check()
            time.sleep(LOOK)
        return bool(describe(run, verify=False)["state"] == "finished")

    def prepare(self, job: Training) -> dict[str, Any] | None:
        """What preparation tells of the data; once for all runs on the same."""
        key = preparation_key(job)
        if key not in self.prepared:
            out = self.process(
                Preparation(f"data{len(self.prepared) + 1}"), prepare_command(self.study, job), lambda: None
            )
            self.prepared[key] = None if out is None else json.loads(out)
        return self.prepared[key]

    def tokens(self, job: Training, found: Mapping[str, Any]) -> int | None:
        """Of a budget of FLOPs, for the vocabulary that there is."""
        flops = job.settings.get("budget.flops")
        width = found["vectors"]["width"] if "vectors" in found else None
        return None if flops is None else tokens_for(job.config, flops, found["vocab_size"], width)

    def measure(self, job: Measurement) -> None:
        before = self.measured.get(key_of(job.cell, job.seed))
        is_done = before is not None and {*job.measures} <= {*before} and job.run not in self.trained
        if is_done or job.run in self.lost:
            return
        out = self.process(job, measure_command(job, self.folder), lambda: None)
        if out is not None:
            figures = json.loads(out) | self.peak_of(job.run)
            line = {"cell": job.cell, "seed": job.seed, "run": job.run, "measures": job.measures, "figures": figures}
            append_line(self.folder / METRICS, line)

    def peak_of(self, run: str) -> dict[str, float]:
        """The most memory of the processes that trained it."""
        lines = read_lines(self.folder / PROCESSES)
        peaks = [line["peak_memory_bytes"] for line in lines if (line["kind"], line["name"]) == ("training", run)]
        known = [peak for peak in peaks if peak is not None]
        return {"train.peak_memory_bytes": max(known)} if known else {}

    def process(self, job: Job, command: list[str], rest: Callable[[], float | None]) -> str | None:
        """What it wrote to stdout; None if it failed, which is told."""
        self.signals.check()
        self.report(Began(job, self.number, len(self.pace.work)))
        (self.folder / LOGS).mkdir(exist_ok=True)
        log = self.folder / LOGS / f"{job.kind}-{safe(job.name)}.txt"
        began, started = now(), time.monotonic()

        def look() -> None:
            if self.signals.received and not self.stopping:
                self.stopping = True
                self.report(Stopping())
            self.report(Going(*self.pace.look(job, time.monotonic() - started, rest())))

        with tempfile.TemporaryFile() as out, log.open("ab") as err:
            code, peak = self.signals.run(command, out, err, look)
            out.seek(0)
            written = out.read().decode("utf-8")
        seconds = time.monotonic() - started
        line = {"kind": job.kind, "name": job.name, "code": code, "seconds": seconds, "peak_memory_bytes": peak}
        append_line(self.folder / PROCESSES, line | {"began": began, "command": by_hand(command)})
        self.signals.check()
        if code != 0:
            self.fail(job, last_lines(log) or [f"it ended with {code}"])
            return None
        self.pace.learn(job, seconds)
        self.report(Ended(job, seconds))
        return written

    def fail(self, job: Job, lines: list[str]) -> None:
        self.failures.append({"kind": job.kind, "name": job.name, "what": "; ".join(line.strip() for line in lines)})
        self.report(Failed(job, lines))


def training_left(folder: Path) -> float | None:
    """The seconds that the run still needs for its updates, by the last of them in its log."""
    with suppress(OSError, ValueError, KeyError, IndexError, ZeroDivisionError), (folder / METRICS).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        *whole, _ = file.read().split(b"\n")
        step = files.parse_object([line for line in whole if line.startswith(b'{"event": "step"')][-1])
        return max(0.0, float(step["seconds"] * (1.0 - step["progress"]) / step["progress"]))
    return None


def by_hand(command: list[str]) -> str:
    """As it would be typed, on any machine."""
    return shlex.join(["lilliput", *command[3:]] if tuple(command[:3]) == LILLIPUT else ["python", *command[1:]])


def key_of(cell: Mapping[str, str], seed: int) -> str:
    return json.dumps([sorted(cell.items()), seed])


def safe(name: str) -> str:
    """As the name of a file."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
