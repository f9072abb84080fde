"""Following a training: what is shown of it, sample texts, and Ctrl-C.

Owns: the lines before the first step, when a sample is generated, and the end of a training that a signal stops. Does not
own: the lines of events (`training.observers`), the session (`training.session`), exit codes (`cli.train`).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.markup import escape

from lilliput.api.consoles import ProgressOutput, noted
from lilliput.reports.formatting import readable
from lilliput.training.events import Evaluated, Event, Finished, Stepped
from lilliput.training.interruption import ALL, listening
from lilliput.training.schedules import warm_up_note

if TYPE_CHECKING:
    from lilliput.training.observers import Observer
    from lilliput.training.session import Session

FIRST_SAMPLE = 15.0  # seconds until the first sample
SHORT_RUN = 60.0  # seconds of a run that ends soon enough without that sample


class Stopped(NamedTuple):
    """The signal that stopped a training. `at_once`: a second one, so that the last step is not saved."""

    number: int
    at_once: bool


class SampleTimes:
    """When a sample is printed: first after 15 seconds, if the run takes more than a minute, then at evaluations that are at
    least `seconds` apart. None: never."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.last, self.any_shown = seconds, time.monotonic(), False

    def may_follow(self, event: Event) -> bool:
        """Return whether a sample can follow this event; the same in all processes."""
        at_evaluation = isinstance(event, Evaluated) and not event.whole
        return self.seconds is not None and (at_evaluation or (isinstance(event, Stepped) and not self.any_shown))

    def is_due(self, event: Event) -> bool:
        """Decide by the clock, for an event that a sample may follow."""
        passed = time.monotonic() - self.last
        if isinstance(event, Stepped):
            return passed >= FIRST_SAMPLE and event.progress < 1.0 and event.seconds > SHORT_RUN * event.progress
        return self.seconds is not None and passed >= self.seconds

    def shown(self) -> None:
        self.last, self.any_shown = time.monotonic(), True


def follow(
    session: Session,
    output: ProgressOutput,
    resume: str,
    signals: tuple[int, ...] = ALL,
    observers: Sequence[Observer] = (),
) -> Stopped | None:
    """Train and show the progress; return how a signal stopped the training, or None. `resume`: the call that resumes it."""
    trainer, world, console = session.trainer, session.trainer.world, output.console
    print_start(session, console)
    received: list[int] = []
    training = True

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        trainer.stop()
        if world.launch is not None:
            return  # torchrun forwards the signal to all processes, and kills those that take more than 30 s
        if not training:
            return  # it is ending already
        if len(received) > 1:
            raise KeyboardInterrupt
        console.print("finishing this step and saving; press Ctrl-C again to stop now")

    task = trainer.config.model.task
    # In other tasks the loss is not only that of the text.
    observer = output.observer(trainer.train.bytes_per_prediction if task == "language" else None)
    generates = task != "classifier" and not output.silent
    samples = SampleTimes(trainer.config.log.sample_seconds if generates else None)
    interrupted = at_once = False
    with listening(on_signal, signals):
        try:
            for event in session.events([observer, *observers]):
                interrupted = isinstance(event, Finished) and event.interrupted
                if samples.may_follow(event) and world.share(samples.is_due(event)):
                    observer.show_sample(event.step, session.write_sample())
                    samples.shown()
            training = False
        except KeyboardInterrupt:
            training, interrupted, at_once = False, True, True
        finally:
            observer.close()
        if not interrupted:
            return None
        kept = f"step {last.step:,} is saved" if (last := session.run.last) else "no checkpoint is saved"
        console.print(f"stopped at step {trainer.step:,}; {kept}; resume with\n  {resume}", markup=False)
        return Stopped(received[-1] if received else signal.SIGTERM, at_once)  # SIGTERM: of another process


def print_start(session: Session, console: Console) -> None:
    """Print the notes of the session, its data and its model."""
    trainer, config, world = session.trainer, session.trainer.config, session.trainer.world
    late = warm_up_note(config)
    for note in [*session.notes, *([late] if late else [])]:
        console.print(noted(note))
    task = config.model.task
    examples = "training documents" if task == "classifier" else "training tokens"
    examples += "" if task == "language" else f" with {config.model.classes} labels"
    console.print(f"[bold]data[/]  {escape(session.prepared.manifest['source'])}")
    console.print(
        f"[bold]{escape(session.run.name)}[/]  {trainer.model.count().parameters.total:,} parameters, "
        f"{readable(trainer.train.predictions)} {examples}, vocabulary {config.model.vocab_size:,}, "
        f"on {trainer.model.device}"
        + (f" x {world.processes}" if world.processes > 1 else "")
        + (f", from step {trainer.step:,}" if trainer.step else "")
    )
