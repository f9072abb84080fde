"""A document of a few kinds of blocks, and its two forms: one self-contained HTML file, and Markdown.

Owns: the blocks, their HTML (with `assets/report.css` inlined: no script, no address outside the file) and
their Markdown. Does not own: what a document says (`studies.study_report`, `run_report`) or how a picture is
drawn (`studies.study_plots`).

All texts in blocks are plain: what they hold is escaped here, for each form by its own rules.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from lilliput.errors import UserError
from lilliput.storage import atomic_files as files

REPORT = "report.html"  # name of the page in the folder of a run or a study
LONG = 22  # letters of a row's name that stand in one line


@dataclass(frozen=True)
class Paragraph:
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """Each a few words to begin with, set strong (or none), and the sentence."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Facts:
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


Block = Paragraph | Bullets | Facts | Table | Gallery | QuotedText


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """`lead` is the line under the title, `about` the small one that says what it was made from."""

    title: str
    lead: str
    about: str
    sections: Sequence[Section]


def write_document(document: Document, path: Path) -> tuple[Path, Path]:
    """The page at `path`, and beside it the Markdown with a folder of its pictures. Gives the places of both."""
    markdown = path.with_suffix(".md")
    folder = path.with_name(f"{path.stem}-figures")
    pictures = list_pictures(document)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if pictures:
            folder.mkdir(exist_ok=True)
            for old in folder.glob("*.png"):  # of an earlier report, which had others
                old.unlink()
    except OSError as error:
        raise files.cannot_write(error, path) from error
    for picture in pictures:
        files.write_whole(folder / f"{picture.name}.png", picture.png)
    files.write_whole(markdown, to_markdown(document, folder.name).encode("utf-8"))
    files.write_whole(path, to_html(document).encode("utf-8"))
    return path, markdown


def check_place(path: Path) -> None:
    """Refused before any work is done."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out is {str(path)!r}: a report is an .html file", fix=f"--out {path.with_suffix('.html')}")
    if path.is_dir():
        raise UserError(f"--out is {str(path)!r}: that is a folder", fix=f"--out {path / 'report.html'}")
    blocker = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None)
    if blocker:
        raise UserError(f"--out is {str(path)!r}: {blocker} is a file, not a folder", fix=f"--out {path.name}")


def list_pictures(document: Document) -> list[Picture]:
    blocks = (block for section in document.sections for block in section.blocks)
    return [picture for block in blocks if isinstance(block, Gallery) for picture in block.pictures]


# HTML: also well-formed XML, so that any reader of either can read it ---------------------------------------------------


def to_html(document: Document) -> str:
    style = resources.files("lilliput.reports").joinpath("assets/report.css").read_text("utf-8")
    sections = "\n".join(section_html(section) for section in document.sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="color-scheme" content="light dark"/>\n'
        f"<title>{escaped(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n<header>\n"
        f'<h1>{escaped(document.title)}</h1>\n<p class="lead">{escaped(document.lead)}</p>\n'
        f'<p class="about">{escaped(document.about)}</p>\n</header>\n{sections}\n</main>\n</body>\n</html>\n'
    )


def section_html(section: Section) -> str:
    blocks = "\n".join(block_html(block) for block in section.blocks)
    return f"<section>\n<h2>{escaped(section.title)}</h2>\n{blocks}\n</section>"


def block_html(block: Block) -> str:
    match block:
        case Paragraph():
            return f'<p class="{"warning" if block.warning else "plain"}">{escaped(block.text)}</p>'
        case Bullets():
            items = (f"<li>{strong_html(lead)}{escaped(rest)}</li>" for lead, rest in block.items)
            return "<ul>\n" + "\n".join(items) + "\n</ul>"
        case Facts():
            items = (f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in block.items)
            return f'<dl class="{"large" if block.large else "facts"}">\n' + "\n".join(items) + "\n</dl>"
        case Table():
            return table_html(block)
        case Gallery():
            return '<div class="gallery">\n' + "\n".join(map(picture_html, block.pictures)) + "\n</div>"
        case QuotedText():
            about = f"<figcaption>{escaped(block.about)}</figcaption>" if block.about else ""
            kind = "code" if block.code else "prose"
            return f'<figure class="text">{about}<pre class="{kind}">{escaped(block.text)}</pre></figure>'


def strong_html(lead: str) -> str:
    return f"<strong>{escaped(lead)}</strong> " if lead else ""


def table_html(table: Table) -> str:
    kinds = ["name" if at < table.heads else "figure" for at in range(len(table.columns))]
    head = "".join(
        f'<th scope="col" class="{kind}">{escaped(column)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    body = "\n".join(row_html(row, table.heads) for row in table.rows)
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    note = f'\n<p class="note">{escaped(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(table.caption or "table")}">\n'
        f"<table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>{note}"
    )


def row_html(row: Sequence[str | Entry], heads: int) -> str:
    cells = []
    for at, entry in enumerate(map(as_entry, row)):
        remark = f"<small>{escaped(entry.remark)}</small>" if entry.remark else ""
        text = f"<strong>{escaped(entry.text)}</strong>" if entry.strong else escaped(entry.text)
        kind = "name long" if len(entry.text) > LONG else "name"
        opening, closing = (f'th scope="row" class="{kind}"', "th") if at < heads else ('td class="figure"', "td")
        cells.append(f"<{opening}>{text}{remark}</{closing}>")
    return f"<tr>{''.join(cells)}</tr>"


def picture_html(picture: Picture) -> str:
    svg = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{escaped(picture.alt)}" ', 1)
    return f'<figure id="{escaped(picture.name)}">{svg}<figcaption>{escaped(picture.caption)}</figcaption></figure>'


def escaped(text: str) -> str:
    return html.escape(clean(text))


def clean(text: str) -> str:
    """Without what no page may hold: a form feed or a zero byte, which a model may well write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


