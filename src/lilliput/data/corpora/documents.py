"""Documents and labels, as all readers return them.

Owns: `Document`, `Reading` (documents that are read together), the checks of a text and of a label, and removing empty
documents. Does not own: sources (`formats`, `loaders`, `hub`) or splits (`corpora`).
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
    replaced: int = 0  # line ends that were CRLF or CR
    removed: int = 0  # bytes that this removed from the original text


Reader = Callable[[Notice], Iterator[Document]]


def ignore() -> None:
    """Ignore an empty document."""


@dataclass(frozen=True)
class Reading:
    """Documents that are read together. Each call of `read` starts at the first."""

    files: list[Path]  # whose content determines the documents
    describe: str  # what was found, and what was guessed
    size: int  # upper estimate of the bytes of text; 0 if unknown
    read: Reader = field(repr=False)


class Labels:
    """The labels of a source so far. Too many or too long labels (a wrong column) raise early."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def take(self, label: object, place: Callable[[], str]) -> str:
        """Return the label as text, or raise. `place` returns the place for the error."""
        if isinstance(label, bool) or not isinstance(label, str | int):
            kind = "nothing" if label is None else type(label).__name__
            what = f"the label must be a string or an integer (got {kind})"
            fix = "set data.label_field to the field of the labels"
            raise UserError(what, place(), fix=fix, code="data.label", setting="data.label_field")
        name = label.strip() if isinstance(label, str) else str(label)
        fix = "set data.label_field to the column of the labels"
        if not name:
            fix = "give each text a label, or set data.labelled to false"
            raise UserError("the label is empty", place(), fix=fix, code="data.label", setting="data.labelled")
        if len(name) > LONGEST_LABEL:
            what = f"a label must have at most {LONGEST_LABEL:,} characters (got {len(name):,}: {name[:30]!r}…)"
            raise UserError(what, place(), fix=fix, code="data.label", setting="data.label_field")
        if name not in self.seen:
            if len(self.seen) == MOST_LABELS:
                what = f"a source must have at most {MOST_LABELS:,} different labels (got one more: {name!r})"
                raise UserError(what, place(), fix=fix, code="data.label", setting="data.label_field")
            self.seen.add(name)
        return name


def check_text(text: str, name: str, place: Callable[[], str]) -> str:
    """Return the text; raise if it is not valid Unicode, which strings of JSON and Python need not be."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"{name} must be valid Unicode (got the unpaired surrogate \\u{ord(text[error.start]):04x})"
        raise UserError(what, place(), fix="correct the program that wrote it", code="file.not-utf8") from error
    return text


def without_empty(documents: Iterable[Document], on_empty: Notice) -> Iterator[Document]:
    """Yield the documents without surrounding white space; call `on_empty` for those that are empty then."""
    for document in documents:
        if stripped := document.text.strip():
            yield Document(stripped, document.label)
        else:
            on_empty()
