"""The load of the machine: CPUs that other programs use, from injected and from real times."""

from __future__ import annotations

import math
import os
import sys
import time
from types import SimpleNamespace

import pytest

from lilliput.kernels import machine_load
from lilliput.kernels.machine_load import CpuTimes, MachineLoad, read_cpu_times, sum_work

STAT = """\
cpu  900 900 900 900 900 900 900 900 900 900
cpu0 100 20 30 9999 888 4 5 6 77 7
cpu1 1000 0 0 9999 888 0 0 0 500 0
cpu12 1 1 1 9999 888 1 1 1 0 0
intr 12345
"""


def test_the_work_of_some_cpus_without_idle_time_and_guests() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert sum_work(STAT, {0}) == (100 + 20 + 30 + 4 + 5 + 6) / ticks
    assert sum_work(STAT, {0, 1, 2}) == (165 + 1000) / ticks
    assert sum_work(STAT, {12}) == 6 / ticks


class Machine:
    """Readings on a clock that the test advances. Other programs use `others` CPUs, this process `own`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.all = self.mine = 0.0
        self.readings = 0
        monkeypatch.setattr(machine_load, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pass_time(self, seconds: float, others: float, own: float) -> None:
        self.now, self.all, self.mine = (
            self.now + seconds,
            self.all + seconds * (others + own),
            self.mine + seconds * own,
        )

    def read(self) -> CpuTimes:
        self.readings += 1
        return CpuTimes(self.now, self.all, self.mine)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("cpus", "threads", "others", "undisturbed"),
    [
        (2, 2, 0.0, 2),
        (2, 2, 0.29, 2),
        (2, 2, 0.31, 1),
        (2, 2, 1.0, 1),
        (2, 2, 2.0, 1),
        (2, 1, 2.0, 1),
        (8, 4, 4.2, 4),  # there are CPUs left
        (8, 4, 4.4, 3),
        (8, 4, 7.9, 1),
        (16, 16, 1.0, 15),
        (2, 8, 0.0, 2),  # more threads than CPUs disturb each other
    ],
)
def test_undisturbed_threads(machine: Machine, cpus: int, threads: int, others: float, undisturbed: int) -> None:
    load = MachineLoad(machine.read, cpus)
    assert load.undisturbed(threads) == min(threads, cpus), "nothing is known yet"
    machine.pass_time(1.0, others, own=1.5)
    assert load.undisturbed(threads) == undisturbed
    assert load.others == pytest.approx(others)


def test_the_load_is_measured_at_intervals_and_forgotten(machine: Machine) -> None:
    load = MachineLoad(machine.read, 2)
    for _ in range(100):
        machine.pass_time(0.004, others=1.0, own=1.0)
        assert load.undisturbed(2) == 2
    assert machine.readings == 1
    machine.pass_time(0.2, others=1.0, own=1.0)
    assert (load.undisturbed(2), machine.readings) == (1, 2)
    machine.pass_time(0.6, others=0.0, own=2.0)
    assert (load.undisturbed(2), machine.readings) == (2, 3), "the other program has ended"
    machine.pass_time(0.6, others=-0.1, own=2.0)  # the kernel's ticks are less exact than the time of a process
    assert load.undisturbed(2) == 2 and load.others == 0.0


def test_a_system_that_reports_no_times_is_quiet() -> None:
    load = MachineLoad(lambda: None, 2)
    assert load.due == math.inf and load.undisturbed(2) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/stat is Linux's")
def test_real_times_contain_the_work_of_this_process() -> None:
    """This process computes; its work is not that of other programs."""
    before = read_cpu_times()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    after = read_cpu_times()
    assert before is not None and after is not None
    passed, work, own = (b - a for a, b in zip(before, after, strict=True))
    assert own == pytest.approx(0.3, abs=0.1) and passed >= own * 0.99
    assert work >= own - 0.05, "ticks of 0.01 s"
    assert work <= passed * len(os.sched_getaffinity(0)) + 0.1
