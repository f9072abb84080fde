"""Checks of a reproduction's names: runs, studies, cells, metrics, rows and columns.

Owns: these checks, which report all errors at once with the nearest names. Does not own: keys and types of the file
(`reproduction_files`), settings of runs (`grid.check_study`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from lilliput.errors import UserError, nearest
from lilliput.interpret.head_score_definitions import FUNCTIONS
from lilliput.reports.run_history import METRICS
from lilliput.studies.grid import Study, cell_config, cells
from lilliput.studies.reproduction_files import (
    AbsentItem,
    ExamplesItem,
    HeadsItem,
    PlotsItem,
    SettingsItem,
    Source,
    TableItem,
    part_line,
)
from lilliput.studies.reproduction_plan import Plan
from lilliput.studies.reproduction_values import EXCLUSIVE, PARAMETERS, cell_labels, merge_sources
from lilliput.studies.study_metrics import FIGURES, find_figure, is_figure

COLUMNS_OF_A_LOG = ("step", "epoch", "seconds", "seconds_since", "batch_loss")


def check_items(plan: Plan, text: str) -> list[UserError]:
    """Return the errors of the names in runs, items and doubts."""
    content = plan.content
    errors = [
        error
        for part, names in (
            ("runs", [run.name for run in content.runs]),
            ("studies", [study.name for study in content.studies]),
            ("items", [item.title for item in content.items]),
        )
        for error in check_different(plan, text, part, names)
    ]
    for number, item in enumerate(content.items):
        where = place(plan, text, "items", number)
        if isinstance(item, TableItem):
            errors += check_table(plan, item, where)
        elif not isinstance(item, SettingsItem | AbsentItem):
            source = Source(run=getattr(item, "run", None), study=getattr(item, "study", None))
            found = list(check_part(plan, source, where))
            errors += found
            if isinstance(item, PlotsItem) and not found:
                errors += check_plots(plan, item, where)
            if isinstance(item, HeadsItem) and not found:
                errors += check_heads(plan, item, where)
            if isinstance(item, ExamplesItem) and not found:
                study = find_whole(plan, source)
                if "example" not in study.measure:
                    errors.append(problem("examples require the measure example", where, 'add "example" to measure'))
    return errors + check_doubts(plan, text)


def place(plan: Plan, text: str, part: str, number: int) -> str:
    return f"{plan.path.name}, line {part_line(text, [part, number])}"


def problem(what: str, where: str, fix: str) -> UserError:
    return UserError(what, where, fix=fix, code="reproduction.file")


def unknown(kind: str, name: str, known: Collection[str], where: str) -> UserError:
    close = nearest(name, known)
    fix = f"use {close}" if close else f"use one of {', '.join(known)}" if known else f"add the {kind}"
    return problem(f"unknown {kind} {name!r}", where, fix)


def check_different(plan: Plan, text: str, part: str, names: list[str]) -> Iterator[UserError]:
    for number, name in enumerate(names):
        if name in names[:number]:
            what = f"{part} must have different names (got {name!r} twice)"
            yield problem(what, place(plan, text, part, number), "rename one of them")


def check_part(plan: Plan, source: Source, where: str) -> Iterator[UserError]:
    """Yield the errors of the run or study that a source names."""
    if (source.run is None) == (source.study is None):
        got = "both" if source.run is not None else "neither"
        yield problem(f"a source has either a run or a study (got {got})", where, "set one of run and study")
    elif source.run is not None and source.run not in plan.runs:
        yield unknown("run", source.run, plan.runs, where)
    elif source.study is not None and source.study not in plan.studies:
        yield unknown("study", source.study, plan.studies, where)


def find_whole(plan: Plan, source: Source) -> Study:
    parts = plan.runs if source.run is not None else plan.studies
    return parts[source.run or source.study or ""].whole


def check_plots(plan: Plan, item: PlotsItem, where: str) -> list[UserError]:
    count = len(plan.studies[item.study].whole.plots)
    return [
        problem(f"study {item.study} has {count} plots (got plot {number})", where, f"use a number from 1 to {count}")
        for number in item.plots
        if number > count
    ]


def check_heads(plan: Plan, item: HeadsItem, where: str) -> list[UserError]:
    """Return the errors of published functions: unknown names, and other heads than those of the model."""
    errors = [unknown("function of a head", name, FUNCTIONS, where) for name in item.published if name not in FUNCTIONS]
    study = plan.runs[item.run].whole
    try:
        model = cell_config(study, cells(study)[0].settings).model
    except UserError:  # invalid settings are reported elsewhere
        return errors
    if item.layer >= model.layers:
        what = f"run {item.run} has {model.layers} layers (got layer {item.layer})"
        errors.append(problem(what, where, f"use a number from 0 to {model.layers - 1}"))
    if len(item.published) not in (0, model.heads):
        what = f"published must have {model.heads} functions, one per head (got {len(item.published)})"
        errors.append(problem(what, where, "add or remove functions"))
    return errors


def check_table(plan: Plan, table: TableItem, where: str) -> list[UserError]:
    errors = []
    for row in table.rows:
        place = f"{where}, row {row.name}"
        if len(row.values) != len(table.columns):
            what = f"row {row.name!r} must have {len(table.columns)} values, one per column (got {len(row.values)})"
            errors.append(problem(what, place, 'use "" where the report has no value'))
            continue
        for column, value in zip(table.columns, row.values, strict=True):
            if value != "":
                errors += check_source(plan, merge_sources(table, column, row), f"{place}, column {column.name}")
    return errors


def check_source(plan: Plan, source: Source, where: str) -> list[UserError]:
    """Return the errors of one cell's source."""
    if errors := list(check_part(plan, source, where)):
        return errors
    study = find_whole(plan, source)
    for cell in (source.cell, source.over):
        if cell_labels(study, cell) is None:
            known = ["/".join(one.labels.values()) for one in cells(study)]
            given = cell if isinstance(cell, str) else "/".join((cell or {}).values())
            errors.append(unknown(f"cell of {study.name}", given, known, where))
    metric = source.metric
    if metric is None:
        errors.append(problem("a value has no metric", where, "add metric to the column or the row"))
    elif any(getattr(source, key) is not None for key in EXCLUSIVE[1]):
        if (known := history_metrics(study)) and metric not in known:
            errors.append(unknown("metric of a history", metric, known, where))
    elif metric not in PARAMETERS:
        errors += check_metric(study, metric, where)
    return errors


