"""Running a study: one process after another, skipping finished work.

Owns: which jobs are left, the events reported to the caller, the handling of failed processes. Does not own: processes
(`subprocesses`), their command lines (`job_plan`), the study's folder (`study_results`), the estimated time
(`time_estimate`), the console (`api.study_progress`), the report.

Each run and each measurement is a separate process, so that its peak memory can be measured.
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
from lilliput.storage.run_folders import RunFolder, describe, looks_like_run
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
from lilliput.studies.subprocesses import POLL_SECONDS, Signals, last_lines
from lilliput.studies.time_estimate import Pace

LOGS = "logs"  # folder of the stderr of the processes
LOCK = ".process"  # locked by the running process


@dataclass(frozen=True)
class Began:
    """A process started: job `number` of `of`."""

    job: Job
    number: int
    of: int


@dataclass(frozen=True)
class Going:
    """The finished share of the study and the estimated seconds left, None if unknown."""

    share: float
    left: float | None


@dataclass(frozen=True)
class Ended:
    job: Job
    seconds: float


@dataclass(frozen=True)
class Failed:
    """A failed process, with the last lines of its stderr."""

    job: Job
    lines: list[str]


@dataclass(frozen=True)
class Waiting:
    """The study waits for another process, described by `what`."""

    what: str


@dataclass(frozen=True)
class Stopping:
    """A signal was received: the running process finishes its step and saves."""


Event = Began | Going | Ended | Failed | Waiting | Stopping
Report = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Show no progress."""


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
    """Run the unfinished jobs of a study; after a failed process, continue with the others."""
    work = plan(study)
    with open_result(study, folder, command, overwrite) as result, Signals() as signals:
        measured = {key_of(row.cell, row.seed): row.measures for row in result.rows}
        runner = Runner(study, folder, report, signals, Pace(work, read_lines(folder / PROCESSES)), measured)
        with signals.exclusive(folder / LOCK, lambda: report(Waiting("a process of an earlier call is still running"))):
            for runner.number, job in enumerate(work, start=1):
                runner.do(job)
        return close_result(folder, sum(line["seconds"] for line in read_lines(folder / PROCESSES)), runner.failures)


