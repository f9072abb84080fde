"""A story that a user and a model write in turns.

Owns: the turns, how a line is joined to the text before it, and where a sentence ends. Does not own: input and
output (`cli.chat`), nor generation (`decoding.writer`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Closing quotes and brackets belong to the sentence; white space after it shows that it has ended (3.5 is no end).
SENTENCE_END = re.compile(r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)[.!?…]+[\"'”’)\]]*(?=\s)")
CLINGING = re.compile(r"[\s.,;:!?…)\]’”']")  # a line that begins so needs no space before it
OPENING = re.compile(r"[\s(\[“‘]\Z")  # nor one after this


@dataclass(frozen=True)
class Turn:
    """What the user added, with the space that joins it, and how the model continued."""

    added: str
    written: str


@dataclass
class Story:
    beginning: str = ""
    turns: list[Turn] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.beginning + "".join(turn.added + turn.written for turn in self.turns)

    def join(self, line: str) -> str:
        """The line as it is added: the model's tokens bring the space before them, so a story never ends with one."""
        line, text = line.strip(), self.text
        if not line or not text or OPENING.search(text) or CLINGING.match(line):
            return line
        return f" {line}"


class SentenceBuffer:
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
