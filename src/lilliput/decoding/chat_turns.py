"""A story that two write in turns, before anybody shows it.

Owns: turns and what is taken back, how a line is joined to what stands before it, where a sentence ends, and
lines that break between words. Does not own: input and output (`cli.chat`), nor the writing (`decoding`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rich.cells import cell_len

# Closing quotes and brackets belong to the sentence; white space after it shows that it has ended (3.5 is no end).
SENTENCE_END = re.compile(r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)[.!?…]+[\"'”’)\]]*(?=\s)")
CLINGING = re.compile(r"[\s.,;:!?…)\]’”']")  # a line that begins so needs no space before it
OPENING = re.compile(r"[\s(\[“‘]\Z")  # nor one after this


@dataclass(frozen=True)
class Turn:
    """What the user added, with the space that joins it, and what the model wrote on."""

    said: str
    written: str


@dataclass
class Story:
    beginning: str = ""
    turns: list[Turn] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.beginning + "".join(turn.said + turn.written for turn in self.turns)

    def join(self, line: str) -> str:
        """The line as it is added: the model's tokens bring the space before them, so a story never ends with one."""
        line, text = line.strip(), self.text
        if not line or not text or OPENING.search(text) or CLINGING.match(line):
            return line
        return f" {line}"


class Sentences:
    """Says when so many sentences (None: any number) are written. Shows everything up to there, and nothing beyond."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.text = ""
        self.searched = 0  # where the last end was
        self.found = 0
        self.done = False

    def push(self, piece: str) -> str:
        """The part of the piece that belongs to the wanted sentences."""
        shown = len(self.text)
        self.text += piece
        while self.wanted is not None and (end := SENTENCE_END.search(self.text, self.searched)):
            # The full stop of the user's own sentence may come first: that is no sentence of the model's.
            self.found += any(letter.isalnum() for letter in self.text[self.searched : end.start()])
            self.searched = end.end()
            if self.found == self.wanted:
                self.done = True
                self.text = self.text[: end.end()]
                break
        return self.text[shown:]


class Wrap:
    """Text that comes in pieces, on lines of at most `width` columns; a word is shown when it is complete. None: as it is."""

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
            self.space = self.space + word if self.column else ""  # no line begins with the space before its first word
            return ""
        before, self.space = self.space, ""
        if self.column and self.column + cell_len(before + word) > self.width:
            before, self.column = "\n", 0
        self.column += cell_len(before.strip("\n") + word)
        return before + word
