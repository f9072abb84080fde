"""Progress of a study and the estimated time left.

Owns: the expected seconds of a job: the mean of the same job with other seeds, else the mean of its kind. Does not
own: measuring times (`runner`), showing them (`cli.study`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lilliput.studies.job_plan import Job, Measurement, Preparation, Training


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