@dataclass
class Runner:
    """The state of a running study."""

    study: Study
    folder: Path
    report: Report
    signals: Signals
    pace: Pace
    measured: dict[str, tuple[str, ...]]  # cell and seed -> finished measures
    number: int = 0
    stopping: bool = False
    trained: set[str] = field(default_factory=set)  # runs that this call has trained
    failed_runs: set[str] = field(default_factory=set)
    prepared: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # None: failed
    failures: list[dict[str, str]] = field(default_factory=list)

    def do(self, job: Training | Measurement) -> None:
        try:
            self.train(job) if isinstance(job, Training) else self.measure(job)
        except UserError as error:
            self.fail(job, str(error).splitlines())
        self.pace.remove(job)

    def train(self, job: Training) -> None:
        self.failed_runs.add(job.run)  # until it has succeeded
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
        self.failed_runs.remove(job.run)

    def is_finished(self, job: Training) -> bool:
        """Return whether the run is finished, after waiting for another process that trains it."""
        run = RunFolder(self.folder / job.run)
        if not looks_like_run(run.folder):
            return False
        if run.is_locked():
            self.report(Waiting(f"{job.run} is being trained by another process"))
        while run.is_locked():
            self.signals.check()
            time.sleep(POLL_SECONDS)
        return bool(describe(run, verify=False)["state"] == "finished")

    def prepare(self, job: Training) -> dict[str, Any] | None:
        """Return the output of preparing the run's data, once for all runs on the same data; None if it failed."""
        key = preparation_key(job)
        if key not in self.prepared:
            out = self.process(
                Preparation(f"data{len(self.prepared) + 1}"), prepare_command(self.study, job), lambda: None
            )
            self.prepared[key] = None if out is None else json.loads(out)
        return self.prepared[key]

    def tokens(self, job: Training, found: Mapping[str, Any]) -> int | None:
        """Return a budget in FLOPs as tokens, for the actual vocabulary; None for other budgets."""
        flops = job.settings.get("budget.flops")
        width = found["vectors"]["width"] if "vectors" in found else None
        return None if flops is None else tokens_for(job.config, flops, found["vocab_size"], width)

    def measure(self, job: Measurement) -> None:
        before = self.measured.get(key_of(job.cell, job.seed))
        is_done = before is not None and {*job.measures} <= {*before} and job.run not in self.trained
        if is_done or job.run in self.failed_runs:
            return
        out = self.process(job, measure_command(job, self.folder), lambda: None)
        if out is not None:
            found = json.loads(out) | self.peak_of(job.run)
            line = {"cell": job.cell, "seed": job.seed, "run": job.run, "measures": job.measures}
            line["figures"] = {name: value for name, value in found.items() if not isinstance(value, str)}
            line["texts"] = {name: value for name, value in found.items() if isinstance(value, str)}
            append_line(self.folder / METRICS, line)

    def peak_of(self, run: str) -> dict[str, float]:
        """Return the peak memory of the processes that trained the run."""
        lines = read_lines(self.folder / PROCESSES)
        peaks = [line["peak_memory_bytes"] for line in lines if (line["kind"], line["name"]) == ("training", run)]
        known = [peak for peak in peaks if peak is not None]
        return {"train.peak_memory_bytes": max(known)} if known else {}

    def process(self, job: Job, command: list[str], rest: Callable[[], float | None]) -> str | None:
        """Run a process and return its stdout, or None if it failed."""
        self.signals.check()
        self.report(Began(job, self.number, len(self.pace.work)))
        (self.folder / LOGS).mkdir(exist_ok=True)
        log = self.folder / LOGS / f"{job.kind}-{safe(job.name)}.txt"
        began, started = now(), time.monotonic()

        def poll() -> None:
            if self.signals.received and not self.stopping:
                self.stopping = True
                self.report(Stopping())
            self.report(Going(*self.pace.estimate(job, time.monotonic() - started, rest())))

        with tempfile.TemporaryFile() as out, log.open("ab") as err:
            code, peak = self.signals.run(command, out, err, poll)
            out.seek(0)
            written = out.read().decode("utf-8")
        seconds = time.monotonic() - started
        line = {"kind": job.kind, "name": job.name, "code": code, "seconds": seconds, "peak_memory_bytes": peak}
        append_line(self.folder / PROCESSES, line | {"began": began, "command": by_hand(command)})
        self.signals.check()
        if code != 0:
            self.fail(job, last_lines(log) or [f"exit code {code}"])
            return None
        self.pace.record(job, seconds)
        self.report(Ended(job, seconds))
        return written

    def fail(self, job: Job, lines: list[str]) -> None:
        self.failures.append({"kind": job.kind, "name": job.name, "what": "; ".join(line.strip() for line in lines)})
        self.report(Failed(job, lines))


def training_left(folder: Path) -> float | None:
    """Estimate the seconds of training left, from the last logged step."""
    with suppress(OSError, ValueError, KeyError, IndexError, ZeroDivisionError), (folder / METRICS).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        *whole, _ = file.read().split(b"\n")
        step = files.parse_object([line for line in whole if line.startswith(b'{"event": "step"')][-1])
        return max(0.0, float(step["seconds"] * (1.0 - step["progress"]) / step["progress"]))
    return None


def by_hand(command: list[str]) -> str:
    """Return the command without the paths of this machine."""
    return shlex.join(["lilliput", *command[3:]] if tuple(command[:3]) == LILLIPUT else ["python", *command[1:]])


def key_of(cell: Mapping[str, str], seed: int) -> str:
    return json.dumps([sorted(cell.items()), seed])


def safe(name: str) -> str:
    """Return the name with characters that are safe in a file name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
