"""Observers of a run: the log file and the console.

Owns: metrics.jsonl; the progress bar, lines, warnings and samples on the console or in a notebook. Does not own: the run, the
samples, other loggers (`trackers`). An observer is called with each event and changes nothing in the run.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from typing import IO, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from lilliput.evaluation.metric_format import format_figures, format_limit, format_perplexity
from lilliput.storage.atomic_files import cannot_write
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import (
    Evaluated,
    EvaluationFigures,
    Event,
    Finished,
    Saved,
    SessionStarted,
    Stepped,
    Tested,
    Warned,
)

SHORTER = ((" (running mean)", ""), ("gradient norm", "norm"), (" FLOP/s", ""))  # for a terminal of 80 columns


class Observer(Protocol):
    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """Write one JSON object per line, flushed before the next event."""

    def __init__(self, run: RunFolder, every: int) -> None:
        self.every, self.path = every, run.metrics_path
        try:
            self.file: IO[str] = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise cannot_write(error, self.path) from error

    def __call__(self, event: Event | SessionStarted) -> None:
        if isinstance(event, Stepped) and event.step % self.every and event.progress < 1.0:
            return
        if isinstance(event, Finished) and event.interrupted:
            return  # the run can be resumed: it has not finished
        line = json.dumps({"event": event.event, "step": event.step, **dataclasses.asdict(event)}, allow_nan=False)
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError as error:
            raise cannot_write(error, self.path, len(line)) from error

    def close(self) -> None:
        self.file.close()


class ConsoleObserver:
    """Print evaluations, samples and warnings on stderr, with a progress bar on a terminal and a line every 10 s elsewhere."""

    def __init__(self, console: Console, bytes_per_prediction: float | None) -> None:
        self.console = console
        # Converts nats per prediction to bits per byte.
        self.bits = 1.0 / math.log(2) / bytes_per_prediction if bytes_per_prediction is not None else None
        self.smooth: float | None = None
        self.last: Stepped | None = None
        self.printed = time.monotonic()
        self.prints_steps = not console.is_terminal
        # The bar is as wide as an 80-column line allows.
        self.bar = Progress(
            TextColumn("step {task.fields[step]:>6,}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[figures]}"),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=1.0, step=0, figures="the first step")
        self.bar.start()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self.stepped(event)
        elif isinstance(event, Evaluated) and not event.whole:
            self.evaluated(event)
        elif isinstance(event, Warned):
            self.console.print(
                Text.assemble((f"warning at step {event.step:,}: ", "bold yellow"), (event.text, "yellow"))
            )
        elif isinstance(event, Finished) and event.early:
            self.console.print(f"step {event.step:>6,}  stopped early: validation loss no longer falls")
        elif isinstance(event, Finished) and event.limited_at is not None:
            self.console.print(f"step {event.step:>6,}  {format_limit(event.limited_at)}")
        elif isinstance(event, Saved | Evaluated | Tested | Finished):
            pass  # in the closing summary

    def stepped(self, event: Stepped) -> None:
        # A mean over about 20 steps: the loss of a single batch is too noisy.
        self.smooth = event.loss if self.smooth is None else self.smooth + 0.05 * (event.loss - self.smooth)
        self.last = event
        loss = f"loss {self.smooth:.3f}"
        loss += f"  {self.smooth * self.bits:.3f} bits/byte" if self.bits is not None else ""
        speed = f"{event.tokens_per_second:,.0f} tokens/s"
        left = clock(event.seconds * (1.0 - event.progress) / event.progress)
        shown = f"{loss}  {speed}  {left} left" if event.progress < 1.0 else "evaluating on the whole validation split"
        self.update_bar(event, shown)
        now = time.monotonic()
        if self.prints_steps and (now - self.printed >= 10.0 or event.step == 1):
            self.printed = now
            parts = (
                f"{event.progress:4.0%}",
                loss,
                *update_figures(event),
                speed,
                *machine_figures(event),
                f"{left} left",
            )
            self.console.print(f"step {event.step:>6,}  {'  '.join(parts)}")

    def update_bar(self, event: Stepped, figures: str) -> None:
        self.bar.update(self.task, completed=event.progress, step=event.step, figures=figures)

    def evaluated(self, event: Evaluated) -> None:
        """Print training and validation metrics, and one metric of each test set. The training loss is that of the sample, if
        one is evaluated, else the mean over the last steps. On a terminal, which has no lines for steps, it has a line of its
        own."""
        start, training = f"step {event.step:>6,}", ""
        loss = self.smooth if event.training is None else event.training.loss
        if loss is not None:
            training = f"training   loss {loss:.3f}" + (" (running mean)" if event.training is None else "")
        figures = "  ".join((f"[bold]validation[/] loss {event.loss:.4f}", *format_figures(dataclasses.asdict(event))))
        if self.console.is_terminal and self.last is not None:
            parts = "  ".join((training, *update_figures(self.last), *machine_figures(self.last)))
            for long, short in SHORTER:
                parts = parts.replace(long, short)
            self.console.print(f"{start}  {parts}")
            self.console.print(f"{start}  {figures}")
        else:
            self.console.print("  ".join(filter(None, (start, training.replace("   ", " "), figures))))
        if event.tests:
            self.console.print(f"{start}  tests      {format_tests(event.tests)}", markup=False)

    def show_sample(self, step: int, text: str) -> None:
        self.console.rule(f"[dim]a sample after {step:,} steps[/]", align="left", style="dim")
        self.console.print(Text(text.strip(), style="italic"))
        self.console.rule(style="dim")

    def close(self) -> None:
        self.bar.stop()


class StepBar(Protocol):
    """A bar of a notebook."""

    def bar(self, share: float | None, figures: str) -> None: ...

    def clear_bar(self) -> None: ...


class NotebookObserver(ConsoleObserver):
    """As ConsoleObserver, with the bar of a notebook in place of the lines of steps."""

    def __init__(self, console: Console, bytes_per_prediction: float | None, screen: StepBar) -> None:
        super().__init__(console, bytes_per_prediction)
        self.screen, self.prints_steps = screen, False

    def update_bar(self, event: Stepped, figures: str) -> None:
        self.screen.bar(event.progress, f"step {event.step:,}  {event.progress:.0%}  {figures}")

    def close(self) -> None:
        super().close()
        self.screen.clear_bar()


def format_tests(tests: Mapping[str, EvaluationFigures]) -> str:
    """Format one metric of each test set: the perplexity, or the accuracy of a classifier."""
    accuracies = {name: one.accuracy for name, one in tests.items() if one.perplexity is None}
    perplexities = {name: one.perplexity for name, one in tests.items() if one.perplexity is not None}
    shown = [f"{name} {format_perplexity(value)}" for name, value in perplexities.items()]
    shown += [f"{name} {value:.1%}" for name, value in accuracies.items()]
    return "  ".join(("perplexity" if perplexities else "accuracy", *shown))


def update_figures(event: Stepped) -> list[str]:
    norm = "overflow" if event.gradient_norm is None else f"gradient norm {event.gradient_norm:.3g}"
    return [f"lr {event.lr:.1e}", norm]


def machine_figures(event: Stepped) -> list[str]:
    peak = [] if event.share_of_peak is None else [f"{event.share_of_peak:.0%} of peak FLOP/s"]
    return peak if event.memory_bytes is None else [*peak, format_bytes(event.memory_bytes)]


def format_bytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
