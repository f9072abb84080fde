"""Tables of a study: all cells at a glance, and each figure in full.

Owns: which rows and columns there are, and what is set strong. Does not own: the statistics (`comparison`),
how numbers read (`study_verdict`), and HTML or Markdown (`reports.html`, `reports.markdown`).

Strong is only what is surely the best of its column: better than every other cell, paired by seed. A tie for
the best has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from lilliput.reports.document import Entry, Table
from lilliput.reports.formatting import capital, listed
from lilliput.studies.comparison import (
    Difference,
    Labels,
    axis_labels,
    cell_labels,
    compare,
    compared_axes,
    find_best,
    reference_labels,
    summarise_cell,
    what_differs,
)
from lilliput.studies.study_metrics import Figure, find_figure
from lilliput.studies.study_results import StudyResult
from lilliput.studies.study_verdict import comparative, name_cell, number, reach, share, shown_figures, signed, spread

NOTHING = "–"
ABREAST = 6  # figures beside each other that a page has room for
DIRECTIONS = {"lower": "lower is better", "higher": "higher is better", None: ""}


def overview_table(result: StudyResult) -> Table:
    """A row for each cell, a column for each figure that is shown; turned where the figures are too many for that."""
    names = shown_figures(result)
    note = table_note(result, names)
    if len(names) > ABREAST and len(cell_labels(result)) < len(names):
        return turned_table(result, names, note)
    return cells_table(result, names, "", note)


def other_figures_table(result: StudyResult) -> Table | None:
    """The figures that were measured and are not shown, turned: a row for each figure."""
    shown = shown_figures(result)
    names = dict.fromkeys(name for row in result.rows for name in row.figures if name not in shown)
    if not names:
        return None
    note = f"{table_note(result, list(names))} Every single value is in table.csv."
    return turned_table(result, sorted(names), note)


def turned_table(result: StudyResult, names: Sequence[str], note: str) -> Table:
    """A row for each figure, a column for each cell."""
    cells = cell_labels(result)
    rows: list[list[str | Entry]] = [["n", *(str(count_seeds(result, cell)) for cell in cells)]]
    for name in names:
        best = surely_best(result, name)
        rows.append(
            [column_title(find_figure(name)), *(figure_entry(result, cell, name, best == cell) for cell in cells)]
        )
    return Table(["", *map(name_cell, cells)], rows, note=note)


def table_note(result: StudyResult, names: Sequence[str]) -> str:
    """What the entries of a table of these figures are, and what is strong among them."""
    if len({row.seed for row in result.rows}) == 1:
        return "One seed."
    entries = "Mean ± standard deviation over n seeds."
    if any(surely_best(result, name) for name in names):
        return f"{entries} Strong: better than every other, paired by seed."
    if differing := {what for name in names if (what := what_differs(result, name))}:
        return f"{entries} {capital(listed(sorted(differing)))} differ, so that nothing is strong."
    return f"{entries} Nothing is strong: by no figure is one surely better than every other."


def cells_table(result: StudyResult, names: Sequence[str], caption: str, note: str) -> Table:
    axes = list(axis_labels(result))
    rows: list[list[str | Entry]] = []
    for cell in cell_labels(result):
        figures = [figure_entry(result, cell, name, surely_best(result, name) == cell) for name in names]
        rows.append([*cell.values(), str(count_seeds(result, cell)), *figures])
    return Table([*axes, "n", *(column_title(find_figure(name)) for name in names)], rows, caption, note, len(axes))


def figure_table(result: StudyResult, name: str) -> Table:
    """One figure in full: mean, deviation, n, interval, and the difference from what each cell is compared with."""
    figure, axes, reference = find_figure(name), axis_labels(result), reference_labels(result)
    compared = compared_axes(result, name)
    best = surely_best(result, name)
    rows: list[list[str | Entry]] = []
    for cell in cell_labels(result):
        summary = summarise_cell(result.rows, cell, name)
        row: list[str | Entry] = [*cell.values()]
        if summary is None:
            row += [NOTHING, NOTHING, "0", NOTHING]
        else:
            deviation = NOTHING if summary.deviation is None else number(summary.deviation, figure)
            interval = summary.interval
            ends = NOTHING if interval is None else f"{number(interval.low, figure)} to {number(interval.high, figure)}"
            row += [Entry(number(summary.mean, figure), best == cell), deviation, str(summary.n), ends]
        for axis in compared:
            other = {**cell, axis: reference[axis]}
            same = cell[axis] == reference[axis]
            row.append("" if same else difference_entry(compare(result.rows, cell, other, name), figure))
        rows.append(row)
    against = [f"against {reference[axis]}" for axis in compared]
    columns = [*axes, "mean", "deviation", "n", "95% interval", *against]
    words = [word for word in (unit_words(figure), DIRECTIONS[figure.better]) if word]
    caption = capital(figure.title) + (f" ({', '.join(words)})" if words else "")
    return Table(columns, rows, caption, heads=len(axes))


def difference_entry(difference: Difference, figure: Figure) -> Entry:
    if difference.mean is None:
        return Entry(NOTHING)
    relative = f" ({share(difference.mean, difference.base)})" if difference.base and figure.unit != "%" else ""
    words = {"tie": "tie", "equal": "equal with every seed", "one seed": "one seed: no claim"}.get(difference.finding)
    words = words or comparative(difference.finding, figure)
    if difference.paired is None or difference.finding == "equal":
        return Entry(f"{signed(difference.mean, figure)}{relative if difference.mean else ''}", remark=words)
    ends = reach(difference.paired.low, difference.paired.high, figure)
    return Entry(f"{signed(difference.mean, figure)}{relative}", remark=f"{ends}: {words}")


def figure_entry(result: StudyResult, cell: Labels, name: str, strong: bool = False) -> Entry:
    """Where only some of the cell's seeds have the figure, of how many it is."""
    summary = summarise_cell(result.rows, cell, name)
    if summary is None:
        return Entry(NOTHING)
    fewer = f" (n = {summary.n})" if summary.n < count_seeds(result, cell) else ""
    return Entry(spread(summary, find_figure(name)) + fewer, strong)


def surely_best(result: StudyResult, name: str) -> Labels | None:
    if what_differs(result, name):
        return None
    found = find_best(result.rows, cell_labels(result), name, find_figure(name).better)
    return found[0] if found and found[1] else None


def count_seeds(result: StudyResult, cell: Labels) -> int:
    return len({row.seed for row in result.rows if row.cell == cell})


def column_title(figure: Figure) -> str:
    unit = unit_words(figure)
    return figure.title + (f", {unit}" if unit and unit.replace("/", " per ") not in figure.title else "")


def unit_words(figure: Figure) -> str:
    return {"million": "millions"}.get(figure.unit, figure.unit)
