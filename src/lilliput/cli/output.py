"""What the verbs share when they speak: figures on stdout, chatter on stderr.

Owns: the two consoles, JSON output, bars of preparation, and how numbers read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from lilliput.data.progress import Report


def chatter(quiet: bool = False) -> Console:
    """Return the console of the error stream; only a terminal is one, also where FORCE_COLOR is set."""
    terminal = sys.stderr.isatty()
    return Console(stderr=True, highlight=False, soft_wrap=not terminal, quiet=quiet, force_terminal=terminal)


def say(text: str) -> None:
    """A sentence for whoever looks on."""
    chatter().print(text, markup=False)


def figures() -> Console:
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
    """Megabytes a second, once there is something to tell."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed / 1e6:,.1f} MB/s" if speed and speed >= 1e4 else "")


@contextmanager
def progress(console: Console) -> Iterator[Report]:
    """A bar for what is being done, on a terminal only; sentences everywhere."""
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
            console.print(what)
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
