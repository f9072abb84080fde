"""HTML of a report: one self-contained file with inlined `assets/report.css`, without scripts or external links.

Owns: the HTML of each block, which is also well-formed XML. Does not own: the blocks (`document`).
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources

from lilliput.reports.document import (
    Block,
    Bullets,
    Entry,
    FactList,
    Gallery,
    Paragraph,
    Picture,
    QuotedText,
    ReportDocument,
    Section,
    Table,
    as_entry,
    clean,
)

LONG = 22  # characters; longer row names may wrap


def to_html(document: ReportDocument) -> str:
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
        case FactList():
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
    kinds = table.kinds()
    head = "".join(
        f'<th scope="col" class="{kind}">{escaped(column)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    body = "\n".join(row_html(row, kinds) for row in table.rows)
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    note = f'\n<p class="note">{escaped(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escaped(table.caption or "table")}">\n'
        f"<table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>{note}"
    )


def row_html(row: Sequence[str | Entry], kinds: Sequence[str]) -> str:
    cells = []
    for entry, kind in zip(map(as_entry, row), kinds, strict=True):
        remark = f"<small>{escaped(entry.remark)}</small>" if entry.remark else ""
        text = f"<strong>{escaped(entry.text)}</strong>" if entry.strong else escaped(entry.text)
        long = " long" if kind == "name" and len(entry.text) > LONG else ""
        tag, scope = ("th", ' scope="row"') if kind == "name" else ("td", "")
        cells.append(f'<{tag}{scope} class="{kind}{long}">{text}{remark}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"


def picture_html(picture: Picture) -> str:
    svg = picture.svg.replace("<svg ", f'<svg role="img" aria-label="{escaped(picture.alt)}" ', 1)
    return f'<figure id="{escaped(picture.name)}">{svg}<figcaption>{escaped(picture.caption)}</figcaption></figure>'


def escaped(text: str) -> str:
    return html.escape(clean(text))
