"""Prompts from the command line, or from a file with one prompt per line.

A line is kept unchanged without its line end, because spaces are tokens. Blank lines are skipped with a note: an empty
prompt is given as `--prompt ""`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from lilliput.errors import UserError

STDIN = "-"
BYTE_ORDER_MARK = "\ufeff"
NUMBERS = 5  # line numbers shown in the note


def as_text(word: str) -> str:
    """Return an argument as valid Unicode; its bytes may not be UTF-8."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_prompts(source: str, note: Callable[[str], object]) -> list[str]:
    """Return the lines of a file, or of stdin for `-`."""
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
        what = f"the prompt file {'contains only white space' if text else 'is empty'}"
        raise UserError(what, where, fix="write one prompt per line", code="prompt.empty")
    blank = [str(number) for number, line in enumerate(lines, start=1) if not line.strip()]
    if blank:
        numbers = ", ".join(blank[:NUMBERS]) + (", ..." if len(blank) > NUMBERS else "")
        note(f"{where}: skipped {len(blank)} blank line{'s' if len(blank) > 1 else ''} ({numbers})")
    return prompts


def read_file(path: Path) -> bytes:
    if path.is_dir():
        fix = "give a file with one prompt per line"
        raise UserError("--prompts must be a file (got a folder)", str(path), fix=fix, code="file.is-folder")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        fix = "use - for stdin, or --prompt TEXT"
        raise UserError("the prompt file does not exist", str(path), fix=fix, code="file.missing") from None
    except OSError as error:
        what = f"cannot read the prompt file: {error.strerror}"
        raise UserError(what, str(path), fix="check the permissions of the file", code="file.unreadable") from None
