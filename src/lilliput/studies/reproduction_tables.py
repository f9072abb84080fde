"""Tables of a reproduction: published, ours, difference; a line of the checklist for each; published functions of heads.

Owns: their layout, the marks of doubtful values, the format of differences. Does not own: values (`reproduction_values`), other
sections (`reproduction_blocks`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lilliput.interpret.head_score_definitions import FUNCTIONS
from lilliput.reports.document import Block, Bullets, Entry, Table
from lilliput.reports.formatting import counted, fixed, listed
from lilliput.reports.head_section import score_text
from lilliput.studies.reproduction_files import Column, Doubt, HeadsItem, TableItem
from lilliput.studies.reproduction_values import Compared

NOTHING = "–"
LINES = ("published", "ours", "difference")
SIDE_BY_SIDE = 2  # columns whose three values fit next to each other; more have three lines per row

Marks = Sequence[tuple[int, Doubt]]  # doubts with their numbers


def table_blocks(table: TableItem, rows: Sequence[Sequence[Compared]], doubts: Marks) -> list[Block]:
    """Return the published table next to ours, and the doubts about it."""
    layout = side_by_side if len(table.columns) <= SIDE_BY_SIDE else three_lines
    own = [(number, doubt) for number, doubt in doubts if doubt.item == table.title]
    return [layout(table, rows, own), *doubt_list(table.title, doubts)]


def doubt_list(title: str | None, doubts: Marks) -> list[Block]:
    """List the doubts about an item; of the title None, those about the report."""
    own = [(f"[{number}]", doubt.reason) for number, doubt in doubts if doubt.item == title]
    return [Bullets(own)] if own else []


def side_by_side(table: TableItem, rows: Sequence[Sequence[Compared]], doubts: Marks) -> Table:
    heads = [head for column in table.columns for head in (f"{column.name}, {LINES[0]}", *LINES[1:])]
    lines: list[list[str | Entry]] = []
    for row, compared in zip(table.rows, rows, strict=True):
        line: list[str | Entry] = [row.name]
        for one in compared:
            line += [published_text(one, doubts), Entry(ours_text(one), strong=True), difference_text(one)]
        lines.append(line)
    return Table([table.first, *heads], lines, caption=caption(table, doubts), note=table_note(table, rows))


def three_lines(table: TableItem, rows: Sequence[Sequence[Compared]], doubts: Marks) -> Table:
    lines: list[list[str | Entry]] = []
    for row, compared in zip(table.rows, rows, strict=True):
        lines.append([row.name, LINES[0], *(published_text(one, doubts) for one in compared)])
        if any(one.ours.value is not None for one in compared):
            lines.append(["", LINES[1], *(Entry(ours_text(one), strong=True) for one in compared)])
            lines.append(["", LINES[2], *map(difference_text, compared)])
    columns = [table.first, "", *(column.name for column in table.columns)]
    return Table(columns, lines, caption=caption(table, doubts), note=table_note(table, rows), heads=2)


def caption(table: TableItem, doubts: Marks) -> str:
    marks = [f"[{number}]" for number, doubt in doubts if doubt.row is None and doubt.column is None]
    return " ".join([table.place, *marks])


def table_note(table: TableItem, rows: Sequence[Sequence[Compared]]) -> str:
    """Return the note of the file and the reasons of missing values."""
    reasons = dict.fromkeys(one.ours.reason for row in rows for one in row if one.ours.reason)
    missing = f"Reasons for missing values of ours: {listed(list(reasons))}." if reasons else ""
    return " ".join(filter(None, (table.note, missing)))


def heads_table(item: HeadsItem, measured: Sequence[Mapping[str, Any]]) -> Table:
    """Return the published function of each head of the layer next to our pattern and the scores of that function."""
    heads = [one for one in measured if one["layer"] == item.layer]
    rows = []
    for number, (name, one) in enumerate(zip(item.published, heads, strict=True), start=1):
        score = one["scores"][name]
        known = [other for other in heads if other["scores"][name] is not None]
        best = max(known, key=lambda other: other["scores"][name]["score"], default=None)
        rows.append(
            [
                f"{number} (ours {one['head']})",
                FUNCTIONS[name].title,
                FUNCTIONS[one["pattern"]].title if one["pattern"] in FUNCTIONS else one["pattern"],
                score_text(score),
                NOTHING if score is None else fixed(max(score["even"], score["position"] or 0.0), 2),
                NOTHING if best is None else f"{best['head']}: {score_text(best['scores'][name])}",
            ]
        )
    equal = sum(name == one["pattern"] for name, one in zip(item.published, heads, strict=True))
    columns = ["head", "published function", "our pattern", "score, ours", "baseline", "highest in the layer, ours"]
    note = (
        f"Heads of layer {item.layer}. Score: our head's score for the published function. Baseline: the larger score of two "
        "comparison heads, one with equal weights on all visible tokens and one that attends to each distance as much as our "
        "head does on average. An asterisk marks a score that is significantly higher than both. The order of heads in a layer "
        "is arbitrary and differs between trainings. Therefore the last column names the head of our layer with the highest "
        "score for the published function, and this score."
    )
    caption = f"{item.place}: {equal} of {counted(len(heads), 'head')} with the published function as pattern"
    return Table(columns, rows, caption=caption, note=note, texts=columns[1:3])


# Texts of one cell


def published_text(one: Compared, doubts: Marks) -> str:
    if one.published is None:
        return NOTHING
    text = one.published if isinstance(one.published, str) else format_number(one.published, one.column)
    marks = [f"[{number}]" for number, doubt in doubts if is_marked(one, doubt)]
    return " ".join([text, *marks])


def is_marked(one: Compared, doubt: Doubt) -> bool:
    """Return whether a doubt about rows or columns of a table is about this cell."""
    named = (doubt.row, one.row.name), (doubt.column, one.column.name)
    return (doubt.row or doubt.column) is not None and all(wanted in (None, name) for wanted, name in named)


def ours_text(one: Compared) -> str:
    return NOTHING if one.ours.value is None else format_number(one.ours.value, one.column)


def format_number(value: float, column: Column) -> str:
    return fixed(value, column.digits)


def difference_text(one: Compared) -> str:
    return NOTHING if one.difference is None else format_difference(one.difference, one.column)


def format_difference(difference: float, column: Column) -> str:
    """Format a difference: points, a percentage, or a factor if one value is at least twice the other."""
    if not difference:
        return "equal"
    if column.points:
        return fixed(difference, column.digits, "+")
    ratio = 1.0 + difference
    if ratio >= 10.0:
        return f"{ratio:,.0f}x"
    return f"{ratio:.2g}x" if ratio >= 2.0 or ratio <= 0.5 else fixed(100 * difference, 1, "+") + "%"


# Checklist


def summarise_table(rows: Sequence[Sequence[Compared]]) -> tuple[str, str]:
    """Return the state of a table (produced, partly, not produced) and its differences or the reason."""
    wanted = [one for row in rows for one in row if one.published is not None]
    found = [one for one in wanted if one.ours.value is not None]
    reasons = dict.fromkeys(one.ours.reason for one in wanted if one.ours.reason)
    state = "produced" if len(found) == len(wanted) else "partly" if found else "not produced"
    texts = [differences_text(found)] if found else []
    if reasons:
        texts.append(f"{counted(len(wanted) - len(found), 'value')} of ours missing: {listed(list(reasons))}")
    return state, "; ".join(texts)


def differences_text(found: Sequence[Compared]) -> str:
    """Return the median and the largest difference, of relative ones and of points."""
    texts = []
    for points in (False, True):
        known = [
            (abs(one.difference), one) for one in found if one.difference is not None and one.column.points == points
        ]
        if known:
            middle = statistics.median(size for size, _ in known)
            size, one = max(known, key=lambda pair: pair[0])
            if not size:
                texts.append(f"{counted(len(known), 'value')}: equal")
                continue
            shown = f"{middle:.1f} points" if points else f"{100 * middle:,.{0 if middle >= 1.0 else 1}f}%"
            cell = f"{one.row.name}, {one.column.name}"
            texts.append(
                f"{counted(len(known), 'value')}: median difference {shown}, largest {difference_text(one)} ({cell})"
            )
    return "; ".join(texts) or f"{counted(len(found), 'value')}, not compared"
