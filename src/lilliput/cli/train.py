"""`lilliput train`: from a recipe or a text to a run, with a bar, and a way back after every interruption."""

from __future__ import annotations

import argparse
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lilliput.cli.output import chatter, figures, print_json, progress, readable
from lilliput.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from lilliput.settings.tree import Config
    from lilliput.training.process_group import World
    from lilliput.training.session import Session

TAKES_SETTINGS = True
EXAMPLES = """
    lilliput train demo                                       the built-in recipe
    lilliput train mytext.txt --train.minutes 10              a model of your own text
    lilliput train texts/ --size small --name mine            a folder of texts, a larger model
    lilliput train demo --optimizer.lr 1e-3 --name slower     any setting by its dotted name
    lilliput train demo --resume                              go on where it was stopped
    lilliput train letters.txt --from demo                    fine-tune: demo's weights and tokenizer
    lilliput train demo --dry-run                             settings, parameters, memory and time, and nothing else
    lilliput train demo --find-lr                             try learning rates from low to high, and suggest one
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", help="a recipe (its path or name), a text file, a .jsonl file, a folder, or with --resume a run"
    )
    parser.add_argument("--size", help="nano, tiny, small or base: expands to explicit model settings")
    parser.add_argument("--resume", action="store_true", help="go on exactly where the run was")
    parser.add_argument("--overwrite", action="store_true", help="replace the run of that name")
    parser.add_argument(
        "--from", dest="start_from", metavar="RUN", help="start from its weights and tokenizer, with a fresh optimizer"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be trained and what it costs")
    parser.add_argument(
        "--find-lr",
        action="store_true",
        help="try a hundred learning rates, from low to high, and suggest one; no run is made",
    )
    parser.add_argument("--json", action="store_true", help="the outcome as one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    from lilliput.training.process_group import open_world

    with open_world() as world:
        config = shared_config(arguments, world)
        if arguments.dry_run:
            from lilliput.cli.dry_run import print_costs

            return print_costs(config, arguments.json) if world.first else 0
        if arguments.find_lr:
            from lilliput.cli.find_lr import print_rates

            return print_rates(arguments, config, world)
        from lilliput.training.session import open_session

        console = chatter(quiet=not world.first)
        with ExitStack() as stack:
            with progress(console) as report:
                session = stack.enter_context(
                    open_session(config, arguments.resume, arguments.overwrite, arguments.start_from, report, world)
                )
            stopped_by = follow(session, console)
    if stopped_by is not None:
        return 128 + stopped_by if world.launch is None else 0
    if not world.first:
        return 0
    if arguments.json:
        from lilliput.cli.info import describe_run

        print_json(describe_run(str(session.run.folder), config.log.folder))
    else:
        from lilliput.cli.training_summary import summarise

        summarise(session, figures(), console)
    return 0


def shared_config(arguments: argparse.Namespace, world: World) -> Config:
    """As the first process finds them: the others may be on machines that have neither recipes nor runs."""
    from lilliput.settings.loading import config_from_dict, config_to_dict

    config = wanted_config(arguments) if world.first else None
    shared = world.share(config_to_dict(config) if config else None)
    return config or config_from_dict(shared, "settings")


def wanted_config(arguments: argparse.Namespace) -> Config:
    """The settings asked for: of the recipe or text, of the run to resume, or with the model of the run to start from."""
    if arguments.resume and (arguments.overwrite or arguments.start_from is not None):
        what = "--resume conflicts with --overwrite and --from"
        raise UserError(what, None, "give one of them", code="flag.conflict")
    if arguments.dry_run and arguments.find_lr:
        raise UserError("--dry-run conflicts with --find-lr", None, "give one of them", code="flag.conflict")
    if arguments.resume:
        return resumed_config(arguments)
    from lilliput.settings.loading import load_config

    config = load_config(arguments.target, arguments.settings, arguments.size, "command line")
    if arguments.start_from is None:
        return config
    brought = ("model.", "tokenizer.", "vectors.")
    given = [f"--{name}" for name in arguments.settings if name.startswith(brought) and name != "model.dropout"]
    given += ["--size"] if arguments.size else []
    if given:
        what = f"{given[0]} conflicts with --from, which takes the model and its tokenizer from another run"
        setting = given[0].removeprefix("--")
        if setting == "size":
            raise UserError(what, None, "leave out --size", code="flag.conflict")
        raise UserError(what, None, f"leave out {given[0]}", code="setting.conflict", setting=setting)
    from lilliput.storage.run_folders import resolve_checkpoint

    origin = resolve_checkpoint(arguments.start_from, config.log.folder)  # a wrong name raises before torch is imported
    from lilliput.training.run_start import adopt

    return adopt(config, origin)


def resumed_config(arguments: argparse.Namespace) -> Config:
    """The run's own settings, whether it is named by its folder or by the command that began it.

    What a recipe says by now does not matter; but a setting that is asked for and is not the run's is refused.
    """
    from lilliput.settings.loading import config_from_dict, config_to_dict, load_config, replace
    from lilliput.settings.recipes import find_recipe
    from lilliput.settings.sources import BUILT_IN_CORPORA
    from lilliput.settings.tree import SIZES
    from lilliput.storage.checkpoints import CONFIG
    from lilliput.storage.dotted_names import flatten
    from lilliput.storage.run_folders import Run, looks_like_run
    from lilliput.training.run_start import FREE
    from lilliput.training.session import run_folder

    spread = {name: value for name, value in arguments.settings.items() if name == "train.parallel"}
    load_config(None, spread, origin="command line")
    alone = arguments.settings.keys() == spread.keys() and not arguments.size
    folder, asked = Path(arguments.target), None
    trainable = find_recipe(arguments.target) is not None or arguments.target in BUILT_IN_CORPORA
    if not folder.exists() and (alone or not trainable) and looks_like_run(Path("runs") / folder):
        folder = Path("runs") / folder
    if not looks_like_run(folder):
        asked = load_config(arguments.target, arguments.settings, arguments.size, "command line")
        folder = run_folder(asked)
        if not looks_like_run(folder):
            what, fix = f"there is no run {folder} to resume", "run the same command without --resume"
            raise UserError(what, None, fix, code="run.missing")
    elif not alone:
        what = "a resumed run keeps its settings"
        fix = f"use --name NEW --from {folder} for other settings"
        raise UserError(what, str(folder), fix, code="setting.changed")
    saved = config_from_dict(Run.open(folder).config(), str(folder / CONFIG))
    if asked is not None:
        then, now = flatten(config_to_dict(saved)), flatten(config_to_dict(asked))
        given = [*arguments.settings, *(f"model.{name}" for name in SIZES.get(arguments.size, {}))]
        changed = [name for name in given if name not in FREE and then.get(name) != now[name]]
        if changed:
            name = changed[0]
            what = f"{name} was {then[name]} when run {folder.name} began, and a resumed run keeps its settings"
            fix = f"leave it out, or use --name NEW --from {folder} for other settings"
            raise UserError(what, f"--{name}", fix, code="setting.changed", setting=name)
    return replace(saved, spread | {"name": folder.resolve().name, "log.folder": str(folder.parent)})


def follow(session: Session, console: Console) -> int | None:
    """Train with a bar; the number of the signal that ended it early, or None."""
    from rich.markup import escape

    from lilliput.training.events import Evaluated, Finished
    from lilliput.training.observers import ConsoleObserver
    from lilliput.training.schedules import warm_up_note

    trainer, config, world = session.trainer, session.trainer.config, session.trainer.world
    late = warm_up_note(config)
    for note in [*session.notes, *([late] if late else [])]:
        console.print(f"[yellow]note[/] {escape(note)}")
    task = config.model.task
    examples = "training documents" if task == "classifier" else "training tokens"
    examples += "" if task == "language" else f" with {config.model.classes} labels"
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
            return  # torchrun hands on to all what one of them has got already, and kills those who take 30 s
        if not training:
            return  # it is ending already: what is left is to tell how to go on
        if len(received) > 1:
            raise KeyboardInterrupt
        console.print("finishing this step, then saving (again: stop at once)")

    # Of any other task the loss is no nats of the text alone.
    observer = ConsoleObserver(console, trainer.train.bytes_per_prediction if task == "language" else None)
    seconds = config.log.sample_seconds if task != "classifier" else None
    sampled = time.monotonic()
    interrupted = False
    with listening(on_signal):
        try:
            for event in session.events([observer]):
                interrupted = isinstance(event, Finished) and event.interrupted
                at_evaluation = isinstance(event, Evaluated) and not event.whole
                if seconds is None or not at_evaluation:
                    continue
                if world.share(time.monotonic() - sampled >= seconds):
                    observer.show_sample(event.step, session.write_sample())
                    sampled = time.monotonic()
            training = False
        except KeyboardInterrupt:
            training, interrupted = False, True
        finally:
            observer.close()
        if not interrupted:
            return None
        kept = f"step {last.step:,} is saved" if (last := session.run.last) else "nothing is saved yet"
        command = f"lilliput train {shlex.quote(str(session.run.folder))} --resume"
        console.print(f"stopped at step {trainer.step:,}; {kept}; go on with\n  {command}", markup=False)
        return received[-1] if received else signal.SIGTERM  # another process's


@contextmanager
def listening(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that ask to stop go to the handler."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
