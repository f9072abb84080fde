"""The estimated time of a study before it runs, and the time left while it runs.

Owns: the expected seconds of a job: the mean of the same job with other seeds, else the mean of its kind, else from its FLOPs.
Does not own: measuring times (`runner`), showing them (`api.study_progress`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.errors import UserError
from lilliput.settings.tree import Config, DataSettings
from lilliput.studies.grid import Study
from lilliput.studies.job_plan import Job, Measurement, Preparation, Training, plan, preparation_key
from lilliput.studies.study_results import PROCESSES, STUDY, read_lines, read_result

STARTING = 6.0  # seconds to import torch, load a model and evaluate a small split
WORDS = 10_000  # assumed vocabulary size if it depends on the corpus


class Pace:
    """`work` are all jobs of the study; `lines` describe processes of earlier calls."""

    def __init__(self, work: Sequence[Training | Measurement], lines: Iterable[Mapping[str, Any]]) -> None:
        self.work = work
        self.left = list(work)
        self.seconds = 0.0  # spent by this call on finished jobs
        self.known: dict[tuple[str, str], list[float]] = {}  # kind and name, without the seed -> seconds
        jobs = {(job.kind, job.name): job for job in work}
        for line in lines:
            if line["code"] == 0 and (job := jobs.get((line["kind"], line["name"]))):
                self.known.setdefault(same_work(job), []).append(line["seconds"])

    def estimate(self, job: Job, spent: float, rest: float | None) -> tuple[float, float | None]:
        """Return the finished share of the study and the seconds left, None while the time of a training is unknown. `job`
        has run for `spent` seconds; `rest` is its own estimate of the seconds left, if it has one."""
        whole = None if rest is None else spent + rest
        done, left = self.seconds + spent, 0.0
        for one in self.left:
            expected = self.expect(one)
            if one is job:
                expected = max(whole or expected or 0.0, spent) - spent
            elif expected is None and one.kind == job.kind:
                expected = whole
            if expected is None and isinstance(one, Training):
                return (len(self.work) - len(self.left)) / len(self.work), None
            left += expected or 0.0  # a measurement takes little time compared with a training
        return (done / (done + left) if done + left else 1.0), left

    def expect(self, job: Training | Measurement) -> float | None:
        """Return the expected seconds of a job, None if unknown."""
        same = self.known.get(same_work(job))
        alike = [seconds for (kind, _), found in self.known.items() if kind == job.kind for seconds in found]
        return statistics.fmean(same or alike) if same or alike else None

    def record(self, job: Job, seconds: float) -> None:
        """Record the time of a successful job."""
        self.seconds += seconds
        if not isinstance(job, Preparation):
            self.known.setdefault(same_work(job), []).append(seconds)

    def remove(self, job: Training | Measurement) -> None:
        """Remove a job that is finished, skipped or failed."""
        self.left.remove(job)


def same_work(job: Training | Measurement) -> tuple[str, str]:
    """Return a key that is the same for all seeds of a job."""
    return job.kind, job.name.removesuffix(f"seed{job.seed}")


# Before the study runs


@dataclass(frozen=True)
class StudyEstimate:
    """`seconds` are of the whole study, `measured` the finished rows, `lacking` the errors of data that cannot be read."""

    trainings: list[Training]
    measurements: int
    measured: int
    seconds: float
    lacking: list[str]


def estimate_study(study: Study, folder: Path) -> StudyEstimate:
    work, is_there = plan(study), (folder / STUDY).exists()
    trainings = [job for job in work if isinstance(job, Training)]
    pace = Pace(work, read_lines(folder / PROCESSES) if is_there else [])
    data = {preparation_key(job): job.config.data for job in trainings}
    return StudyEstimate(
        trainings,
        len(work) - len(trainings),
        len(read_result(folder).rows) if is_there else 0,
        len(data) * STARTING + sum(expect(pace, job) for job in work),
        list(dict.fromkeys(error for settings in data.values() if (error := find_lack(settings)))),
    )


def find_lack(settings: DataSettings) -> str | None:
    """Return the error of unreadable data, or None. Datasets of the Hugging Face hub are not checked."""
    from lilliput.data.corpora import open_corpus
    from lilliput.settings.source_names import is_hub_name

    if is_hub_name(settings.source):
        return None
    try:
        open_corpus(settings)
    except UserError as error:
        return str(error)
    return None


def expect(pace: Pace, job: Training | Measurement) -> float:
    """Return the estimated seconds of a job: as measured before, else from the FLOPs, plus the start of a process."""
    known = pace.expect(job)
    if known is not None:
        return known
    return STARTING + (training_seconds(job.config, job.settings) if isinstance(job, Training) else 0.0)


def training_seconds(config: Config, settings: dict[str, Any]) -> float:
    from lilliput.settings.loading import replace
    from lilliput.training.cost_estimate import assume_data, expected_seconds

    try:
        config = assume_data(config)
    except UserError as error:
        if error.setting != "model.vocab_size":
            raise
        config = assume_data(replace(config, {"model.vocab_size": WORDS}))
    return expected_seconds(config, settings.get("budget.flops")) or 0.0