def history_metrics(study: Study) -> list[str]:
    """Return the columns that the history of a run can have; none for invalid settings, which are reported elsewhere."""
    try:
        data = cell_config(study, cells(study)[0].settings).data
    except UserError:
        return []
    splits = ["train", "validation", *(test.partition("=")[0] for test in data.tests)]
    return [*COLUMNS_OF_A_LOG, *(f"{split}.{metric}" for split in splits for metric in METRICS)]


def check_metric(study: Study, metric: str, where: str) -> list[UserError]:
    if not is_figure(metric):
        return [unknown("metric", metric, [*FIGURES, *PARAMETERS], where)]
    if not set(measures := find_figure(metric).measures) & set(study.measure):
        what = f"metric {metric} requires the measure {' or '.join(measures)} (got {', '.join(study.measure)})"
        return [problem(what, where, f'add "{measures[0]}" to measure')]
    return []


def check_doubts(plan: Plan, text: str) -> list[UserError]:
    """Return the errors of the items, rows and columns that doubts name."""
    errors: list[UserError] = []
    items = {item.title: item for item in plan.content.items}
    for number, doubt in enumerate(plan.content.doubts):
        where = place(plan, text, "doubts", number)
        if doubt.item is None:
            if doubt.row or doubt.column:
                errors.append(problem("a doubt about a row or a column requires an item", where, "add item"))
            continue
        item = items.get(doubt.item)
        if item is None:
            errors.append(unknown("item", doubt.item, items, where))
            continue
        rows = [row.name for row in item.rows] if isinstance(item, TableItem) else []
        columns = [column.name for column in item.columns] if isinstance(item, TableItem) else []
        for kind, name, known in (("row", doubt.row, rows), ("column", doubt.column, columns)):
            if name is not None and name not in known:
                errors.append(unknown(kind, name, known, where))
    return errors
