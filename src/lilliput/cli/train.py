"""`lilliput train`: train a run from a recipe or a text, with progress bar, signals and resume.

Owns: the flags and their conflicts. Does not own: what is printed during training (`api.training_progress`) and after it
(`training_summary`), or the session (`training.session`).
"""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.cli.output import print_json, stderr_console, stdout_console
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.training.run_start import RunStart

TAKES_SETTINGS = True
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
        from lilliput.api.consoles import ProgressOutput
        from lilliput.api.training_progress import follow
        from lilliput.training.session import start_session

        output = ProgressOutput(stderr_console(quiet=not world.first))
        with ExitStack() as stack:
            with output.reporting() as report:
                session = stack.enter_context(start_session(start, report, world))
            resume = f"lilliput train {shlex.quote(str(session.run.folder))} --resume"
            stopped = follow(session, output, resume)
    if stopped is not None:
        return 128 + stopped.number if world.launch is None else 0
    if not world.first:
        return 0
    if arguments.json:
        from lilliput.cli.info import describe_run

        print_json(describe_run(str(session.run.folder), session.trainer.config.log.folder))
    else:
        from lilliput.cli.training_summary import summarise

        summarise(session, stdout_console(), output.console)
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
