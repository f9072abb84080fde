"""How much of a study is done and how long the rest will take.

Owns: what a piece of work is expected to take: as long as the same work with another seed did, else as long
as its kind takes on average. Does not own: measuring it (`runner`) or showing it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lilliput.studies.job_plan import Job, Measurement, Preparation, Training


class Pace:
    """`work` is all of it, `lines` are of processes that ended before."""

    def __init__(self, work: Sequence[Training | Measurement], lines: Iterable[Mapping[str, Any]]) -> None:
        self.work = work
        self.left = list(work)
        self.seconds = 0.0  # that this call has spent on work that ended
        self.known: dict[tuple[str, str], list[float]] = {}  # kind and name, without the seed -> seconds
        jobs = {(job.kind, job.name): job for job in work}
        for line in lines:
            if line["code"] == 0 and (job := jobs.get((line["kind"], line["name"]))):
                self.known.setdefault(same_work(job), []).append(line["seconds"])

    def look(self, job: Job, spent: float, rest: float | None) -> tuple[float, float | None]:
        """The share of the whole that is done, and the seconds left; None as long as no training tells anything. `job` has gone
        on for `spent` seconds, and says, if it says anything, that it needs the `rest`."""
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
            left += expected or 0.0  # a measurement of which nothing is known is little beside a training
        return (done / (done + left) if done + left else 1.0), left

    def expect(self, job: Training | Measurement) -> float | None:
        """Seconds."""
        same = self.known.get(same_work(job))
        alike = [seconds for (kind, _), found in self.known.items() if kind == job.kind for seconds in found]
        return statistics.fmean(same or alike) if same or alike else None

    def learn(self, job: Job, seconds: float) -> None:
        """It ended well."""
        self.seconds += seconds
        if not isinstance(job, Preparation):
            self.known.setdefault(same_work(job), []).append(seconds)

    def leave(self, job: Training | Measurement) -> None:
        """It is done, or need not be, or cannot be."""
        self.left.remove(job)


def same_work(job: Training | Measurement) -> tuple[str, str]:
    """What is the same work with another seed."""
    return job.kind, job.name.removesuffix(f"seed{job.seed}")
