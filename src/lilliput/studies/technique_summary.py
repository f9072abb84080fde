"""One table over the technique studies: what each technique does to quality, speed and memory, and when to use it.

Owns: the rows of studies from their result tables (table.csv), and the summary. Every entry follows from a paired comparison of
two cells of one study; "when to use it" is a phrase of the study file. Does not own: comparisons (`comparison`).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from lilliput.errors import UserError
from lilliput.reports.document import Entry, ReportDocument, Section, Table
from lilliput.studies.comparison import compare
from lilliput.studies.grid import Study
from lilliput.studies.study_files import Technique
from lilliput.studies.study_metrics import find_figure
from lilliput.studies.study_results import Row
from lilliput.studies.study_tables import column_title
from lilliput.studies.study_verdict import comparative, name_cell, reach, share, signed

ASPECTS = ("quality", "speed", "memory")
NOT_MEASURED, NOT_RUN = "not measured", "not run"


def read_table(path: Path, study: Study) -> list[Row]:
    """Return the rows of a result table of this study."""
    axes = [axis.name for axis in study.axes]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        return [
            Row(
                {axis: line[axis] for axis in axes},
                int(line["seed"]),
                line["run"],
                {name: float(value) for name, value in line.items() if name not in (*axes, "seed", "run") and value},
            )
            for line in lines
        ]
    except (KeyError, ValueError, TypeError) as error:
        what, fix = f"the table is not that of study {study.name}", f"run lilliput study {study.name} again"
        raise UserError(what, str(path), fix=fix, code="study.table") from error


def technique_document(studies: Sequence[Study], rows: Mapping[str, Sequence[Row]]) -> ReportDocument:
    """Return the page with the summary."""
    lead = "What each technique changes in quality, speed and memory, and when to use it."
    about = "Each row compares two cells of one study; the report of the study has all cells, seeds and settings."
    return ReportDocument("Techniques", lead, about, [Section("Summary", [technique_table(studies, rows)])])


def technique_table(studies: Sequence[Study], rows: Mapping[str, Sequence[Row]]) -> Table:
    """Return a row per study with a technique; `rows` has the results by the study's name."""
    lines: list[list[str | Entry]] = []
    for study in studies:
        if (technique := study.technique) is None:
            continue
        found = rows.get(study.name)
        measured = (aspect_entry(technique, getattr(technique, aspect), found) for aspect in ASPECTS)
        cells = f"{name_cell(technique.with_it)} against {name_cell(technique.without)}"
        lines.append([technique.name, *measured, technique.use, Entry(study.name, remark=cells)])
    note = (
        "Mean difference from the reference, paired by seed, in percent or as a factor; CI: confidence interval of the "
        "difference. “equal”: the same value for every seed. “no significant difference”: the interval contains 0."
    )
    columns = ["technique", *ASPECTS, "when to use it", "study"]
    return Table(columns, lines, note=note, texts=columns[1:])


def aspect_entry(technique: Technique, name: str | None, rows: Sequence[Row] | None) -> str | Entry:
    """Return the effect of a technique on one metric."""
    if name is None:
        return NOT_MEASURED
    if not rows:
        return NOT_RUN
    figure, found = find_figure(name), compare(rows, technique.with_it, technique.without, name)
    title = column_title(figure)
    if found.mean is None:
        return NOT_MEASURED
    if found.finding == "equal":
        return Entry("equal", remark=figure.title)
    relative = bool(found.base) and figure.unit != "%"
    change = share(found.mean, found.base or 0.0, figure) if relative else signed(found.mean, figure)
    if found.paired is None:
        return Entry(f"{change if found.mean else 'equal'}, one seed", remark=title)
    words = (
        "no significant difference"
        if found.finding == "not significant"
        else f"{change}, {comparative(found.finding, figure)}"
    )
    return Entry(words, remark=f"{title}: 95% CI {reach(found.paired.low, found.paired.high, figure)}")
