"""Consoles and progress bars that the command line and the Python API share.

Owns: the console of stderr, the progress bar of data, and `ProgressOutput`, which selects a terminal, a notebook or no
output. Does not own: the page of a notebook (`notebook_screen`), the lines of a training (`training.observers`) or of a
study (`study_progress`), or results on stdout (`cli.output`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from lilliput.api.notebook_screen import NotebookScreen, notebook_display
from lilliput.data.progress import Report, silent

if TYPE_CHECKING:
    from lilliput.training.observers import ConsoleObserver


def stderr_console(quiet: bool = False) -> Console:
    """Return the console of stderr. FORCE_COLOR does not make a terminal of a pipe."""
    terminal = sys.stderr.isatty()
    return Console(stderr=True, highlight=False, soft_wrap=not terminal, quiet=quiet, force_terminal=terminal)


def noted(text: str) -> Text:
    """Return a note in the form of all notes: `note: text`."""
    return Text.assemble(("note:", "yellow"), " ", text)


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


@dataclass(frozen=True)
class ProgressOutput:
    """Where a call shows its progress. `screen`: in a notebook. A silent one prints nothing and generates no samples."""

    console: Console
    screen: NotebookScreen | None = None
    silent: bool = False

    @contextmanager
    def reporting(self) -> Iterator[Report]:
        """Show a progress bar for work that reports bytes or items."""
        if self.silent:
            yield silent
        elif self.screen is None:
            with progress(self.console) as report:
                yield report
        else:
            try:
                yield self.screen.report
            finally:
                self.screen.clear_bar()

    def observer(self, bytes_per_prediction: float | None) -> ConsoleObserver:
        """Return an observer that shows a training."""
        from lilliput.training.observers import ConsoleObserver, NotebookObserver

        if self.screen is None:
            return ConsoleObserver(self.console, bytes_per_prediction)
        return NotebookObserver(self.console, bytes_per_prediction, self.screen)


def choose_output(progress: bool, first: bool = True) -> ProgressOutput:
    """Return the output of a call from Python: a notebook's page, stderr, or nothing if `progress` is false. Of several
    processes only the first one prints."""
    if not progress or not first:
        return ProgressOutput(Console(quiet=True, force_terminal=False, force_jupyter=False), silent=not progress)
    if Console().is_jupyter:
        screen = NotebookScreen(notebook_display())
        return ProgressOutput(screen.console, screen)
    return ProgressOutput(stderr_console())