# Markdown: tables of the kind that GitHub, GitLab and pandoc read --------------------------------------------------------


def to_markdown(document: Document, figures: str) -> str:
    parts = [f"# {marked(document.title)}", marked(document.lead), f"*{marked(document.about)}*"]
    for section in document.sections:
        parts += [f"## {marked(section.title)}", *(block_markdown(block, figures) for block in section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def block_markdown(block: Block, figures: str) -> str:
    match block:
        case Paragraph():
            return f"**{marked(block.text)}**" if block.warning else marked(block.text)
        case Bullets():
            return "\n".join(
                f"- **{marked(lead)}** {marked(rest)}" if lead else f"- {marked(rest)}" for lead, rest in block.items
            )
        case Facts():
            return "\n".join(f"- {marked(name)}: {marked(value)}" for name, value in block.items)
        case Table():
            return table_markdown(block)
        case Gallery():
            return "\n\n".join(
                f"![{marked(one.alt)}]({quote(figures)}/{one.name}.png)\n\n{marked(one.caption)}"
                for one in block.pictures
            )
        case QuotedText():
            about = f"{marked(block.about)}\n\n" if block.about else ""
            return about + (fenced(block.text) if block.code else quoted(block.text))


def table_markdown(table: Table) -> str:
    rule = ["---" if at < table.heads else "---:" for at in range(len(table.columns))]
    lines = [row_markdown(table.columns), f"| {' | '.join(rule)} |", *map(row_markdown, table.rows)]
    parts = [f"**{marked(table.caption)}**" if table.caption else "", "\n".join(lines), marked(table.note)]
    return "\n\n".join(part for part in parts if part)


def row_markdown(row: Sequence[str | Entry]) -> str:
    cells = []
    for entry in map(as_entry, row):
        text = f"**{marked(entry.text)}**" if entry.strong else marked(entry.text)
        cells.append((f"{text} ({marked(entry.remark)})" if entry.remark else text).replace("\n", " "))
    return f"| {' | '.join(cells)} |"


def quoted(text: str) -> str:
    return "\n".join(f"> {marked(line)}".rstrip() + ("  " if line.strip() else "") for line in text.splitlines())


def fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{clean(text)}\n{fence}"


def marked(text: str) -> str:
    """Plain text, whatever signs of Markdown it holds; `_` inside a word means nothing there and stays readable."""
    text = re.sub(r"([\\`*<|\[\]])", r"\\\1", clean(text))
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return re.sub(r"^(\s*\d*)([#>+.)-])(?=\s|$)", r"\1\\\2", text)


def as_entry(value: str | Entry) -> Entry:
    return value if isinstance(value, Entry) else Entry(value)
