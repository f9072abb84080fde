"""`lilliput train`: train a run from a recipe or a text, with progress bar, signals and resume."""

from __future__ import annotations

import argparse
import shlex
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lilliput.cli.output import noted, print_json, progress, readable, stderr_console, stdout_console
from lilliput.errors import UserError
from lilliput.training.events import Evaluated, Event, Finished, Stepped

if TYPE_CHECKING:
    from rich.console import Console

    from lilliput.training.run_start import RunStart
    from lilliput.training.session import Session

TAKES_SETTINGS = True
FIRST_SAMPLE = 15.0  # seconds until the first sample
SHORT_RUN = 60.0  # seconds of a run that ends soon enough without that sample
EXAMPLES = """
    lilliput train demo                                       train a shipped recipe
    lilliput train mytext.txt --train.minutes 10              train on your own text
    lilliput train texts/ --size small --name mine            train a larger model on a folder of texts
    lilliput train demo --optimizer.lr 1e-3 --name slower     change a setting by its dotted name
    lilliput train demo --resume                              resume an interrupted run
    lilliput train runs/mytext --resume --train.minutes 20    extend a run to a larger budget
    lilliput train letters.txt --from demo                    fine-tune the weights of a run
    lilliput train demo --dry-run                             print parameters, memory and time only
    lilliput train demo --portable gguf --name portable       refuse settings that export cannot write as GGUF
    lilliput train demo --find-lr                             find a learning rate
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="recipe (path or name), text file, .jsonl file or folder; with --resume, a run")
    parser.add_argument("--size", help="model size: nano, tiny, small or base (listed below)")
    parser.add_argument(
        "--resume", action="store_true", help="resume an interrupted run, or extend it by a larger budget"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run of the same name")
    parser.add_argument(
        "--from", dest="start_from", metavar="RUN", help="start from the weights and tokenizer of RUN (fine-tuning)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print parameters, length, memory and time; do not train"
    )
    parser.add_argument(
        "--portable",
        action="append",
        default=[],
        choices=("huggingface", "gguf"),
        help="refuse settings that lilliput export cannot write in this format, before training (repeatable)",
    )
    parser.add_argument("--verbose", action="store_true", help="with --dry-run: print all settings too")
    parser.add_argument(
        "--find-lr",
        action="store_true",
        help="try 100 increasing learning rates and suggest one; do not create a run",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    try:
        return train(arguments)
    except UserError as error:
        raise with_flags(error, arguments) from error


def train(arguments: argparse.Namespace) -> int:
    from lilliput.training.process_group import open_world

    with open_world() as world:
        # Only the first process reads recipes and runs; other machines may not have them.
        start = requested_start(arguments) if world.first else None
        if arguments.dry_run:
            from lilliput.cli.dry_run import print_costs

            return print_costs(start.config, world.processes, arguments.json, arguments.verbose) if start else 0
        if arguments.find_lr:
            from lilliput.cli.find_lr import print_rates

            return print_rates(arguments, start.config if start else None, world)
        from lilliput.training.session import start_session

        console = stderr_console(quiet=not world.first)
        with ExitStack() as stack:
            with progress(console) as report:
                session = stack.enter_context(start_session(start, report, world))
            stopped_by = follow(session, console)
    if stopped_by is not None:
        return 128 + stopped_by if world.launch is None else 0
    if not world.first:
        return 0
    if arguments.json:
        from lilliput.cli.info import describe_run

        print_json(describe_run(str(session.run.folder), session.trainer.config.log.folder))
    else:
        from lilliput.cli.training_summary import summarise

        summarise(session, stdout_console(), console)
    return 0


def requested_start(arguments: argparse.Namespace) -> RunStart:
    """Return how the run starts; raise for conflicting flags."""
    resume, overwrite, start_from = arguments.resume, arguments.overwrite, arguments.start_from
    exclusive = [
        {"--resume": resume, "--overwrite": overwrite},
        {"--resume": resume, "--from": start_from is not None},
        {"--from": start_from is not None, "--size": arguments.size is not None},
        {"--dry-run": arguments.dry_run, "--find-lr": arguments.find_lr},
    ]
    for flags in exclusive:
        if all(flags.values()):
            what = f"{' and '.join(flags)} cannot be combined"
            raise UserError(what, None, fix=f"remove {' or '.join(flags)}", code="flag.conflict")
    from lilliput.training.run_start import CommandSettings, resolve_start

    command = CommandSettings(arguments.target, arguments.settings, arguments.size)
    start = resolve_start(command, resume, overwrite, start_from)
    if arguments.portable:
        from lilliput.exporting.portability import check_portable

        for target in arguments.portable:
            check_portable(start.config, target)
    return start


def with_flags(error: UserError, arguments: argparse.Namespace) -> UserError:
    """Return the error with a fix that names flags of this command, if there are any."""
    from lilliput.storage.run_folders import looks_like_run

    fixes = {
        "run.exists": "add --resume to continue it with its own settings, --name NEW to keep both, or --overwrite to replace it",
        "run.name": "use --name NAME; --log.folder FOLDER keeps the run in another folder",
        "setting.changed": f"remove the changed setting, or use --name NEW --from {error.where} to start a new run",
        "data.changed": "use the original data, or use --name NEW --from RUN to start a new run",
    }
    if (error.setting or "").startswith(
        ("model.", "tokenizer.", "vectors.")
    ):  # weights of a run require the same model
        fixes["setting.changed"] = "remove the changed setting, or use --name NEW without --resume to train a new run"
    named = arguments.settings.get("name")
    folder = Path(arguments.settings.get("log.folder", "runs"), Path(arguments.target).stem)
    if arguments.resume:
        fixes |= {
            "run.missing": "remove --resume to start the run",
            "checkpoint.damaged": "replace --resume with --overwrite to train the run again",
        }
    if arguments.resume and named is not None and looks_like_run(folder):
        fixes["run.missing"] = (
            f"remove --name to continue {folder}, or remove --resume to start a new run named {named!r}"
        )
    if arguments.start_from is not None:
        fixes |= {"checkpoint.mismatch": "train on documents with the same labels, or remove --from"}
    if error.code not in fixes:
        return error
    return UserError(error.what, error.where, fix=fixes[error.code], code=error.code, setting=error.setting)


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


def follow(session: Session, console: Console) -> int | None:
    """Train with a progress bar; return the number of the signal that stopped the training, or None."""
    from rich.markup import escape

    from lilliput.training.interruption import listening
    from lilliput.training.observers import ConsoleObserver
    from lilliput.training.schedules import warm_up_note

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

    # In other tasks the loss is not only that of the text.
    observer = ConsoleObserver(console, trainer.train.bytes_per_prediction if task == "language" else None)
    samples = SampleTimes(config.log.sample_seconds if task != "classifier" else None)
    interrupted = False
    with listening(on_signal):
        try:
            for event in session.events([observer]):
                interrupted = isinstance(event, Finished) and event.interrupted
                if samples.may_follow(event) and world.share(samples.is_due(event)):
                    observer.show_sample(event.step, session.write_sample())
                    samples.shown()
            training = False
        except KeyboardInterrupt:
            training, interrupted = False, True
        finally:
            observer.close()
        if not interrupted:
            return None
        kept = f"step {last.step:,} is saved" if (last := session.run.last) else "no checkpoint is saved"
        command = f"lilliput train {shlex.quote(str(session.run.folder))} --resume"
        console.print(f"stopped at step {trainer.step:,}; {kept}; resume with\n  {command}", markup=False)
        return received[-1] if received else signal.SIGTERM  # of another process
