"""Tables of a study: an overview of all cells, and one table per metric.

Owns: rows, columns, notes, and which values are bold. Does not own: statistics (`comparison`), number formats
(`study_verdict`), rendering (`reports.html`, `reports.markdown`).

A value is bold only if it is significantly better than that of every other cell, paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lilliput.reports.document import Entry, Table
from lilliput.reports.formatting import counted, listed
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
MOST_COLUMNS = 6  # metrics or cells that fit next to each other on a page; with more than two axes, one less
DIRECTIONS = {"lower": "lower is better", "higher": "higher is better", None: ""}


def overview_tables(result: StudyResult) -> list[Table]:
    """Return the shown metrics: a row per cell, or a row per metric if there are too many metrics for one table."""
    names = shown_figures(result)
    return all_cells_tables(result, names, table_note(result, names), transposed=len(names) > most_metrics(result))


def other_figures_tables(result: StudyResult) -> list[Table]:
    """Return the measured metrics that are not shown elsewhere, a row per metric if there is room for all cells."""
    shown = shown_figures(result)
    names = sorted({name for row in result.rows for name in row.figures if name not in shown})
    note = f"{table_note(result, names)} The values of each seed are in table.csv."
    return all_cells_tables(result, names, note, transposed=True) if names else []


def all_cells_tables(result: StudyResult, names: Sequence[str], note: str, transposed: bool) -> list[Table]:
    """Return the metrics of all cells in one table, or in several that fit on a page; the note is below the last."""
    if transposed and len(cell_labels(result)) <= MOST_COLUMNS:
        return [transposed_table(result, names, note)]
    number_of = max(1, math.ceil(len(names) / most_metrics(result)))
    size = max(1, math.ceil(len(names) / number_of))  # parts of about the same width
    parts = [names[start : start + size] for start in range(0, len(names), size)] or [names]
    return [cells_table(result, part, note if part is parts[-1] else "") for part in parts]


def most_metrics(result: StudyResult) -> int:
    return MOST_COLUMNS if len(axis_labels(result)) <= 2 else MOST_COLUMNS - 1


def transposed_table(result: StudyResult, names: Sequence[str], note: str) -> Table:
    """Return a row per metric and a column per cell."""
    cells = cell_labels(result)
    rows: list[list[str | Entry]] = [["seeds", *(str(count_seeds(result, cell)) for cell in cells)]]
    for name in names:
        best = significant_best(result, name)
        rows.append(
            [column_title(find_figure(name)), *(figure_entry(result, cell, name, best == cell) for cell in cells)]
        )
    return Table(["", *map(name_cell, cells)], rows, note=note)


def table_note(result: StudyResult, names: Sequence[str]) -> str:
    """Explain the values of a table of these metrics, and which are bold."""
    if len({row.seed for row in result.rows}) == 1:
        return "One seed."
    entries = "Mean ± standard deviation over seeds."
    if any(significant_best(result, name) for name in names):
        return f"{entries} Bold: significantly better than every other cell."
    if differing := {what for name in names if (what := what_differs(result, name))}:
        return f"{entries} No value is bold, because {listed(sorted(differing))} differ between cells."
    return f"{entries} No value is bold: no cell is significantly better than every other."


def cells_table(result: StudyResult, names: Sequence[str], note: str) -> Table:
    axes = list(axis_labels(result))
    rows: list[list[str | Entry]] = []
    for cell in cell_labels(result):
        figures = [figure_entry(result, cell, name, significant_best(result, name) == cell) for name in names]
        rows.append([*cell.values(), str(count_seeds(result, cell)), *figures])
    columns = [*axes, "seeds", *(column_title(find_figure(name)) for name in names)]
    return Table(columns, rows, note=note, heads=len(axes))


def figure_table(result: StudyResult, name: str) -> Table:
    """Return the table of one metric: mean, standard deviation, seeds, interval and the difference from each reference."""
    figure, axes, reference = find_figure(name), axis_labels(result), reference_labels(result)
    compared = compared_axes(result, name)
    best = significant_best(result, name)
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
    changes = [f"difference from {reference[axis]}" for axis in compared]
    columns = [*axes, "mean", "standard deviation", "seeds", "95% confidence interval", *changes]
    words = [word for word in (unit_words(figure), DIRECTIONS[figure.better]) if word]
    caption = figure.heading + (f" ({', '.join(words)})" if words else "")
    return Table(columns, rows, caption, heads=len(axes))


def difference_entry(difference: Difference, figure: Figure) -> Entry:
    if difference.mean is None:
        return Entry(NOTHING)
    relative = f" ({share(difference.mean, difference.base, figure)})" if difference.base and figure.unit != "%" else ""
    words = {
        "not significant": "not significant",
        "equal": "equal for every seed",
        "one seed": "one seed, not tested",
    }.get(difference.finding) or comparative(difference.finding, figure)
    if difference.paired is None or difference.finding == "equal":
        return Entry(f"{signed(difference.mean, figure)}{relative if difference.mean else ''}", remark=words)
    ends = reach(difference.paired.low, difference.paired.high, figure)
    return Entry(f"{signed(difference.mean, figure)}{relative}", remark=f"95% CI {ends}: {words}")


def figure_entry(result: StudyResult, cell: Labels, name: str, strong: bool = False) -> Entry:
    """Return mean and standard deviation, with the number of seeds if some seeds of the cell lack the metric."""
    summary = summarise_cell(result.rows, cell, name)
    if summary is None:
        return Entry(NOTHING)
    fewer = f" ({counted(summary.n, 'seed')})" if summary.n < count_seeds(result, cell) else ""
    return Entry(spread(summary, find_figure(name)) + fewer, strong)


def significant_best(result: StudyResult, name: str) -> Labels | None:
    if what_differs(result, name):
        return None
    found = find_best(result.rows, cell_labels(result), name, find_figure(name).better)
    return found[0] if found and found[1] else None


def count_seeds(result: StudyResult, cell: Labels) -> int:
    return len({row.seed for row in result.rows if row.cell == cell})


def column_title(figure: Figure, heading: bool = False) -> str:
    unit, title = unit_words(figure), figure.heading if heading else figure.title
    named = "/" in unit and unit.replace("/", " per ") in title  # bits per byte
    return title if named or not unit else f"{title}, {unit}"


def unit_words(figure: Figure) -> str:
    return {"million": "millions"}.get(figure.unit, figure.unit)
