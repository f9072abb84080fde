"""Tables of rich as plain text and as HTML, and whole pages in a frame, for `print` and notebooks.

Owns: the conversion, in which every text is escaped. Does not own: the tables (`evaluation_tables`) or the pages
(`interpret.attention_page`, `reports.html`).
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 100  # columns of a printed table


def as_text(parts: Iterable[RenderableType]) -> str:
    """Return tables and sentences as plain text."""
    file = io.StringIO()
    console = Console(
        file=file, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False, highlight=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_html(parts: Iterable[RenderableType]) -> str:
    """Return the same content as HTML."""
    return f'<div class="lilliput">{"".join(map(part_html, parts))}</div>'


def part_html(part: RenderableType) -> str:
    if isinstance(part, Group):
        return "".join(map(part_html, part.renderables))
    if isinstance(part, Table):
        return table_html(part)
    return f"<p>{cell_html(part)}</p>"


def table_html(table: Table) -> str:
    head = ""
    sides = ["right" if column.justify == "right" else "left" for column in table.columns]
    if table.show_header:
        names = (cell_html(column.header) for column in table.columns)
        head = f"<thead><tr>{''.join(f'<th{side(at)}>{name}</th>' for at, name in zip(sides, names, strict=True))}</tr></thead>"
    rows = []
    for number, cells in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        strong = "bold" in str(table.rows[number].style or "")
        texts = (f"<strong>{cell_html(cell)}</strong>" if strong else cell_html(cell) for cell in cells)
        rows.append(f"<tr>{''.join(f'<td{side(at)}>{text}</td>' for at, text in zip(sides, texts, strict=True))}</tr>")
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def side(align: str) -> str:
    return f' style="text-align: {align}"'


def cell_html(cell: RenderableType) -> str:
    plain = cell if isinstance(cell, Text) else Text.from_markup(str(cell))
    return html.escape(plain.plain)


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a column per key; numbers are right-aligned and have four decimals."""
    table = Table(box=None, pad_edge=False)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(format_cell(row.get(column))) for column in columns))
    return table


def format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def framed(page: str, height: int, scripts: bool) -> str:
    """Return a page in a frame. It has no access to the notebook; `scripts`: whether its own scripts run."""
    allowed = "allow-scripts" if scripts else ""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="{allowed}" '
        f'style="width: 100%; height: {height}px; border: 0" loading="lazy"></iframe>'
    )
