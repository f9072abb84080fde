"""Small runs: a text of a few stories, a model that trains in a second, and comparisons of two runs.

`trained()` is a run that many tests read; tests that change it use `copy_of_trained`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import shutil
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lilliput.cli import run_command
from lilliput.errors import UserError, UserErrors
from lilliput.settings.loading import load_config
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import TIMES, Event
from lilliput.training.session import open_session

# float64 and one thread: fast at this size, and deterministic.
SETTINGS = {
    "tokenizer.kind": "byte",
    "model.dim": "16",
    "model.layers": "2",
    "model.heads": "2",
    "model.context": "32",
    "schedule.warmup": "2",
    "train.batch": "4",
    "train.steps": "8",
    "train.save_every": "2",
    "train.threads": "1",
    "train.device": "cpu",
    "train.precision": "float64",
    "evaluate.every": "3",
    "evaluate.rows": "5",
    "generate.tokens": "12",
    "generate.engine": "torch",  # supports float64
    "log.every": "1",
    "log.sample_seconds": "none",
}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # flushing is fast there
# Independent of the storybook, whose words may change.
WHO = ("A bee", "The old bear", "Zoë", "Every owl", "Nobody", "A very small fox", "The moon")
DID = ("saw", "lost", "sang of", "went to", "dreamt of")
WHAT = ("sea", "lantern", "crooked tree", "bell", "marble", "garden gate", "king", "wind", "last of the apples")
TEXT = "\n<|endoftext|>\n".join(
    " ".join(f"{WHO[n * k % 7]} {DID[(n + k) % 5]} the {WHAT[(n * n + k) % 9]}." for k in range(1, 40))
    for n in range(1, 13)
)


def write_text(folder: Path, name: str = "mytext.txt", text: str = TEXT) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def small_config(folder: Path, name: str = "mine", **changes: str) -> Config:
    """Settings of a small run in `folder`; changes are dotted names with __ for the dot."""
    text = folder / "mytext.txt"
    if not text.exists():
        write_text(folder)
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    if {"train.tokens", "train.minutes"} & dotted.keys():
        dotted["train.steps"] = "none"
    places = {"name": name, "log.folder": str(folder / "runs"), "data.cache": str(folder / "prepared")}
    return load_config(str(text), SETTINGS | places | dotted)


def train_small(config: Config, resume: bool = False, start_from: str | None = None) -> tuple[RunFolder, list[Event]]:
    with open_session(config, resume=resume, start_from=start_from) as session:
        return session.run, list(session.events([]))


def abandon(config: Config, after: int, resume: bool = False) -> bool:
    """Train and stop after `after` events, as after a kill. Return False if the run ended before."""
    with open_session(config, resume=resume) as session:
        events = session.events([])
        found = len(list(islice(events, after)))
        events.close()  # type: ignore[attr-defined]
    return found == after


def timeless(run: RunFolder) -> list[dict[str, Any]]:
    """Return the log without sessions, times, speeds and memory, for comparison with a repeated run."""
    lines = [line for line in run.metrics() if line["event"] != "session" and line.get("kind") != "speed"]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


@functools.cache
def trained() -> Path:
    """Return a folder with mytext.txt and the finished run runs/mine. Do not change it."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train_small(small_config(folder))
    return folder


def copy_of_trained(folder: Path) -> Path:
    """Copy that folder, to be changed: runs/mine, prepared/ and mytext.txt."""
    return Path(shutil.copytree(trained(), folder / "copy"))


def assert_equal_tensors(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


class Printed(NamedTuple):
    code: int
    out: str
    err: str


class CommandResult(Printed):
    """The exit code of a command, what it printed, and the error that it reported."""

    error: UserError | None = None

    @property
    def errors(self) -> list[UserError]:
        """Each error of the command; several that were reported at once are listed one by one."""
        if self.error is None:
            return []
        return self.error.errors if isinstance(self.error, UserErrors) else [self.error]


def lilliput(*argv: str) -> CommandResult:
    """Run a command in this process, because importing torch takes two seconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = run_command(list(argv))
    result = CommandResult(ended.code, out.getvalue(), err.getvalue())
    result.error = ended.error
    return result
