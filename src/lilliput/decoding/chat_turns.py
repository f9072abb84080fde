"""The text of a chat: a story that a user and a model continue in turns.

Owns: the turns, the space between a line and the text before it, and the end of a sentence. Does not own: input and
output (`cli.chat`) or generation (`decoding.writer`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Closing quotes and brackets belong to the sentence. White space must follow: the point in 3.5 ends no sentence.
SENTENCE_END = re.compile(r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)[.!?…]+[\"'”’)\]]*(?=\s)")
CLINGING = re.compile(r"[\s.,;:!?…)\]’”']")  # no space before a line that begins with one of these
OPENING = re.compile(r"[\s(\[“‘]\Z")  # no space after a text that ends with one of these


@dataclass(frozen=True)
class Turn:
    """The text that the user added, including the joining space, and the text that the model generated."""

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
        """Return the line, with a space before it if needed. A story never ends with a space: tokens include their own."""
        line, text = line.strip(), self.text
        if not line or not text or OPENING.search(text) or CLINGING.match(line):
            return line
        return f" {line}"


class SentenceBuffer:
    """Passes text on until `wanted` sentences (None: no limit) are complete, and drops the rest."""

    def __init__(self, wanted: int | None) -> None:
        self.wanted = wanted
        self.text = ""
        self.searched = 0  # the end of the last sentence
        self.found = 0
        self.done = False

    def push(self, piece: str) -> str:
        """Return the part of the piece that belongs to the wanted sentences."""
        shown = len(self.text)
        self.text += piece
        while self.wanted is not None and (end := SENTENCE_END.search(self.text, self.searched)):
            # A full stop without a word before it ends the user's sentence, not one of the model.
            self.found += any(letter.isalnum() for letter in self.text[self.searched : end.start()])
            self.searched = end.end()
            if self.found == self.wanted:
                self.done = True
                self.text = self.text[: end.end()]
                break
        return self.text[shown:]
