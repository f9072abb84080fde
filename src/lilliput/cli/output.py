"""Shared output of the commands: results on stdout, notes on stderr.

Owns: the console of stdout, notes, JSON output and line breaks. Does not own: the console of stderr and progress bars
(`api.consoles`), or the format of numbers (`reports.formatting`); commands import these from here, too.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from lilliput.api.consoles import noted as noted
from lilliput.api.consoles import progress as progress
from lilliput.api.consoles import stderr_console as stderr_console
from lilliput.reports.formatting import readable as readable


def print_note(text: str) -> None:
    """Print a note to stderr, in the form of all notes: `note: text`."""
    stderr_console().print(noted(text))


def print_status(text: str) -> None:
    """Print what a command wrote, and where, to stderr."""
    stderr_console().print(text, markup=False)


def stdout_console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=not terminal, force_terminal=terminal)


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a stdout that is not UTF-8, or a path that is not Unicode
        text = json.dumps(value, indent=2, allow_nan=False)
    print(text)


class LineWrapper:
    """Wrap streamed text between words at `width` columns (None: no limit). A word is returned when it is complete."""

    def __init__(self, width: int | None) -> None:
        self.width = width
        self.column = 0
        self.held = ""
        self.space = ""

    def push(self, piece: str) -> str:
        if self.width is None:
            return piece
        words: list[str] = re.findall(r"\S+|\n|[^\S\n]+", self.held + piece)
        self.held = words.pop() if words and not words[-1].isspace() else ""
        return "".join(map(self.place, words))

    def flush(self) -> str:
        word, self.held = self.held, ""
        return self.place(word) if word else ""

    def place(self, word: str) -> str:
        assert self.width is not None
        if word == "\n":
            self.column, self.space = 0, ""
            return word
        if word.isspace():
            self.space = self.space + word if self.column else ""  # no line begins with a space
            return ""
        before, self.space = self.space, ""
        if self.column and self.column + cell_len(before + word) > self.width:
            before, self.column = "\n", 0
        self.column += cell_len(before.strip("\n") + word)
        return before + word
