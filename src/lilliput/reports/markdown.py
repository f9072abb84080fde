"""The Markdown of a report: tables of the kind that GitHub, GitLab and pandoc read, pictures as PNG files.

Owns: the Markdown of each block. Does not own: the blocks (`document`) or the files of the pictures (`report_files`).
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
        case FactList():
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
