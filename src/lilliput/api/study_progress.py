"""The progress of a study on a console or in a notebook.

Owns: the bar and the lines of its events. Does not own: the events (`studies.runner`), or the time that is left
(`studies.time_estimate`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn

from lilliput.api.consoles import ProgressOutput
from lilliput.studies.job_plan import Job
from lilliput.studies.runner import Began, Ended, Event, Failed, Going, Report, Stopping, Waiting

QUIET = 10.0  # seconds between progress lines if stderr is not a terminal


@contextmanager
def showing(output: ProgressOutput) -> Iterator[Report]:
    """Show one progress bar for the study on a terminal or in a notebook, else print lines."""
    console = output.console
    bar = Progress(
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[left]}  {task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=1.0, left="")
    printed = time.monotonic()

    def report(event: Event) -> None:
        nonlocal printed
        if isinstance(event, Began):
            bar.update(task, description=name(event.job))
        elif isinstance(event, Going):
            left = "" if event.left is None else f"{clock(event.left)} left"
            bar.update(task, completed=event.share, left=left)
            if output.screen is not None:
                output.screen.bar(event.share, f"{event.share:.0%}  {left}".rstrip())
            elif not console.is_terminal and time.monotonic() - printed >= QUIET:
                printed = time.monotonic()
                console.print(f"{event.share:4.0%}  {left}".rstrip(), markup=False)
        elif isinstance(event, Ended):
            console.print(f"{name(event.job)}  {event.seconds:.1f} s", markup=False)
        elif isinstance(event, Failed):
            console.print(f"{name(event.job)} failed:", style="red", markup=False)
            for line in event.lines:
                console.print(f"  {line}", markup=False)
        elif isinstance(event, Stopping):
            console.print("finishing this step and saving; press Ctrl-C again to stop now")
        elif isinstance(event, Waiting):
            console.print(f"waiting: {event.what}", markup=False)

    try:
        with bar:
            yield report
    finally:
        if output.screen is not None:
            output.screen.clear_bar()


def name(job: Job) -> str:
    return f"{job.kind:9} {job.name}"


def clock(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
