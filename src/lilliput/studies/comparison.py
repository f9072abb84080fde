"""What a study's figures carry: means over seeds with their intervals, and differences paired by seed.

Owns: the summary of one figure in one cell, the difference of two cells and what may be said of it, and which
cell is the best. Does not own: Student's t (`evaluation.intervals`), words (`study_verdict`) and tables
(`study_tables`).

A difference is only claimed where its 95% interval, paired by seed, leaves out zero; else it is a tie.
Figures that are the same with every seed are equal. One seed has no interval, and carries no claim.
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
Finding = Literal["higher", "lower", "tie", "equal", "one seed", "missing"]
LENGTHS = ("generate.tokens", "measure.tokens")  # how long a text is asked for


@dataclass(frozen=True)
class Summary:
    """One figure of one cell over its seeds. The deviation is that of a sample (n - 1); one value has none."""

    values: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval | None

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Difference:
    """A cell's figure minus the reference's, over the `n` seeds that both have; `mean` also where nothing may be claimed. `base`
    is the reference's own mean over these seeds."""

    cell: Labels
    reference: Labels
    n: int
    base: float | None
    mean: float | None
    paired: Paired | None
    finding: Finding


def find_values(rows: Sequence[Row], cell: Labels, figure: str) -> dict[int, float]:
    """The figure by seed."""
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
        return "tie"
    return "higher" if paired.mean > 0 else "lower"


def find_best(
    rows: Sequence[Row], cells: Sequence[Labels], figure: str, better: str | None
) -> tuple[Labels, bool] | None:
    """The cell of the best mean, and whether it is surely better than every other that has the figure. A cell that lacks seeds
    which others have is never it: the mean of easy seeds is low. None without a direction, or where fewer than two cells have
    the figure."""
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
    """Every cell of the grid, measured or not."""
    return [cell.labels for cell in cells(result.study)]


def what_differs(result: StudyResult, figure: str) -> str | None:
    """Cells may differ by what they were given or asked for, and none is then called the best of all by this figure."""
    found = cells(result.study)
    if len({budget_of(cell) for cell in found}) > 1:
        return "budgets"
    lengths = {tuple(cell.settings.get(name) for name in LENGTHS) for cell in found}
    return "lengths of texts" if find_figure(figure).of_a_text and len(lengths) > 1 else None


def axis_labels(result: StudyResult) -> dict[str, list[str]]:
    return {axis.name: list(axis.values) for axis in result.study.axes}


def compared_axes(result: StudyResult, figure: str) -> list[str]:
    """Along which cells are compared by a figure: those of several labels. One that gives more to learn from, or asks for more of
    what the figure counts, is none of them, unless there is no other: a larger budget is not a technique."""
    of_a_text = find_figure(figure).of_a_text

    def is_amount(axis: Axis) -> bool:
        names = {name for said in axis.values.values() for name in said}
        return any(name.startswith("budget.") or (of_a_text and name in LENGTHS) for name in names)

    several = [axis for axis in result.study.axes if len(axis.values) > 1]
    return [axis.name for axis in [axis for axis in several if not is_amount(axis)] or several]


def reference_labels(result: StudyResult) -> dict[str, str]:
    """The label of each axis that the others are compared with."""
    return {axis.name: axis.compare for axis in result.study.axes}


def find_missing(result: StudyResult) -> list[tuple[Labels, int]]:
    """Cells and seeds of the grid that have no row."""
    there = [(row.cell, row.seed) for row in result.rows]
    wanted = [(cell, seed) for cell in cell_labels(result) for seed in result.study.seeds]
    return [pair for pair in wanted if pair not in there]
