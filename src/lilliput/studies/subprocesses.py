"""Child processes of a study: starting, polling, measuring and stopping one at a time.

Owns: forwarding signals, exit codes, peak memory, and waiting for a process whose caller was killed. Does not own:
command lines (`job_plan`), the handling of failures (`runner`).

The system counts the memory that the caller held at the fork as part of the child's peak. So this module does not
import torch, and the peak is reported only if it is above the caller's own peak.
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

from lilliput.training.cost_estimate import TIMING

POLL_SECONDS = 0.2
MARGIN = 16_000_000  # bytes by which a child's peak must exceed ours: the system counts pages in batches
LAST_LINES = 3  # of the stderr of a failed process
STOP = (signal.SIGINT, signal.SIGTERM) + ((signal.SIGHUP,) if sys.platform != "win32" else ())


class Interrupted(KeyboardInterrupt):
    """A signal stopped the study; the running process has saved its work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """A context manager that forwards stop signals to the running child, which saves its work and exits.

    The child is in its own process group: otherwise it would receive a terminal's Ctrl-C twice, which means "exit without
    saving".
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.child: int | None = None
        self.before: dict[int, Any] = {}
        self.lock: int | None = None  # descriptor of the locked file, which children inherit

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            self.before = {number: signal.signal(number, self.forward) for number in STOP}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def forward(self, number: int, frame: object) -> None:
        self.received.append(number)
        self.signal_child(number)

    def signal_child(self, number: int) -> None:
        if self.child is not None:
            with suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    @contextmanager
    def exclusive(self, path: Path, waiting: Callable[[], None]) -> Iterator[None]:
        """Wait until no process of an earlier call is running. Children inherit the locked file, so the lock is held until
        the last of them exits, even if the caller was killed."""
        if sys.platform == "win32":  # has no flock
            yield
            return
        import fcntl

        self.lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        reported = False
        try:
            while True:
                try:
                    fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not reported:
                        waiting()
                        reported = True
                    self.check()
                    time.sleep(POLL_SECONDS)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(self.lock)
            self.lock = None

    def check(self) -> None:
        if self.received:
            raise Interrupted(self.received[-1])

    def run(
        self, command: list[str], out: IO[bytes], err: IO[bytes], poll: Callable[[], None]
    ) -> tuple[int, int | None]:
        """Run the command, calling `poll` regularly; return the exit code and the peak memory in bytes."""
        group = None if sys.platform == "win32" else 0
        kept = () if self.lock is None else (self.lock,)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=os.environ | {TIMING: "0"},
            process_group=group,
            pass_fds=kept,
        )
        self.child = process.pid
        try:
            for number in tuple(self.received):  # during the start
                self.signal_child(number)
            return wait_for(process, poll)
        finally:
            self.child = None
            if process.returncode is None:  # `poll` raised an exception
                process.terminate()
                process.wait()


def wait_for(process: subprocess.Popen[bytes], poll: Callable[[], None]) -> tuple[int, int | None]:
    if sys.platform == "win32":
        while process.poll() is None:
            poll()
            time.sleep(POLL_SECONDS)
        return process.returncode, None
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        poll()
        time.sleep(POLL_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)  # Popen must not wait again
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return process.returncode, peak if peak > own_peak() + MARGIN else None


def own_peak() -> int:
    """Return the peak memory of this process in bytes. `getrusage` includes the process that started this one, which may be
    a large notebook; Linux reports the own peak in /proc."""
    import resource

    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def last_lines(log: Path) -> list[str]:
    lines = [line.rstrip() for line in log.read_text("utf-8", errors="replace").splitlines()]
    return [line for line in lines if line][-LAST_LINES:]
