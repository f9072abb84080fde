"""Evaluations during training of a study's cells, and one prompt continued by every cell.

Owns: the table of a cell's history (mean and standard deviation over seeds at each evaluation) and the table of texts. Does not
own: the history of one run (`reports.run_history`), or the sections of a report (`study_report`).
"""

from __future__ import annotations

from lilliput.reports.document import Table
from lilliput.reports.run_history import Row, format_cell, heading, run_history
from lilliput.studies.comparison import Labels, axis_labels, cell_labels, summarise
from lilliput.studies.study_curves import distinct_cells
from lilliput.studies.study_metrics import EXAMPLE
from lilliput.studies.study_results import StudyResult
from lilliput.studies.study_verdict import name_cell

TIMES = ("seconds", "seconds_since")  # not a result: they depend on the load of the machine
WITHOUT_SPREAD = ("step", "epoch")  # the same for every seed, up to rounding


def history_tables(result: StudyResult) -> list[Table]:
    """Return a table per cell that has its own runs; a study without `history` has none."""
    if not result.study.history:
        return []
    return [table for cell in distinct_cells(result) if (table := cell_history(result, cell))]


def cell_history(result: StudyResult, cell: Labels) -> Table | None:
    """Return the history of a cell over its seeds, at the steps that all seeds have; None if a seed has no evaluation."""
    runs = [run_history(result.curve(row.run)) for row in result.rows if row.cell == cell]
    if not runs or not all(runs):
        return None
    by_step = [{row["step"]: row for row in run} for run in runs]
    steps = [step for step in by_step[0] if all(step in run for run in by_step)]
    keys = [key for key in runs[0][0] if all(key in run[0] for run in runs) and is_shown(key, runs[0][0])]
    rows = [[format_seeds(key, [run[step][key] for run in by_step]) for key in keys] for step in steps]
    note = "" if len(runs) == 1 else f"Mean ± standard deviation over {len(runs)} seeds."
    return Table([heading(key) for key in keys], rows, f"Evaluations during training: {name_cell(cell)}", note)


def is_shown(key: str, row: Row) -> bool:
    """Return whether a column is shown: no times, and no loss of a split that has a perplexity or an accuracy, so that the
    columns fit on a page with their standard deviations."""
    split, _, metric = key.rpartition(".")
    better_known = {f"{split}.perplexity", f"{split}.accuracy"} & row.keys()
    return key not in TIMES and not (split and metric == "loss" and better_known)


def format_seeds(key: str, values: list[float | None]) -> str:
    """Return the mean over seeds, with the standard deviation if there is one."""
    summary = summarise([value for value in values if value is not None])
    if summary is None:
        return ""
    mean = format_cell(key, summary.mean)
    if not summary.deviation or key in WITHOUT_SPREAD:
        return mean
    return f"{mean} ± {format_cell(key, summary.deviation)}"


def example_tables(result: StudyResult) -> list[Table]:
    """Return a table of the texts with which the cells continue one prompt, of the first seed that has them."""
    found = [row for row in result.rows if EXAMPLE in row.texts]
    if not found:
        return []
    seed = min(row.seed for row in found)
    texts = {name_cell(row.cell): row.texts[EXAMPLE] for row in found if row.seed == seed}
    rows = [[*cell.values(), texts[name_cell(cell)]] for cell in cell_labels(result) if name_cell(cell) in texts]
    axes, note = list(axis_labels(result)), f"Every cell continues the same prompt. Seed {seed}."
    return [Table([*axes, "prompt and text"], rows, note=note, heads=len(axes), texts=("prompt and text",))]
