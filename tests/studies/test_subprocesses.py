"""A process of its own: what it says, what it holds, and how it is stopped."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from lilliput.studies.subprocesses import Interrupted, Signals, last_lines

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX system")

TOUCH = "import sys; data = bytearray({}); data[::4096] = b'x' * len(data[::4096]); print('done'); sys.exit(3)"
# Says that it listens, and counts what it hears until the second signal.
HEAR = """
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
print("listening", flush=True)
while len(heard) < 2: time.sleep(0.01)
print(len(heard))
"""


def run(program: str, signals: Signals) -> tuple[int, int | None, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code, peak = signals.run([sys.executable, "-c", program], out, err, lambda: None)
        out.seek(0)
        return code, peak, out.read().decode()


def test_its_code_its_words_and_its_memory() -> None:
    """Memory is told where it is surely the process's own: more than ours."""
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    more = ours + 200_000_000
    with Signals() as signals:
        code, peak, out = run(TOUCH.format(more), signals)
        assert (code, out) == (3, "done\n")
        assert peak is not None and more < peak < more + 100_000_000
        assert run(TOUCH.format(1000), signals) == (3, None, "done\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the two cannot be told apart")
def test_memory_of_whoever_started_us_does_not_hide_that_of_a_process() -> None:
    """A large program starts a study, and the study a process that is smaller than that program was."""
    study = (
        "import sys, tempfile; from lilliput.studies.subprocesses import Signals\n"
        f"with tempfile.TemporaryFile() as file: print(Signals().run([sys.executable, '-c', {TOUCH.format(150_000_000)!r}], "
        "file, file, lambda: None)[1])"
    )
    large = "import subprocess, sys; held = b'x' * 400_000_000; " + f"subprocess.run([sys.executable, '-c', {study!r}])"
    told = subprocess.run([sys.executable, "-c", large], capture_output=True, text=True, check=True).stdout
    assert 150_000_000 < int(told) < 250_000_000


def test_signals_reach_it_once_each_and_it_is_in_a_group_of_its_own() -> None:
    with Signals() as signals, tempfile.NamedTemporaryFile() as out, tempfile.TemporaryFile() as err:
        sent: list[int] = []

        def look() -> None:
            assert signals.child is not None
            assert os.getpgid(signals.child) == signals.child != os.getpgrp()
            if b"listening" in Path(out.name).read_bytes() and len(sent) == len(signals.received) < 2:
                sent.append(signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        code, _ = signals.run([sys.executable, "-c", HEAR], out, err, look)  # type: ignore[arg-type]
        assert code == 0
        assert Path(out.name).read_text() == "listening\n2\n"
        with pytest.raises(Interrupted) as stopped:
            signals.check()
        assert stopped.value.number == signal.SIGINT


def test_a_signal_that_came_while_it_was_started_reaches_it() -> None:
    signals = Signals()
    signals.received.append(signal.SIGTERM)
    assert run("import time; time.sleep(60)", signals)[0] == -signal.SIGTERM


WAITS_UNTIL_HEARD = """
import sys, time
from pathlib import Path
here, until = Path(sys.argv[1]), time.monotonic() + 120
(here / "began").touch()
while not (here / "heard").exists() and time.monotonic() < until: time.sleep(0.01)
(here / "ended").touch()
"""


def test_one_that_outlived_its_caller_is_waited_for(tmp_path: Path) -> None:
    """The caller is killed as soon as its process has begun; who comes after hears of it, and is let in when it has ended."""
    program = (
        "import os, sys, signal, tempfile; from pathlib import Path; from lilliput.studies.subprocesses import Signals\n"
        "signals, here = Signals(), Path(sys.argv[1])\n"
        "def look():\n    if (here / 'began').exists(): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"child = {WAITS_UNTIL_HEARD!r}\n"
        "with signals.alone(here / 'mark', lambda: None), tempfile.TemporaryFile() as out:\n"
        "    signals.run([sys.executable, '-c', child, sys.argv[1]], out, out, look)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    told: list[bool] = []

    def hear() -> None:
        told.append((tmp_path / "ended").exists())
        (tmp_path / "heard").touch()

    with Signals().alone(tmp_path / "mark", hear):
        assert (tmp_path / "ended").exists()
    assert told == [False]


def test_it_does_not_outlive_one_who_fails_to_look() -> None:
    def look() -> None:
        seen.append(signals.child)
        raise BrokenPipeError

    seen: list[int | None] = []
    signals = Signals()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, pytest.raises(BrokenPipeError):
        signals.run([sys.executable, "-c", "import time; time.sleep(60)"], out, err, look)
    assert seen[0] is not None
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_in_another_thread_nothing_listens_and_work_goes_on() -> None:
    codes: list[int] = []

    def work() -> None:
        with Signals() as signals:
            codes.append(run("pass", signals)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0]


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"one\ntwo\n\nthree \xff\n\nfour\n\n")
    assert last_lines(log) == ["two", "three \ufffd", "four"]
