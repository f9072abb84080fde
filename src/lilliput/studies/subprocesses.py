"""One process after another: started, watched, measured and stopped.

Owns: what a signal does to the process that runs, its exit code, its peak of memory, and waiting for one that
has outlived a caller who was killed. Does not own: what it is for (`job_plan`), or what becomes of one that
fails (`runner`).

A process's peak is its own only if it is more than that of the one who started it: the system also counts
what was held before the new program was put in the old one's place. So nothing here imports torch; where the
caller has and held more than the process ever did, its peak is not known, and not told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

LOOK = 0.2  # seconds between looks at a process
NEAR = 16_000_000  # bytes by which a peak must be above ours to be another's: the system counts pages in batches
LAST_LINES = 3  # last lines of a process that failed
STOP = (signal.SIGINT, signal.SIGTERM) + ((signal.SIGHUP,) if sys.platform != "win32" else ())


class Interrupted(KeyboardInterrupt):
    """By the signal `number`; what was going on is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """While it is entered, signals that ask to stop go to the process that runs, which saves its work and ends.

    The process is in a group of its own: a terminal's Ctrl-C would reach it beside ours, and two mean "at once, unsaved".
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.child: int | None = None
        self.before: dict[int, Any] = {}
        self.mark: int | None = None  # the open file by which a process that outlives us is known

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # Python lets no other one listen
            self.before = {number: signal.signal(number, self.hand_on) for number in STOP}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def hand_on(self, number: int, frame: object) -> None:
        self.received.append(number)
        self.signal_child(number)

    def signal_child(self, number: int) -> None:
        if self.child is not None:
            with suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    @contextmanager
    def alone(self, mark: Path, waiting: Callable[[], None]) -> Iterator[None]:
        """When no process of an earlier call is at work any more. All hold a lock on one open file, which they inherit: it ends
        with the last of them, however the caller ended."""
        if sys.platform == "win32":  # has no such locks
            yield
            return
        import fcntl

        self.mark = os.open(mark, os.O_RDWR | os.O_CREAT, 0o644)
        reported = False
        try:
            while True:
                try:
                    fcntl.flock(self.mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not reported:
                        waiting()
                        reported = True
                    self.check()
                    time.sleep(LOOK)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(self.mark)
            self.mark = None

    def check(self) -> None:
        if self.received:
            raise Interrupted(self.received[-1])

    def run(
        self, command: list[str], out: IO[bytes], err: IO[bytes], look: Callable[[], None]
    ) -> tuple[int, int | None]:
        """The exit code and the peak of memory in bytes."""
        group = None if sys.platform == "win32" else 0
        kept = () if self.mark is None else (self.mark,)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=group, pass_fds=kept
        )
        self.child = process.pid
        try:
            for number in tuple(self.received):  # while it was started
                self.signal_child(number)
            return wait_for(process, look)
        finally:
            self.child = None
            if process.returncode is None:  # whoever looked on has failed: nobody is left to wait for it
                process.terminate()
                process.wait()


def wait_for(process: subprocess.Popen[bytes], look: Callable[[], None]) -> tuple[int, int | None]:
    if sys.platform == "win32":
        while process.poll() is None:
            look()
            time.sleep(LOOK)
        return process.returncode, None
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        look()
        time.sleep(LOOK)
    process.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait for it again
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return process.returncode, peak if peak > own_peak() + NEAR else None


def own_peak() -> int:
    """The most bytes that this program has held. By `getrusage` it is also the most of who started this one, be it a notebook of
    gigabytes, and then no process would ever be larger; Linux tells them apart."""
    import resource

    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def last_lines(log: Path) -> list[str]:
    lines = [line.rstrip() for line in log.read_text("utf-8", errors="replace").splitlines()]
    return [line for line in lines if line][-LAST_LINES:]
