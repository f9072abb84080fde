"""Markdown of a report: tables for GitHub, GitLab and pandoc, pictures as PNG files.

Owns: the Markdown of each block. Does not own: the blocks (`document`) or the picture files (`report_files`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from lilliput.reports.document import (
    Block,
    Bullets,
    Entry,
    FactList,
    Gallery,
    Paragraph,
    QuotedText,
    ReportDocument,
    Table,
    as_entry,
    clean,
)


def to_markdown(document: ReportDocument, figures: str) -> str:
    parts = [f"# {escaped(document.title)}", escaped(document.lead), f"*{escaped(document.about)}*"]
    for section in document.sections:
        parts += [f"## {escaped(section.title)}", *(block_markdown(block, figures) for block in section.blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def block_markdown(block: Block, figures: str) -> str:
    match block:
        case Paragraph():
            return f"**{escaped(block.text)}**" if block.warning else escaped(block.text)
        case Bullets():
            return "\n".join(
                f"- **{escaped(lead)}** {escaped(rest)}" if lead else f"- {escaped(rest)}" for lead, rest in block.items
            )
        case FactList():
            return "\n".join(f"- {escaped(name)}: {escaped(value)}" for name, value in block.items)
        case Table():
            return table_markdown(block)
        case Gallery():
            return "\n\n".join(
                f"![{escaped(one.alt)}]({quote(figures)}/{one.name}.png)\n\n{escaped(one.caption)}"
                for one in block.pictures
            )
        case QuotedText():
            about = f"{escaped(block.about)}\n\n" if block.about else ""
            return about + (fenced(block.text) if block.code else quoted(block.text))


def table_markdown(table: Table) -> str:
    rule = ["---:" if kind == "figure" else "---" for kind in table.kinds()]
    lines = [row_markdown(table.columns), f"| {' | '.join(rule)} |", *map(row_markdown, table.rows)]
    parts = [f"**{escaped(table.caption)}**" if table.caption else "", "\n".join(lines), escaped(table.note)]
    return "\n\n".join(part for part in parts if part)


def row_markdown(row: Sequence[str | Entry]) -> str:
    cells = []
    for entry in map(as_entry, row):
        text = f"**{escaped(entry.text)}**" if entry.strong else escaped(entry.text)
        cells.append((f"{text} ({escaped(entry.remark)})" if entry.remark else text).replace("\n", " "))
    return f"| {' | '.join(cells)} |"


def quoted(text: str) -> str:
    return "\n".join(f"> {escaped(line)}".rstrip() + ("  " if line.strip() else "") for line in text.splitlines())


def fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{clean(text)}\n{fence}"


def escaped(text: str) -> str:
    """Escape Markdown syntax; `_` inside a word has no meaning there and is kept."""
    text = re.sub(r"([\\`*<|\[\]])", r"\\\1", clean(text))
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return re.sub(r"^(\s*\d*)([#>+.)-])(?=\s|$)", r"\1\\\2", text)
