"""The command line: verbs -> functions. Nothing else knows about it.

Owns: the table of verbs, finding the verb, telling a mistake, exit codes. A verb is a module of this package
with `add_arguments(parser)` and `run(arguments)`, and a line in `VERBS`; it is imported when it is called, so
that `lilliput --help` costs neither torch nor pydantic. Does not own: what the verbs do (their rooms), nor
shared parsing (`cli.parsing`).

Exit codes: 0 done; 1 a study that lacks some of its figures; 2 a mistake that the user can mend; 130 stopped
by Ctrl-C, 143 by SIGTERM (under torchrun 0: to it, whoever ends otherwise has failed).
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import NamedTuple

from lilliput.errors import UserError, nearest

VERBS = {
    "train": "train a model on a recipe, a text file or a folder of texts",
    "generate": "write with a trained model",
    "chat": "write a story in turns with a trained model",
    "evaluate": "how good a run is: likelihood, labels, overlap, baselines",
    "attention": "what each head looks at: numbers, pictures, and one page",
    "info": "what a run is and how far it came, or how two differ",
    "study": "compare techniques over seeds at an equal budget, and report",
    "report": "a run or a study as a page to read, print and hand in",
    "prepare": "turn text into tokens, and tell what went in",
}

HELP = f"""\
lilliput: a workbench for small transformer language models

usage: lilliput VERB ...        lilliput VERB --help for examples and flags

{chr(10).join(f"  {verb:10} {what}" for verb, what in VERBS.items())}

begin with
  lilliput train demo                      the built-in storybook, six minutes
  lilliput train mytext.txt                a model of your own text
  lilliput generate demo --prompt "Once"   let it write
"""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of stdout: those of files are UserErrors before they come here


def main(argv: list[str] | None = None) -> int:
    return run_command(sys.argv[1:] if argv is None else argv).code


class Ended(NamedTuple):
    """How a command ended: its exit code, and the error that it printed."""

    code: int
    error: UserError | None = None


def run_command(argv: list[str]) -> Ended:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a character that the terminal lacks must not end the command
    try:
        try:
            code = dispatch(argv)
        except SystemExit as leaving:  # after --help of a command
            code = int(leaving.code or 0)
        sys.stdout.flush()  # here, where a closed pipe is understood, and not at exit
        return Ended(code)
    except UserError as error:
        print(f"lilliput: {error}", file=sys.stderr)
        return Ended(2, error)
    except KeyboardInterrupt:
        print("\nlilliput: stopped", file=sys.stderr)
        return Ended(130)
    except BrokenPipeError:  # the reader (`| head`) has enough
        drop_output()
        return Ended(0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        drop_output()
        failed = UserError(f"the output could not be written: {error.strerror}", code="output.not-written")
        print(f"lilliput: {failed}", file=sys.stderr)
        return Ended(2, failed)


def drop_output() -> None:
    """Closing stdout again at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if argv[0] in ("-V", "--version"):
        from lilliput import __version__

        print(f"lilliput {__version__}")
        return 0
    verb, rest = argv[0], argv[1:]
    if verb not in VERBS:
        close = nearest(verb, VERBS)
        raise UserError(
            f"there is no verb {verb!r}", None, f"lilliput {close}" if close else f"one of {', '.join(VERBS)}"
        )
    module = importlib.import_module(f"lilliput.cli.{verb}")
    from lilliput.cli.parsing import parse

    try:
        arguments = parse(verb, VERBS[verb], module, rest)
    except UserError:
        from lilliput.training.process_group import open_world

        with open_world():  # of several processes with this command line, one tells it
            raise
    code: int = module.run(arguments)
    return code
