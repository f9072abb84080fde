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
from lilliput.studies.study_metrics import find_figure
from lilliput.studies.study_results import Row
from lilliput.studies.study_verdict import number, reach, share

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
    about = "Each row compares two cells of one study; its page has all cells, seeds and settings."
    return ReportDocument("Techniques", lead, about, [Section("Summary", [technique_table(studies, rows)])])


def technique_table(studies: Sequence[Study], rows: Mapping[str, Sequence[Row]]) -> Table:
    """Return a row per study with a technique; `rows` has the results by the study's name."""
    lines: list[list[str | Entry]] = []
    for study in studies:
        if study.technique is None:
            continue
        found = rows.get(study.name)
        entries = [aspect_entry(study, aspect, found) for aspect in ASPECTS]
        lines.append([study.technique.name, *entries, study.technique.use, study.name])
    note = (
        "Difference of the technique from its reference, paired by seed, with its 95% confidence interval. “equal”: the same "
        "value for every seed. “not significantly different”: the interval contains 0."
    )
    return Table(["technique", *ASPECTS, "when to use it", "study"], lines, note=note)


def aspect_entry(study: Study, aspect: str, rows: Sequence[Row] | None) -> str | Entry:
    """Return the effect of a study's technique on one metric."""
    technique = study.technique
    assert technique is not None
    name = getattr(technique, aspect)
    if name is None:
        return NOT_MEASURED
    if not rows:
        return NOT_RUN
    figure, found = find_figure(name), compare(rows, technique.with_it, technique.without, name)
    if found.mean is None or found.base is None:
        return NOT_MEASURED
    if found.finding == "equal":
        return Entry("equal", remark=figure.title)
    relative = share(found.mean, found.base) if found.base else number(found.mean, figure)
    if found.paired is None:
        return Entry(f"{relative}, one seed", remark=figure.title)
    if found.finding == "not significant":
        return Entry(
            "not significantly different",
            remark=f"{figure.title}: {reach(found.paired.low, found.paired.high, figure)}",
        )
    better = "" if figure.better is None else " (better)" if found.finding == figure.better else " (worse)"
    unit = f" {figure.unit}" if figure.unit else ""
    return Entry(
        f"{relative}{better}", remark=f"{figure.title}: {reach(found.paired.low, found.paired.high, figure)}{unit}"
    )
