"""The command line: one module per command.

Owns: the table of commands, running one, printing its error, exit codes. A command is a module of this package
with `add_arguments(parser)` and `run(arguments)`, and a line in `COMMANDS`. It is imported when it is called, so
that `lilliput --help` imports neither torch nor pydantic. Does not own: the work of the commands (other packages) or
shared parsing (`cli.parsing`).

Exit codes: 0 success; 1 a study or reproduction with missing measurements; 2 an error that the user can fix; 130 stopped by
Ctrl-C, 143 by SIGTERM (under torchrun 0, because torchrun treats any other code as a failure).
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import shlex
import signal
import sys
from typing import NamedTuple

from lilliput.errors import UserError, nearest

COMMANDS = {
    "train": "train a model from a recipe, a text file or a folder",
    "generate": "generate text with a trained model",
    "chat": "write a story in turns with a trained model",
    "evaluate": "evaluate a model: loss, accuracy, BLEU, baselines",
    "predict": "predict the labels of texts with a classifier",
    "attention": "show attention weights: head scores, heat maps, web page",
    "interpret": "show predictions of each layer; remove attention heads",
    "inspect": "show parts, shapes and masks of a model and check it",
    "info": "show or compare runs",
    "study": "compare techniques over several seeds at equal budget",
    "reproduce": "repeat a published report: its tables and figures",
    "report": "write the HTML and Markdown report of a run or study",
    "prepare": "tokenise a corpus and print its statistics",
    "export": "write a run for transformers, or for llama.cpp and Ollama",
}

HELP = f"""\
lilliput: a workbench for small transformer language models

usage: lilliput COMMAND [ARGUMENTS]

commands:
{chr(10).join(f"  {command:10} {what}" for command, what in COMMANDS.items())}

examples:
  lilliput train demo                      train on the built-in stories (6 min)
  lilliput train mytext.txt                train on your own text
  lilliput generate demo "Once"            generate text

lilliput COMMAND --help shows the flags and examples of a command.
"""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of stdout; errors of files are UserErrors already


def main(argv: list[str] | None = None) -> int:
    code = run_command(sys.argv[1:] if argv is None else argv).code
    if argv is None:  # the process ends now: a late Ctrl-C must not interrupt Python's exit
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


class CommandOutcome(NamedTuple):
    """The exit code of a command and the error that it printed."""

    code: int
    error: UserError | None = None


def run_command(argv: list[str]) -> CommandOutcome:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character outside the encoding must not end the command
    try:
        try:
            code = dispatch(argv)
        except SystemExit as leaving:  # after --help
            code = int(leaving.code or 0)
        sys.stdout.flush()  # here, where a closed pipe is handled, not at exit
        return CommandOutcome(code)
    except UserError as error:
        print(error.printed(), file=sys.stderr)
        return CommandOutcome(2, error)
    except KeyboardInterrupt:
        print("\nlilliput: stopped", file=sys.stderr)
        return CommandOutcome(130)
    except BrokenPipeError:  # the reader (`| head`) closed the pipe
        drop_output()
        return CommandOutcome(0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        drop_output()
        what, fix = f"cannot write to stdout: {error.strerror}", "free disk space or write to another disk"
        failed = UserError(what, fix=fix, code="output.not-written")
        print(failed.printed(), file=sys.stderr)
        return CommandOutcome(2, failed)


def drop_output() -> None:
    """Discard the rest of stdout, so that closing it at exit raises no error."""
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
        fix = f"run {shlex.join(['lilliput', close, *rest])}" if close else f"use one of {', '.join(COMMANDS)}"
        raise UserError(f"unknown command {command!r}", None, fix=fix, code="command.unknown")
    module = importlib.import_module(f"lilliput.cli.{command}")
    from lilliput.cli.parsing import parse

    try:
        arguments = parse(command, COMMANDS[command], module, rest)
    except UserError:
        from lilliput.training.process_group import open_world

        with open_world():  # only one of several processes prints the error
            raise
    try:
        code: int = module.run(arguments)
    except UserError as error:
        if module.TAKES_SETTINGS:
            raise
        from lilliput.cli.error_flags import with_typed_flags

        raise with_typed_flags(error, arguments.flags) from error
    return code
