"""Shared output of the commands: results on stdout, notes on stderr.

Owns: the two consoles, JSON output, progress bars, line breaks, and the format of numbers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from lilliput.data.progress import Report


def stderr_console(quiet: bool = False) -> Console:
    """Return the console of stderr. FORCE_COLOR does not make a terminal of a pipe."""
    terminal = sys.stderr.isatty()
    return Console(stderr=True, highlight=False, soft_wrap=not terminal, quiet=quiet, force_terminal=terminal)


def print_note(text: str) -> None:
    """Print a note to stderr, in the form of all notes: `note: text`."""
    stderr_console().print(noted(text))


def noted(text: str) -> Text:
    return Text.assemble(("note:", "yellow"), " ", text)


def print_status(text: str) -> None:
    """Print what a command wrote, and where, to stderr."""
    stderr_console().print(text, markup=False)


def stdout_console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=not terminal, force_terminal=terminal)


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a stdout that is not UTF-8, or a path that is not Unicode
        text = json.dumps(value, indent=2, allow_nan=False)
    print(text)


class SpeedColumn(ProgressColumn):
    """Speed in MB/s, from 0.01 MB/s on."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed / 1e6:,.1f} MB/s" if speed and speed >= 1e4 else "")


@contextmanager
def progress(console: Console) -> Iterator[Report]:
    """Show a progress bar on a terminal; print notes (`done` and `total` 0) everywhere."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        SpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[str, Any] = {}

    def report(what: str, done: int, total: int | None) -> None:
        if done == total == 0:
            console.print(noted(what))
            return
        if what not in tasks:
            for earlier in tasks.values():
                bar.update(earlier, visible=False)
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=done, total=total)

    with bar:
        yield report


def readable(count: float) -> str:
    """1234567 -> 1.23M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"


class LineWrapper:
    """Wrap streamed text between words at `width` columns (None: no limit). A word is returned when it is complete."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self.column = 0
        self.held = ""
        self.space = ""

    def push(self, piece: str) -> str:
        if self.width is None:
            return piece
        words: list[str] = re.findall(r"\S+|\n|[^\S\n]+", self.held + piece)
        self.held = words.pop() if words and not words[-1].isspace() else ""
        return "".join(map(self.place, words))

    def flush(self) -> str:
        word, self.held = self.held, ""
        return self.place(word) if word else ""

    def place(self, word: str) -> str:
        assert self.width is not None
        if word == "\n":
            self.column, self.space = 0, ""
            return word
        if word.isspace():
            self.space = self.space + word if self.column else ""  # no line begins with a space
            return ""
        before, self.space = self.space, ""
        if self.column and self.column + cell_len(before + word) > self.width:
            before, self.column = "\n", 0
        self.column += cell_len(before.strip("\n") + word)
        return before + word
