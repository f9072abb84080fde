"""Evaluations during training of a study's cells, and one prompt continued by every cell.

Owns: the table of a cell's history (mean and standard deviation over seeds at each evaluation) and the table of texts. Does not
own: the history of one run (`reports.run_history`), or the sections of a report (`study_report`).
"""

from __future__ import annotations

from lilliput.reports.document import Block, Paragraph, QuotedText, Table
from lilliput.reports.run_history import format_cell, heading, is_test_loss, run_history
from lilliput.studies.comparison import Labels, cell_labels, summarise
from lilliput.studies.study_curves import distinct_cells
from lilliput.studies.study_metrics import EXAMPLE
from lilliput.studies.study_results import StudyResult
from lilliput.studies.study_verdict import name_cell

TIMES = ("seconds", "seconds_since")  # differ between seeds by the load of the machine only


def history_tables(result: StudyResult) -> list[Table]:
    """Return a table per cell that has its own runs; a study without `history` has none."""
    if not result.study.history:
        return []
    return [table for cell in distinct_cells(result) if (table := cell_history(result, cell))]


def cell_history(result: StudyResult, cell: Labels) -> Table | None:
    """Return the history of a cell over its seeds, at the steps that all seeds have."""
    runs = [run_history(result.curve(row.run)) for row in result.rows if row.cell == cell]
    if not runs or not all(runs):
        return None
    by_step = [{row["step"]: row for row in run} for run in runs]
    steps = [step for step in by_step[0] if all(step in run for run in by_step)]
    keys = [
        key for key in runs[0][0] if key not in TIMES and not is_test_loss(key) and all(key in run[0] for run in runs)
    ]
    lines = []
    for step in steps:
        line = []
        for key in keys:
            values = [value for run in by_step if (value := run[step][key]) is not None]
            summary = summarise(values)
            text = "" if summary is None else format_cell(key, summary.mean)
            if summary is not None and summary.deviation and key not in ("step", "epoch"):
                text += f" ± {format_cell(key, summary.deviation)}"
            line.append(text)
        lines.append(line)
    note = "" if len(runs) == 1 else f"Mean ± standard deviation over {len(runs)} seeds."
    return Table([heading(key) for key in keys], lines, f"Evaluations during training: {name_cell(cell)}", note)


def example_blocks(result: StudyResult) -> list[Block]:
    """Return the texts with which the cells continue one prompt, of the first seed that has them."""
    seeds = [row.seed for row in result.rows if EXAMPLE in row.texts]
    if not seeds:
        return []
    texts = {
        name_cell(row.cell): row.texts[EXAMPLE] for row in result.rows if row.seed == seeds[0] and EXAMPLE in row.texts
    }
    prompt = str(result.study.settings.get("measure.example", ""))
    lead = Paragraph(f"Every cell continues the prompt “{prompt}”. Seed {seeds[0]}.")
    return [
        lead,
        *(QuotedText(texts[name], name) for cell in cell_labels(result) if (name := name_cell(cell)) in texts),
    ]
