"""Child processes: output, peak memory, signals and locks."""

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
# Prints that it is ready, and counts signals until the second one.
COUNT_SIGNALS = """
import signal, sys, time
received = []
signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
print("ready", flush=True)
while len(received) < 2: time.sleep(0.01)
print(len(received))
"""


def run(program: str, signals: Signals) -> tuple[int, int | None, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code, peak = signals.run([sys.executable, "-c", program], out, err, lambda: None)
        out.seek(0)
        return code, peak, out.read().decode()


def test_exit_code_output_and_memory() -> None:
    """The peak is returned only if it is above that of the test process."""
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    more = ours + 200_000_000
    with Signals() as signals:
        code, peak, out = run(TOUCH.format(more), signals)
        assert (code, out) == (3, "done\n")
        assert peak is not None and more < peak < more + 100_000_000
        assert run(TOUCH.format(1000), signals) == (3, None, "done\n")


def test_children_do_not_time_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a study must not differ in precision and threads, nor include the memory of a measurement."""
    monkeypatch.delenv("LILLIPUT_TIME_STEPS")
    monkeypatch.setenv("LILLIPUT_TEST", "kept")
    names = "import os; print(os.environ['LILLIPUT_TIME_STEPS'], os.environ['LILLIPUT_TEST'])"
    with Signals() as signals:
        assert run(names, signals) == (0, None, "0 kept\n")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems include the peak of the parent")
def test_memory_of_the_parent_does_not_hide_that_of_a_child() -> None:
    """A large program starts a study, which starts a process that is smaller than the program."""
    study = (
        "import sys, tempfile; from lilliput.studies.subprocesses import Signals\n"
        f"with tempfile.TemporaryFile() as file: print(Signals().run([sys.executable, '-c', {TOUCH.format(150_000_000)!r}], "
        "file, file, lambda: None)[1])"
    )
    large = "import subprocess, sys; held = b'x' * 400_000_000; " + f"subprocess.run([sys.executable, '-c', {study!r}])"
    printed = subprocess.run([sys.executable, "-c", large], capture_output=True, text=True, check=True).stdout
    assert 150_000_000 < int(printed) < 250_000_000


def test_signals_are_forwarded_once_to_a_child_in_its_own_group() -> None:
    with Signals() as signals, tempfile.NamedTemporaryFile() as out, tempfile.TemporaryFile() as err:
        sent: list[int] = []

        def poll() -> None:
            assert signals.child is not None
            assert os.getpgid(signals.child) == signals.child != os.getpgrp()
            if b"ready" in Path(out.name).read_bytes() and len(sent) == len(signals.received) < 2:
                sent.append(signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        code, _ = signals.run([sys.executable, "-c", COUNT_SIGNALS], out, err, poll)  # type: ignore[arg-type]
        assert code == 0
        assert Path(out.name).read_text() == "ready\n2\n"
        with pytest.raises(Interrupted) as stopped:
            signals.check()
        assert stopped.value.number == signal.SIGINT


def test_signal_during_the_start_is_forwarded() -> None:
    signals = Signals()
    signals.received.append(signal.SIGTERM)
    assert run("import time; time.sleep(60)", signals)[0] == -signal.SIGTERM


WAITS_FOR_FILE = """
import sys, time
from pathlib import Path
here, until = Path(sys.argv[1]), time.monotonic() + 120
(here / "began").touch()
while not (here / "release").exists() and time.monotonic() < until: time.sleep(0.01)
(here / "ended").touch()
"""


def test_child_of_a_killed_caller_is_waited_for(tmp_path: Path) -> None:
    """The caller is killed after its child has started; the next caller is notified, and enters when the child has ended."""
    program = (
        "import os, sys, signal, tempfile; from pathlib import Path; from lilliput.studies.subprocesses import Signals\n"
        "signals, here = Signals(), Path(sys.argv[1])\n"
        "def poll():\n    if (here / 'began').exists(): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"child = {WAITS_FOR_FILE!r}\n"
        "with signals.exclusive(here / 'lock', lambda: None), tempfile.TemporaryFile() as out:\n"
        "    signals.run([sys.executable, '-c', child, sys.argv[1]], out, out, poll)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    calls: list[bool] = []

    def waiting() -> None:
        calls.append((tmp_path / "ended").exists())
        (tmp_path / "release").touch()

    with Signals().exclusive(tmp_path / "lock", waiting):
        assert (tmp_path / "ended").exists()
    assert calls == [False]


def test_child_is_stopped_if_poll_raises() -> None:
    def poll() -> None:
        seen.append(signals.child)
        raise BrokenPipeError

    seen: list[int | None] = []
    signals = Signals()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, pytest.raises(BrokenPipeError):
        signals.run([sys.executable, "-c", "import time; time.sleep(60)"], out, err, poll)
    assert seen[0] is not None
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_run_without_signal_handlers() -> None:
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
