"""The blocks of a report: paragraphs, facts, tables, pictures and quoted texts, in sections of one document.

Owns: the blocks. Does not own: their HTML (`html`), their Markdown (`markdown`), the files of a report
(`report_files`), or the content of a report (`run_report`, `studies.study_report`).

All texts in blocks are plain text; each output format escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True)
class Paragraph:
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """Items of a bold lead (or an empty string) and a sentence."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class FactList:
    """Names and values. `large`: the main metrics at the top of a page."""

    items: Sequence[tuple[str, str]]
    large: bool = False


@dataclass(frozen=True)
class Entry:
    """A table cell: its text, whether it is bold, and a small remark below it."""

    text: str
    strong: bool = False
    remark: str = ""


@dataclass(frozen=True)
class Table:
    """The first `heads` columns name the row, the columns called `texts` hold phrases or texts; both are left-aligned. All
    others are right-aligned numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Entry]]
    caption: str = ""
    note: str = ""
    heads: int = 1
    texts: Collection[str] = ()

    def kinds(self) -> list[Literal["name", "text", "figure"]]:
        """Return the kind of each column."""
        return [
            "name" if at < self.heads else "text" if column in self.texts else "figure"
            for at, column in enumerate(self.columns)
        ]


@dataclass(frozen=True)
class Picture:
    """`name` is unique in its document; `svg` is for HTML, `png` for Markdown; `alt` describes the picture in words."""

    name: str
    svg: str = field(repr=False)
    png: bytes = field(repr=False)
    alt: str
    caption: str


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side, if the page is wide enough."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class QuotedText:
    """A text shown verbatim, with a caption `about` above it. `code`: commands instead of prose."""

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
    """`lead` is the line under the title, `about` a small line with the origin of the report."""

    title: str
    lead: str
    about: str
    sections: Sequence[Section]


def renamed(picture: Picture, name: str) -> Picture:
    """Return the picture with another name, which also begins the ids in its SVG."""
    svg = re.sub(rf'\b(id="|href="#|url\(#){re.escape(picture.name)}-', rf"\g<1>{name}-", picture.svg)
    return replace(picture, name=name, svg=svg)


def list_pictures(document: ReportDocument) -> list[Picture]:
    blocks = (block for section in document.sections for block in section.blocks)
    return [picture for block in blocks if isinstance(block, Gallery) for picture in block.pictures]


def as_entry(value: str | Entry) -> Entry:
    return value if isinstance(value, Entry) else Entry(value)


def clean(text: str) -> str:
    """Replace characters that are invalid in HTML and Markdown, such as a zero byte, which a model can generate."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
