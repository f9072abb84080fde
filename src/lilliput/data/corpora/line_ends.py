"""Line ends: CRLF (Windows) and CR (old Macintosh) become LF, so that equal documents are equal texts.

Owns: replacing line ends, and counting the bytes that this removes: bits per byte divide by the bytes of the original
text. Does not own: when it is done (`corpora`), or splitting a file at line ends (`decompression`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lilliput.data.corpora.documents import Document

LINE_END = re.compile("\r\n|\r|\n")


def normalise(document: Document) -> Document:
    """Return the document with LF for each CRLF and CR."""
    text = document.text
    if "\r" not in text:
        return document
    normal = text.replace("\r\n", "\n").replace("\r", "\n")
    return Document(normal, document.label, text.count("\r"), text.count("\r\n"))


def keep(document: Document) -> Document:
    return document


LINE_ENDS: dict[str, Callable[[Document], Document]] = {"normalise": normalise, "keep": keep}


def counted_parts(original: Document, first: str, second: str) -> tuple[Document, Document]:
    """Return two parts of a document with their counts. `first` is a start and `second` an end of its (normalised) text.

    So the line ends of `first` are the first ones of the original text, and those of `second` the last ones.
    """
    found = [end.group() for end in LINE_END.finditer(original.text)] if "\r" in original.text else []
    if "\r" in first or "\r" in second:  # not normalised
        found = []
    return (
        _counted(first, original.label, found[: first.count("\n")]),
        _counted(second, original.label, found[len(found) - second.count("\n") :] if found else []),
    )


def _counted(text: str, label: str | None, ends: list[str]) -> Document:
    return Document(text, label, len(ends) - ends.count("\n"), ends.count("\r\n"))
