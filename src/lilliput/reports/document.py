"""The blocks of a report: paragraphs, facts, tables, pictures and texts, in sections of one document.

Owns: the blocks. Does not own: their HTML (`html`), their Markdown (`markdown`), the files of a report
(`report_files`), or what a report holds (`run_report`, `studies.study_report`).

All texts in blocks are plain: each form escapes them by its own rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paragraph:
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """Each a few words to begin with, set strong (or none), and the sentence."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class FactList:
    """Names with their values. `large`: the few figures that a page begins with."""

    items: Sequence[tuple[str, str]]
    large: bool = False


@dataclass(frozen=True)
class Entry:
    """What stands in a table: the text, whether it is the best of its column, and a smaller remark under it."""

    text: str
    strong: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Table:
    """The first `heads` columns name the row; the others are figures, and aligned as such."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    caption: str = ""
    note: str = ""
    heads: int = 1


@dataclass(frozen=True)
class Picture:
    """`name` is unique in its document; `svg` is for the page, `png` for Markdown; `alt` says in words what is to be seen."""

    name: str
    svg: str = field(repr=False)
    png: bytes = field(repr=False)
    alt: str
    caption: str


@dataclass(frozen=True)
class Gallery:
    """Pictures that stand beside each other where there is room."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class QuotedText:
    """A text that is shown as it is, with a line above that says what it is. `code`: commands, and not prose."""

    text: str
    about: str = ""
    code: bool = False


Block = Paragraph | Bullets | FactList | Table | Gallery | QuotedText


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class ReportDocument:
    """`lead` is the line under the title, `about` the small one that says what it was made from."""

    title: str
    lead: str
    about: str
    sections: Sequence[Section]


def list_pictures(document: ReportDocument) -> list[Picture]:
    blocks = (block for section in document.sections for block in section.blocks)
    return [picture for block in blocks if isinstance(block, Gallery) for picture in block.pictures]


def as_entry(value: str | Entry) -> Entry:
    return value if isinstance(value, Entry) else Entry(value)


def clean(text: str) -> str:
    """Replace the characters that neither HTML nor Markdown may hold, such as a zero byte, which a model can generate."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
