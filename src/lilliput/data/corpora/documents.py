"""What every reader of documents shares: the document, its label, and what may be neither.

Owns: `Document`, `Reading` (documents that are read together), the checks of a text and of a label, and
leaving out what is empty. Does not own: where documents come from (`formats`, `loaders`, `hub`) or which
split they go to (`corpora`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lilliput.errors import UserError

END_OF_TEXT = "<|endoftext|>"
LONGEST_LABEL = 100  # characters
MOST_LABELS = 1_000

Notice = Callable[[], None]


class Document(NamedTuple):
    text: str
    label: str | None = None


Reader = Callable[[Notice], Iterator[Document]]


def ignore() -> None:
    """For callers who do not count empty documents."""


@dataclass(frozen=True)
class Reading:
    """Documents that are read together, from their beginning whenever they are asked for."""

    files: list[Path]  # whose content decides the documents
    describe: str  # what was found, and what was guessed
    size: int  # about how many bytes of text, at most; 0 where nobody knows
    read: Reader = field(repr=False)


class Labels:
    """The labels that a source has used so far: a column of something else is noticed before it has been read whole."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def take(self, label: object, place: Callable[[], str]) -> str:
        """A label as text, or a refusal; `place` is asked only then."""
        if isinstance(label, bool) or not isinstance(label, str | int):
            what = (
                "the label is missing"
                if label is None
                else f"the label must be a string or an integer, got {type(label).__name__}"
            )
            fix = "set data.label_field to the field of the labels"
            raise UserError(what, place(), fix=fix, code="data.label", setting="data.label_field")
        name = label.strip() if isinstance(label, str) else str(label)
        fix = "set data.label_field to the column of the labels"
        if not name:
            fix = "give each text a label, or set data.labelled to false"
            raise UserError("the label is empty", place(), fix=fix, code="data.label", setting="data.labelled")
        if len(name) > LONGEST_LABEL:
            what = f"the label has {len(name):,} characters, at most {LONGEST_LABEL:,} are allowed: {name[:30]!r}…"
            raise UserError(what, place(), fix=fix, code="data.label", setting="data.label_field")
        if name not in self.seen:
            if len(self.seen) == MOST_LABELS:
                what = f"more than {MOST_LABELS:,} different labels, the last is {name!r}"
                raise UserError(what, place(), fix=fix, code="data.label", setting="data.label_field")
            self.seen.add(name)
        return name


def check_text(text: str, name: str, place: Callable[[], str]) -> str:
    """The text itself, unless no file could hold it: JSON and Python have strings that are no Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"{name} contains half of a surrogate pair, \\u{ord(text[error.start]):04x}, which is not valid Unicode"
        raise UserError(what, place(), fix="correct the program that wrote it", code="file.not-utf8") from error
    return text


def without_empty(documents: Iterable[Document], on_empty: Notice) -> Iterator[Document]:
    """Documents stripped of surrounding white space; `on_empty` hears of those that were nothing else.

    Line ends inside a document stay as they are: decoding then gives the user's own text back, and bits per byte keep
    counting the user's own bytes. Only what surrounds a document goes, CR included.
    """
    for document in documents:
        if stripped := document.text.strip():
            yield Document(stripped, document.label)
        else:
            on_empty()
