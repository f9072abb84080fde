"""Tables of a study: all cells at a glance, and each figure in full.

Owns: which rows and columns there are, and what is set strong. Does not own: the statistics (`comparison`),
how numbers read (`study_text`), and HTML or Markdown (`reports.html`, `reports.markdown`).

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
from lilliput.studies.metric_display import Figure, find_figure
from lilliput.studies.study_results import Outcome
from lilliput.studies.study_text import comparative, name_cell, number, reach, share, shown_figures, signed, spread

NOTHING = "–"
ABREAST = 6  # figures beside each other that a page has room for
DIRECTIONS = {"lower": "lower is better", "higher": "higher is better", None: ""}


def tell_all(outcome: Outcome) -> Table:
    """A row for each cell, a column for each figure that is shown; turned where the figures are too many for that."""
    names = shown_figures(outcome)
    note = tell_strength(outcome, names)
    if len(names) > ABREAST and len(cell_labels(outcome)) < len(names):
        return turned_table(outcome, names, note)
    return cells_table(outcome, names, "", note)


def tell_others(outcome: Outcome) -> Table | None:
    """The figures that were measured and are not shown, turned: a row for each figure."""
    shown = shown_figures(outcome)
    names = dict.fromkeys(name for row in outcome.rows for name in row.figures if name not in shown)
    if not names:
        return None
    note = f"{tell_strength(outcome, list(names))} Every single value is in table.csv."
    return turned_table(outcome, sorted(names), note)


def turned_table(outcome: Outcome, names: Sequence[str], note: str) -> Table:
    """A row for each figure, a column for each cell."""
    cells = cell_labels(outcome)
    rows: list[list[str | Entry]] = [["n", *(str(count_seeds(outcome, cell)) for cell in cells)]]
    for name in names:
        best = surely_best(outcome, name)
        rows.append(
            [column_title(find_figure(name)), *(tell_entry(outcome, cell, name, best == cell) for cell in cells)]
        )
    return Table(["", *map(name_cell, cells)], rows, note=note)


def tell_strength(outcome: Outcome, names: Sequence[str]) -> str:
    """What the entries of a table of these figures are, and what is strong among them."""
    if len({row.seed for row in outcome.rows}) == 1:
        return "One seed."
    entries = "Mean ± standard deviation over n seeds."
    if any(surely_best(outcome, name) for name in names):
        return f"{entries} Strong: better than every other, paired by seed."
    if differing := {what for name in names if (what := what_differs(outcome, name))}:
        return f"{entries} {capital(listed(sorted(differing)))} differ, so that nothing is strong."
    return f"{entries} Nothing is strong: by no figure is one surely better than every other."


def cells_table(outcome: Outcome, names: Sequence[str], caption: str, note: str) -> Table:
    axes = list(axis_labels(outcome))
    rows: list[list[str | Entry]] = []
    for cell in cell_labels(outcome):
        figures = [tell_entry(outcome, cell, name, surely_best(outcome, name) == cell) for name in names]
        rows.append([*cell.values(), str(count_seeds(outcome, cell)), *figures])
    return Table([*axes, "n", *(column_title(find_figure(name)) for name in names)], rows, caption, note, len(axes))


def tell_figure(outcome: Outcome, name: str) -> Table:
    """One figure in full: mean, deviation, n, interval, and the difference from what each cell is compared with."""
    figure, axes, reference = find_figure(name), axis_labels(outcome), reference_labels(outcome)
    compared = compared_axes(outcome, name)
    best = surely_best(outcome, name)
    rows: list[list[str | Entry]] = []
    for cell in cell_labels(outcome):
        summary = summarise_cell(outcome.rows, cell, name)
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
            row.append("" if same else tell_comparison(compare(outcome.rows, cell, other, name), figure))
        rows.append(row)
    against = [f"against {reference[axis]}" for axis in compared]
    columns = [*axes, "mean", "deviation", "n", "95% interval", *against]
    words = [word for word in (unit_words(figure), DIRECTIONS[figure.better]) if word]
    caption = capital(figure.title) + (f" ({', '.join(words)})" if words else "")
    return Table(columns, rows, caption, heads=len(axes))


def tell_comparison(difference: Difference, figure: Figure) -> Entry:
    if difference.mean is None:
        return Entry(NOTHING)
    relative = f" ({share(difference.mean, difference.base)})" if difference.base and figure.unit != "%" else ""
    words = {"tie": "tie", "equal": "equal with every seed", "one seed": "one seed: no claim"}.get(difference.finding)
    words = words or comparative(difference.finding, figure)
    if difference.paired is None or difference.finding == "equal":
        return Entry(f"{signed(difference.mean, figure)}{relative if difference.mean else ''}", remark=words)
    ends = reach(difference.paired.low, difference.paired.high, figure)
    return Entry(f"{signed(difference.mean, figure)}{relative}", remark=f"{ends}: {words}")


def tell_entry(outcome: Outcome, cell: Labels, name: str, strong: bool = False) -> Entry:
    """Where only some of the cell's seeds have the figure, of how many it is."""
    summary = summarise_cell(outcome.rows, cell, name)
    if summary is None:
        return Entry(NOTHING)
    fewer = f" (n = {summary.n})" if summary.n < count_seeds(outcome, cell) else ""
    return Entry(spread(summary, find_figure(name)) + fewer, strong)


def surely_best(outcome: Outcome, name: str) -> Labels | None:
    if what_differs(outcome, name):
        return None
    found = find_best(outcome.rows, cell_labels(outcome), name, find_figure(name).better)
    return found[0] if found and found[1] else None


def count_seeds(outcome: Outcome, cell: Labels) -> int:
    return len({row.seed for row in outcome.rows if row.cell == cell})


def column_title(figure: Figure) -> str:
    unit = unit_words(figure)
    return figure.title + (f", {unit}" if unit and unit.replace("/", " per ") not in figure.title else "")


def unit_words(figure: Figure) -> str:
    return {"million": "millions"}.get(figure.unit, figure.unit)
