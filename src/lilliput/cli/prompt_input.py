"""Prompts from the command line: one text, or a file with one on each line.

Owns: which lines are errors and which are skipped. A line is kept as it is, without its end: spaces are tokens, too.
A blank line is skipped with a note, because it is not clear whether it means the beginning of a new document (for
which there is `--prompt ""`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from lilliput.errors import UserError

STDIN = "-"
BYTE_ORDER_MARK = "\ufeff"
NUMBERS = 5  # of skipped lines in the note


def as_text(word: str) -> str:
    """A word of the command line; a terminal's bytes may be no text."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_prompts(source: str, note: Callable[[str], object]) -> list[str]:
    """The lines of a file, or of stdin for `-`."""
    where = "stdin" if source == STDIN else source
    raw = sys.stdin.buffer.read() if source == STDIN else read_file(Path(source))
    try:
        text = raw.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what, place = f"the prompts are not UTF-8 (byte 0x{raw[error.start]:02x})", f"line {line}, byte {error.start}"
        raise UserError(what, f"{where}, {place}", fix="save the file as UTF-8", code="file.not-utf8") from None
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        what = "the file of prompts has only white space" if text else "the file of prompts is empty"
        raise UserError(what, where, fix="write one prompt on each line", code="prompt.empty")
    blank = [str(number) for number, line in enumerate(lines, start=1) if not line.strip()]
    if blank:
        numbers = ", ".join(blank[:NUMBERS]) + (", ..." if len(blank) > NUMBERS else "")
        note(f"{where}: {len(blank)} blank line{'s are' if len(blank) > 1 else ' is'} skipped ({numbers})")
    return prompts


def read_file(path: Path) -> bytes:
    if path.is_dir():
        fix = "give a file with one prompt on each line"
        raise UserError("--prompts is a folder, expected a file", str(path), fix=fix, code="file.is-folder")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        fix = "use - for stdin, or --prompt TEXT"
        raise UserError("the file of prompts does not exist", str(path), fix=fix, code="file.missing") from None
    except OSError as error:
        what = f"the prompts cannot be read: {error.strerror}"
        raise UserError(what, str(path), fix="check the permissions of the file", code="file.unreadable") from None
