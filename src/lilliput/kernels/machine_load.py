"""The load of the machine: how many CPUs other programs use, and so how many of our threads have a CPU of their own.

Owns: the measurement (Linux: /proc/stat, without the time of this process), repeated while threads compute. Does not own:
what threads do on a busy machine (`openmp_waiting`, `decoding_pass.thread_team`).

Threads that compute together wait for each other many times in each pass. If another program takes the CPU of one of
them for some milliseconds, all others wait that long.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

INTERVAL = 0.5  # seconds between measurements; the kernel counts in hundredths
TOLERATED = 0.3  # of a CPU: short work of other programs
WORKING = (
    0,
    1,
    2,
    5,
    6,
    7,
)  # columns of /proc/stat: all but idle, waiting for a disk, and guests (part of the first two)


class CpuTimes(NamedTuple):
    """Seconds since some moment: of the clock, of all work on our CPUs, and of the work of this process."""

    clock: float
    all_work: float
    own_work: float


def read_cpu_times() -> CpuTimes | None:
    """Return the times; None where the system does not report them. A virtual machine's stolen time counts as work."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            text = file.read()
        return CpuTimes(time.monotonic(), sum_work(text, os.sched_getaffinity(0)), time.process_time())
    except (OSError, ValueError, AttributeError):  # AttributeError: no affinity on macOS and Windows
        return None


def sum_work(text: str, cpus: set[int]) -> float:
    """Return the seconds of work on some CPUs in the text of /proc/stat."""
    lines = (line.split() for line in text.splitlines())
    ticks = [
        int(words[column + 1])
        for words in lines
        if words and words[0][:3] == "cpu" and words[0][3:].isdecimal() and int(words[0][3:]) in cpus
        for column in WORKING
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


class MachineLoad:
    """`others` is the number of CPUs that other programs used on average between the last two measurements."""

    def __init__(self, read: Callable[[], CpuTimes | None], cpus: int) -> None:
        self.read, self.cpus = read, cpus
        self.last = read()
        self.others = 0.0
        self.due = time.monotonic() + INTERVAL if self.last is not None else math.inf

    def undisturbed(self, threads: int) -> int:
        """Return how many of `threads` threads have a CPU of their own, at least one."""
        if time.monotonic() >= self.due:
            self.measure()
        return max(1, min(threads, math.ceil(self.cpus - self.others - 1.0 + TOLERATED)))

    def measure(self) -> None:
        before, now = self.last, self.read()
        if before is None or now is None:
            return
        passed, work, own = (b - a for a, b in zip(before, now, strict=True))
        if passed > 0.0:
            self.others = max(0.0, (work - own) / passed)
        self.last, self.due = now, time.monotonic() + INTERVAL


@cache
def machine_load() -> MachineLoad:
    """Return the measurement that all threads of this process share."""
    affinity = getattr(os, "sched_getaffinity", None)
    return MachineLoad(read_cpu_times, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)
