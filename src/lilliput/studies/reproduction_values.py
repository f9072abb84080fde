"""Our values of a reproduction's tables: from logs, measured cells and parameter counts.

Owns: the lookup of a source, and the comparison of a published value with ours. Does not own: measuring (`measures`), tables
(`reproduction_tables`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lilliput.model.counting import Parameters, count
from lilliput.reports.run_history import run_history
from lilliput.settings.loading import config_from_dict
from lilliput.storage.checkpoints import CONFIG
from lilliput.storage.run_folders import RunFolder
from lilliput.studies.comparison import summarise_cell
from lilliput.studies.grid import Study, cells
from lilliput.studies.reproduction_files import SOURCE_KEYS, Column, Row, Source, TableItem
from lilliput.studies.reproduction_plan import Part, Plan
from lilliput.studies.study_results import StudyResult

PARAMETERS = tuple(f"parameters.{field.name}" for field in dataclasses.fields(Parameters))
NEAR = 0.02  # epochs between a stated epoch and an evaluation: the last batch of an epoch may be short
EXCLUSIVE = (("run", "study"), ("step", "epoch", "progress"))  # a later one of these replaces all earlier ones


@dataclass(frozen=True)
class Found:
    """A value, or the reason why there is none."""

    value: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Compared:
    """One cell of a published table with our value."""

    row: Row
    column: Column
    published: float | str | None
    ours: Found

    @property
    def difference(self) -> float | None:
        """Ours minus published for points, else the ratio minus one; None if a number is missing."""
        ours, published = self.ours.value, self.published
        if ours is None or not isinstance(published, int | float):
            return None
        if self.column.points:
            return ours - published
        return ours / published - 1.0 if published else None


def merge_sources(*sources: Source) -> Source:
    """Return one source; keys of later ones replace those of earlier ones."""
    merged: dict[str, Any] = {}
    for source in sources:
        given = {key: value for key in SOURCE_KEYS if (value := getattr(source, key)) is not None}
        for group in EXCLUSIVE:
            if any(key in given for key in group):
                merged = {key: value for key, value in merged.items() if key not in group}
        merged |= given
    return Source(**merged)


def cell_labels(study: Study, cell: str | Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the labels of a cell: the first one if none is given; None if the study has no such cell."""
    known = [one.labels for one in cells(study)]
    if cell is None:
        return known[0]
    wanted = {axis.name: cell for axis in study.axes} if isinstance(cell, str) else dict(cell)
    return wanted if wanted in known and (not isinstance(cell, str) or len(study.axes) == 1) else None


def find_part(plan: Plan, source: Source) -> Part:
    """Return the run or study of a checked source."""
    return plan.runs[source.run] if source.run is not None else plan.studies[source.study or ""]


def find_value(plan: Plan, source: Source) -> Found:
    """Return our value of a checked source."""
    part, metric = find_part(plan, source), source.metric or ""
    result = part.result()
    found = Found(reason="not run yet") if result is None else value_in(part, result, source, metric, source.cell)
    if found.value is None or result is None:
        return found
    value = found.value
    if source.over is not None:
        base = value_in(part, result, source, metric, source.over)
        if not base.value:
            return Found(reason=base.reason or "the reference is zero")
        value /= base.value
    return Found(value * (1.0 if source.scale is None else source.scale))


def value_in(
    part: Part, result: StudyResult, source: Source, metric: str, cell: str | Mapping[str, str] | None
) -> Found:
    labels = cell_labels(part.study, cell)
    if labels is None:
        return Found(reason="not in the quick form")
    rows = [row for row in result.rows if row.cell == labels]
    if not rows:
        return Found(reason="not measured")
    run = RunFolder(result.folder / rows[0].run)
    if any(getattr(source, key) is not None for key in EXCLUSIVE[1]):
        return history_value(run.metrics(), source, metric)
    if metric in PARAMETERS:
        return Found(float(parameter_counts(run)[metric]))
    summary = summarise_cell(result.rows, labels, metric)
    return Found(reason="not measured") if summary is None else Found(summary.mean)


def parameter_counts(run: RunFolder) -> dict[str, int]:
    config = config_from_dict(run.config(), str(run.folder / CONFIG))
    counted = dataclasses.asdict(count(config.model, config.vectors).parameters)
    return {f"parameters.{part}": number for part, number in counted.items()}


def history_value(events: list[dict[str, Any]], source: Source, metric: str) -> Found:
    """Return a metric of the evaluation at a step or an epoch, or of the last one up to a share of the training."""
    rows = run_history(events)
    last = max((event["step"] for event in events), default=0)
    if source.step is not None:
        chosen = [row for row in rows if row["step"] == source.step]
        lack = f"no evaluation at step {source.step:,}" if source.step <= last else f"ended at step {last:,}"
    elif source.epoch is not None:
        chosen = [row for row in rows if row.get("epoch") and abs((row["epoch"] or 0.0) - source.epoch) <= NEAR]
        ended = max((row.get("epoch") or 0.0 for row in rows), default=0.0)
        lack = f"no evaluation at epoch {source.epoch:g}" if source.epoch <= ended else f"ended at epoch {ended:.3g}"
    else:
        chosen = [row for row in rows if (row["step"] or 0) <= (source.progress or 0.0) * last + 0.5]
        lack = f"no evaluation in the first {source.progress:.0%} of the training"
    value = chosen[-1].get(metric) if chosen else None
    return Found(value, "" if value is not None else lack if not chosen else "not evaluated")


def compare_table(plan: Plan, table: TableItem) -> list[list[Compared]]:
    """Return the cells of a published table by row."""
    return [
        [compare_cell(plan, table, row, column, value) for column, value in zip(table.columns, row.values, strict=True)]
        for row in table.rows
    ]


def compare_cell(plan: Plan, table: TableItem, row: Row, column: Column, value: float | str) -> Compared:
    if value == "":
        return Compared(row, column, None, Found())
    return Compared(row, column, value, find_value(plan, merge_sources(table, column, row)))
