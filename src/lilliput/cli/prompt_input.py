"""Prompts from the command line: one text, or a file with one on each line.

Owns: what is refused and what is skipped. A line is taken as it is, without its end: spaces are tokens, too.
A blank line is skipped and told: it might be meant as the beginning of a new document, which `--prompt ""`
says, or stand there by chance.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from lilliput.errors import UserError

STDIN = "-"
BYTE_ORDER_MARK = "\ufeff"
NUMBERS = 5  # of skipped lines that are told


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
        what = f"prompts must be UTF-8: byte 0x{raw[error.start]:02x} has no place there"
        raise UserError(what, f"{where}, line {line}, byte {error.start}", "save the file as UTF-8") from None
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise UserError(
            "there are no prompts, only white space" if text else "there are no prompts", where, "one a line"
        )
    blank = [str(number) for number, line in enumerate(lines, start=1) if not line.strip()]
    if blank:
        told = ", ".join(blank[:NUMBERS]) + (", ..." if len(blank) > NUMBERS else "")
        note(f"{where}: {len(blank)} blank line{'s are' if len(blank) > 1 else ' is'} skipped ({told})")
    return prompts


def read_file(path: Path) -> bytes:
    if path.is_dir():
        raise UserError("prompts are a file with one on each line, and this is a folder", str(path), "a file in it")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError("there is no such file of prompts", str(path), "- for stdin, or --prompt TEXT") from None
    except OSError as error:
        raise UserError(f"the prompts cannot be read: {error.strerror}", str(path), "check its permissions") from None
