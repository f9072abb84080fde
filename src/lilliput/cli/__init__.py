"""The command line: one module per command.

Owns: the table of commands, running one, printing its error, exit codes. A command is a module of this package
with `add_arguments(parser)` and `run(arguments)`, and a line in `COMMANDS`; it is imported when it is called, so
that `lilliput --help` imports neither torch nor pydantic. Does not own: what the commands do (their rooms), nor
shared parsing (`cli.parsing`).

Exit codes: 0 done; 1 a study that lacks some of its figures; 2 an error that the user can fix; 130 stopped by
Ctrl-C, 143 by SIGTERM (under torchrun 0, which takes any other code for a failure).
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import NamedTuple

from lilliput.errors import UserError, nearest

COMMANDS = {
    "train": "train a model on a recipe, a text file or a folder of texts",
    "generate": "write with a trained model",
    "chat": "write a story in turns with a trained model",
    "evaluate": "how good a run is: likelihood, labels, overlap, baselines",
    "attention": "what each head looks at: numbers, pictures, and one page",
    "inspect": "parts, shapes and masks of a model, and checks that run now",
    "info": "what a run is and how far it came, or how two differ",
    "study": "compare techniques over seeds at an equal budget, and report",
    "report": "a run or a study as a page to read, print and hand in",
    "prepare": "turn text into tokens, and tell what went in",
}

HELP = f"""\
lilliput: a workbench for small transformer language models

usage: lilliput COMMAND ...   lilliput COMMAND --help for examples and flags

{chr(10).join(f"  {command:10} {what}" for command, what in COMMANDS.items())}

begin with
  lilliput train demo                      the built-in storybook, six minutes
  lilliput train mytext.txt                a model of your own text
  lilliput generate demo --prompt "Once"   let it write
"""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of stdout: those of files are UserErrors before they come here


def main(argv: list[str] | None = None) -> int:
    return run_command(sys.argv[1:] if argv is None else argv).code


class CommandOutcome(NamedTuple):
    """How a command ended: its exit code, and the error that it printed."""

    code: int
    error: UserError | None = None


def run_command(argv: list[str]) -> CommandOutcome:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks must not end the command
    try:
        try:
            code = dispatch(argv)
        except SystemExit as leaving:  # after --help of a command
            code = int(leaving.code or 0)
        sys.stdout.flush()  # here, where a closed pipe is understood, and not at exit
        return CommandOutcome(code)
    except UserError as error:
        print(error.printed(), file=sys.stderr)
        return CommandOutcome(2, error)
    except KeyboardInterrupt:
        print("\nlilliput: stopped", file=sys.stderr)
        return CommandOutcome(130)
    except BrokenPipeError:  # the reader (`| head`) has enough
        drop_output()
        return CommandOutcome(0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        drop_output()
        what, fix = f"the output could not be written: {error.strerror}", "free disk space or write elsewhere"
        failed = UserError(what, fix=fix, code="output.not-written")
        print(failed.printed(), file=sys.stderr)
        return CommandOutcome(2, failed)


def drop_output() -> None:
    """Send the rest of stdout to nowhere, so that closing it at exit raises no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if argv[0] in ("-V", "--version"):
        from lilliput import __version__

        print(f"lilliput {__version__}")
        return 0
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        close = nearest(command, COMMANDS)
        fix = f"lilliput {close}" if close else f"use one of {', '.join(COMMANDS)}"
        raise UserError(f"unknown command {command!r}", None, fix=fix, code="command.unknown")
    module = importlib.import_module(f"lilliput.cli.{command}")
    from lilliput.cli.parsing import parse

    try:
        arguments = parse(command, COMMANDS[command], module, rest)
    except UserError:
        from lilliput.training.process_group import open_world

        with open_world():  # of several processes with this command line, one prints the error
            raise
    code: int = module.run(arguments)
    return code
