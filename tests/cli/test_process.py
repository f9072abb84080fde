"""Tests with real processes: signals, exit codes, pipes, two processes at once."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import FLAGS, lilliput, trained, write_text
from torture import outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of a POSIX system")

STEPS = 150  # of a few milliseconds: long enough to be interrupted, short enough to be completed
LONG = [
    *FLAGS,
    "--train.steps",
    str(STEPS),
    "--train.save_every",
    "7",
    "--evaluate.every",
    "20",
    "--model.dropout",
    "0.1",
]
PATIENCE = 240.0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    return tmp_path


@contextmanager
def started(*words: str, program: tuple[str, ...] = ("-m", "lilliput")) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_line(path: Path, line: int) -> None:
    """Wait until the log has this number of lines: the process is then training."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= line:
            return
        time.sleep(0.002)
    raise AssertionError("the process did not train")


def resume_and_compare(name: str) -> None:
    """Check that the resumed run equals an uninterrupted one."""
    assert lilliput("train", f"runs/{name}", "--resume", "--json").code == 0
    assert outcome(Path("runs", name)) == undisturbed()


@functools.cache
def undisturbed() -> dict[str, Any]:
    assert lilliput("train", "mytext.txt", *LONG, "--name", "undisturbed", "--json").code == 0
    return outcome(Path("runs/undisturbed"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_finishes_the_step_saves_and_prints_the_resume_command(
    here: Path, number: signal.Signals, code: int
) -> None:
    with started("train", "mytext.txt", *LONG, "--name", "once", "--json") as process:
        wait_for_line(here / "runs/once/metrics.jsonl", 10)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    *_, stopped, command = err.splitlines()
    last = (here / "runs/once/last").read_text().strip()
    step = int(last.removeprefix("step-"))
    assert stopped == f"stopped at step {step}; step {step} is saved; resume with"
    assert command == "  lilliput train runs/once --resume"
    assert step < STEPS
    resume_and_compare("once")


def test_a_second_signal_stops_at_once_without_damage(here: Path) -> None:
    """Steps take seconds: the second signal arrives within the step that the first one lets finish."""
    slow = [*LONG, "--train.batch", "512", "--train.accumulate", "64", "--model.context", "256"]
    with started("train", "mytext.txt", *slow, "--name", "twice") as process:
        wait_for_file(here / "runs/twice/metrics.jsonl")  # created after the handlers are installed
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "finishing this step" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.wait(PATIENCE)
        err = process.stderr.read()  # not communicate(), which loses what readline() has read ahead
    assert process.returncode == 130
    assert time.monotonic() - began < 60
    assert "Traceback" not in err
    assert "no checkpoint is saved; resume with" in err
    assert json.loads(lilliput("info", "twice", "--json").out)["steps"] == 0


PRESSED_AGAIN = """
import os, signal, sys
from lilliput.cli import main
from lilliput.training.observers import ConsoleObserver

def close(self):
    self.bar.stop()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)

ConsoleObserver.close = close
sys.exit(main())
"""


def test_a_second_signal_at_the_end_still_prints_the_resume_command(here: Path) -> None:
    """With short steps, the second signal arrives after the step is saved."""
    with started("train", "mytext.txt", *LONG, "--name", "again", program=("-c", PRESSED_AGAIN)) as process:
        wait_for_line(here / "runs/again/metrics.jsonl", 10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    step = int((here / "runs/again/last").read_text().strip().removeprefix("step-"))
    assert err.endswith(
        f"stopped at step {step}; step {step} is saved; resume with\n  lilliput train runs/again --resume\n"
    )


def wait_for_file(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_a_kill_and_two_processes_at_once(here: Path) -> None:
    with started("train", "mytext.txt", *LONG, "--name", "killed") as process:
        wait_for_line(here / "runs/killed/metrics.jsonl", 25)
        process.send_signal(signal.SIGSTOP)  # keeps the lock while the second process starts
        result = lilliput("train", "runs/killed", "--resume")
        assert result.code == 2
        (error,) = result.errors
        assert error.code == "run.locked" and str(process.pid) in error.what
        assert lilliput("train", "mytext.txt", *LONG, "--name", "killed", "--overwrite").code == 2
        assert json.loads(lilliput("info", "--json").out)[0]["state"] == "running"
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert json.loads(lilliput("info", "--json").out)[0]["state"] == "interrupted"
    resume_and_compare("killed")


@pytest.fixture
def in_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained())


def test_a_closed_pipe(in_trained: None) -> None:
    """`lilliput ... | head -1` prints no error."""
    for words in (["info", "--schema"], ["--help"], ["generate", "mine", "--samples", "50"]):
        with started(*words) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == "", words
            assert process.wait(PATIENCE) in (0, 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full")
def test_output_that_cannot_be_written_is_an_error(in_trained: None) -> None:
    """Immediately, or when the buffer is flushed at the end."""
    for words in (["--help"], ["info", "mine"], ["generate", "mine"], ["generate", "mine", "--json"]):
        for unbuffered in ("", "1"):
            with open("/dev/full", "w") as full:
                output = subprocess.run(
                    [sys.executable, "-m", "lilliput", *words],
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                    env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
                )
            assert output.returncode == 2, words
            assert output.stderr.startswith("error: ") and len(output.stderr.splitlines()) == 2, output.stderr


def test_an_error_exits_with_2_on_an_ascii_terminal(in_trained: None) -> None:
    with started("train", "nothere") as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: ") and "nothere" in err
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    output = subprocess.run(
        [sys.executable, "-m", "lilliput", "generate", "mine", "--prompt", "Zoë", "--json"],
        capture_output=True,
        env=ascii_only,
        check=True,
    )
    assert json.loads(output.stdout)["samples"][0]["prompt"] == "Zoë"
    subprocess.run(
        [sys.executable, "-m", "lilliput", "generate", "mine", "--prompt", "Zoë"],
        capture_output=True,
        env=ascii_only,
        check=True,
    )
