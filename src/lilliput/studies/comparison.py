"""Statistics of a study: means over seeds, differences paired by seed, and the best cell.

Owns: the summary of a metric in one cell, the comparison of two cells, the choice of the best cell. Does not own:
Student's t (`evaluation.intervals`), sentences (`study_verdict`), tables (`study_tables`).

A difference is significant if its 95% confidence interval, paired by seed, does not include zero. With one seed
there is no interval, and nothing is significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lilliput.evaluation.intervals import Interval, Paired, mean_and_error, mean_interval, paired_difference
from lilliput.studies.grid import Axis, budget_of, cells
from lilliput.studies.study_metrics import find_figure
from lilliput.studies.study_results import Row, StudyResult

Labels = Mapping[str, str]  # axis -> label: which cell
Finding = Literal["higher", "lower", "not significant", "equal", "one seed", "missing"]
AMOUNTS = ("generate.tokens", "measure.tokens", "measure.batch")  # settings of the amount of generated text


@dataclass(frozen=True)
class Summary:
    """A metric of one cell over its seeds; `deviation` is the sample standard deviation (n - 1), None for one value."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval | None

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Difference:
    """A cell's metric minus the reference's, over the `n` common seeds. `base` is the reference's mean over these seeds;
    `mean` is also set where the difference is not significant."""

    cell: Labels
    reference: Labels
    n: int
    base: float | None
    mean: float | None
    paired: Paired | None
    finding: Finding


def find_values(rows: Sequence[Row], cell: Labels, figure: str) -> dict[int, float]:
    """Return the metric by seed."""
    return {row.seed: row.figures[figure] for row in rows if row.cell == cell and figure in row.figures}


def summarise(values: Sequence[float]) -> Summary | None:
    if not values:
        return None
    if len(values) == 1:
        return Summary(tuple(values), values[0], None, None)
    mean, error = mean_and_error(values)
    return Summary(tuple(values), mean, error * len(values) ** 0.5, mean_interval(values))


def summarise_cell(rows: Sequence[Row], cell: Labels, figure: str) -> Summary | None:
    found = find_values(rows, cell, figure)
    return summarise([found[seed] for seed in sorted(found)])


def compare(rows: Sequence[Row], cell: Labels, reference: Labels, figure: str) -> Difference:
    ours, theirs = find_values(rows, cell, figure), find_values(rows, reference, figure)
    common = sorted(ours.keys() & theirs.keys())
    differences = [ours[seed] - theirs[seed] for seed in common]
    if not common:
        return Difference(cell, reference, 0, None, None, None, "missing")
    base = math.fsum(theirs[seed] for seed in common) / len(common)
    if len(common) == 1:
        return Difference(cell, reference, 1, base, differences[0], None, "one seed")
    paired = paired_difference([ours[seed] for seed in common], [theirs[seed] for seed in common])
    assert paired is not None
    return Difference(cell, reference, len(common), base, paired.mean, paired, classify(paired, differences))


def classify(paired: Paired, differences: Sequence[float]) -> Finding:
    if not any(differences):
        return "equal"
    if paired.low <= 0.0 <= paired.high:
        return "not significant"
    return "higher" if paired.mean > 0 else "lower"


def find_best(
    rows: Sequence[Row], cells: Sequence[Labels], figure: str, better: str | None
) -> tuple[Labels, bool] | None:
    """Return the cell with the best mean, and whether it is significantly better than every other cell. Cells with missing
    seeds are never the best: the mean of easy seeds is low. None without a direction, or if fewer than two cells have
    the metric."""
    found = [(summary, cell) for cell in cells if (summary := summarise_cell(rows, cell, figure))]
    if better is None or len(found) < 2:
        return None
    sign, most = 1.0 if better == "lower" else -1.0, max(summary.n for summary, _ in found)
    whole = [(summary.mean, cell) for summary, cell in found if summary.n == most]
    _, best = min(whole, key=lambda one: sign * one[0])
    wanted: Finding = "lower" if better == "lower" else "higher"
    rivals = (compare(rows, best, cell, figure).finding for _, cell in found if cell is not best)
    return best, all(finding == wanted for finding in rivals)


def cell_labels(result: StudyResult) -> list[Labels]:
    """Return every cell of the grid, measured or not."""
    return [cell.labels for cell in cells(result.study)]


def what_differs(result: StudyResult, figure: str) -> str | None:
    """Return what makes the cells incomparable by this metric, if anything: no best cell is then named."""
    found = cells(result.study)
    if len({budget_of(cell) for cell in found}) > 1:
        return "budgets"
    amounts = {tuple(cell.settings.get(name) for name in AMOUNTS) for cell in found}
    return "amounts of text" if find_figure(figure).of_a_text and len(amounts) > 1 else None


def axis_labels(result: StudyResult) -> dict[str, list[str]]:
    return {axis.name: list(axis.values) for axis in result.study.axes}


def compared_axes(result: StudyResult, figure: str) -> list[str]:
    """Return the axes along which cells are compared: those with several labels. An axis of budgets or amounts of text is left
    out if there is another one: a larger budget is not a technique."""
    of_a_text = find_figure(figure).of_a_text

    def is_amount(axis: Axis) -> bool:
        names = {name for settings in axis.values.values() for name in settings}
        return any(name.startswith("budget.") or (of_a_text and name in AMOUNTS) for name in names)

    several = [axis for axis in result.study.axes if len(axis.values) > 1]
    return [axis.name for axis in [axis for axis in several if not is_amount(axis)] or several]


def reference_labels(result: StudyResult) -> dict[str, str]:
    """Return the label of each axis that the others are compared with."""
    return {axis.name: axis.compare for axis in result.study.axes}


def find_missing(result: StudyResult) -> list[tuple[Labels, int]]:
    """Return the cells and seeds of the grid that have no row."""
    measured = [(row.cell, row.seed) for row in result.rows]
    wanted = [(cell, seed) for cell in cell_labels(result) for seed in result.study.seeds]
    return [pair for pair in wanted if pair not in measured]
