"""A study: the compared settings, seeds, budget and measures.

Owns: a study with its quick form applied, the cells of its grid, the checked settings of a cell, and all errors of a
study at once with their lines. Does not own: the format of its file (`study_files`), settings (`settings.loading`),
processes (`job_plan`, `runner`), measures (`measures`).

Settings of a cell have dotted names: `generate.*` and `measure.*` define how a trained model is measured, `budget.*`
how long it is trained, all others what is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.loading import check, merge
from lilliput.settings.recipes import Layer, find_recipe, line_of, shipped_recipes, target_layers
from lilliput.settings.source_names import BUILT_IN_CORPORA, INPUT_PATHS, resolve_input
from lilliput.settings.tree import BUDGETS, STRICT, Config
from lilliput.storage.dotted_names import flatten
from lilliput.studies.study_files import (
    Amounts,
    Plot,
    QuickForm,
    StudyFile,
    Technique,
    find_study,
    label_line,
    read_study,
)

MEASURED = ("generate.", "measure.")  # settings that do not affect training
UNITS = (*BUDGETS, "flops")
# Settings that a cell cannot have, and the fix of each.
RESERVED = {
    "seed": "use seeds = [1, 2, 3]",
    "name": "remove it: a study names its runs",
    "log.folder": "remove it: a study has one folder for all its runs",
    **{f"train.{unit}": f"use budget = {{ {unit} = N }}" for unit in BUDGETS},
}

COLUMNS = ("seed", "run")  # of every result table

Where = Callable[[str], str]  # dotted setting -> file and line that set it


@dataclass(frozen=True, config=STRICT)
class Axis:
    """Labels with their dotted settings; the others are compared with the label `compare`."""

    name: str
    values: dict[str, dict[str, Any]]
    compare: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Study:
    """A checked study, with its quick form applied if requested."""

    name: str
    title: str
    question: str
    recipe: str
    seeds: tuple[int, ...]
    budget: Amounts
    measure: tuple[str, ...]
    show: tuple[str, ...]
    settings: dict[str, Any]
    axes: tuple[Axis, ...]
    plots: tuple[Plot, ...] = ()
    published: tuple[str, ...] = ()
    history: bool = False
    technique: Technique | None = None
    quick: bool = False

    @property
    def folder_name(self) -> str:
        return f"{self.name}-quick" if self.quick else self.name

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def study_from_dict(content: Mapping[str, Any]) -> Study:
    """Return the study of `Study.as_dict`; raise ValidationError for other content."""
    return TypeAdapter(Study).validate_python(dict(content))


class Cell(NamedTuple):
    """One label of every axis, with the dotted settings of the study and the labels."""

    labels: dict[str, str]
    settings: dict[str, Any]


def cells(study: Study) -> list[Cell]:
    """Return the product of the axes; the last axis varies fastest."""
    found = []
    for labels in itertools.product(*(axis.values for axis in study.axes)):
        chosen = dict(zip((axis.name for axis in study.axes), labels, strict=True))
        settings = {f"budget.{unit}": amount for unit, amount in study.budget.items()} | study.settings
        for axis in study.axes:
            own = axis.values[chosen[axis.name]]
            if any(name.startswith("budget.") for name in own):  # replaces the study's budget, also one of another unit
                settings = {name: value for name, value in settings.items() if not name.startswith("budget.")}
            settings |= own
        found.append(Cell(chosen, settings))
    return found


def budget_of(cell: Cell) -> tuple[str, float]:
    """Return the unit and amount."""
    ((name, amount),) = ((name, value) for name, value in cell.settings.items() if name.startswith("budget."))
    return name.removeprefix("budget."), amount


def cell_config(study: Study, settings: Mapping[str, Any], where: Where | None = None) -> Config:
    """Return the recipe with these settings, without `measure.*`. A budget in FLOPs becomes one token: the number of tokens
    is known only with the vocabulary (`job_plan.tokens_for`)."""
    layer: Layer = {}
    for name, value in settings.items():
        place = where(name) if where else f"study {study.name}"
        unit = name.removeprefix("budget.")
        if name == "budget.flops":
            layer["train.tokens"] = (1, place)
        elif unit != name:
            layer[f"train.{unit}"] = (value, place)
        elif not name.startswith("measure."):
            layer[name] = (value, place)
    return check(merge([*target_layers(study.recipe), layer]), from_flags=set())


def load_study(name_or_path: str | Path, quick: bool = False, seeds: Iterable[int] | None = None) -> Study:
    """Return the checked study of a file; `seeds` replace its own."""
    path = find_study(str(name_or_path))
    text, content = read_study(path)
    if quick and content.quick is None:
        what = f"study {path.stem} has no quick form"
        raise UserError(what, str(path), fix="add [quick] to its file", code="study.file", setting="quick")
    study, errors = build_study(path, text, content, quick)
    if seeds is not None:
        study = replace(study, seeds=tuple(seeds))
    errors += check_study(study, path, text)
    if errors:
        raise UserErrors(errors)
    return study


def build_study(path: Path, text: str, content: StudyFile, quick: bool) -> tuple[Study, list[UserError]]:
    """Return the study, with its quick form applied if requested, and the errors of its parts."""
    short = (content.quick if quick else None) or QuickForm()
    errors: list[UserError] = []

    def add(what: str, name: str, fix: str) -> None:
        errors.append(
            UserError(what, f"{path.name}, line {line_of(text, name)}", fix=fix, code="study.file", setting=name)
        )

    axes: list[Axis] = []
    for name, table in (content.axes or {}).items():
        labels = {label: value for label, value in table.items() if label != "compare"}
        for label, value in labels.items():
            if not isinstance(value, dict):
                what = f"axes.{name}.{label} must be a table of settings (got {value!r})"
                where, fix = f"{path.name}, line {label_line(text, name, label)}", "use {} for no settings"
                errors.append(UserError(what, where, fix=fix, code="study.file", setting=f"axes.{name}"))
        kept = (short.axes or {}).get(name, tuple(labels))
        for label in kept:
            if label not in labels:
                add(
                    f"axis {name} has no label {label!r}",
                    f"quick.axes.{name}",
                    f"use {nearest(label, labels) or 'one of ' + ', '.join(labels)}",
                )
        values = {label: flatten(labels[label]) for label in kept if isinstance(labels.get(label), dict)}
        compare = table.get("compare", next(iter(values), ""))
        if not kept:
            add(f"axis {name} has no labels", f"axes.{name}", "add a label, such as base = {}")
        elif values and compare not in values:
            what = f"axes.{name}.compare must be a label of the axis (got {compare!r})"
            add(what, f"axes.{name}.compare", f"use one of {', '.join(values)}")
        if name in COLUMNS:
            what = f"the axis name {name} is reserved for a column of the result table"
            add(what, f"axes.{name}", "rename the axis")
        axes.append(Axis(name, values, str(compare)))
    for name in (short.axes or {}).keys() - (content.axes or {}).keys():
        close = nearest(name, content.axes or {})
        fix = f"use {close}" if close else f"remove quick.axes.{name}"
        add(f"the study has no axis {name!r}", f"quick.axes.{name}", fix)
    if not (is_there(content.recipe) or (path.parent / content.recipe).exists()):
        close = nearest(content.recipe, [*shipped_recipes(), *BUILT_IN_CORPORA])
        where = f"{path.name}, line {line_of(text, 'recipe')}"
        what = f"recipe {content.recipe!r} does not exist"
        errors.append(UserError(what, where, fix=f"use {close or 'a recipe or a text file'}", code="recipe.missing"))
    own_recipe = path.parent / content.recipe
    study = Study(
        name=path.stem,
        title=content.title,
        question=content.question,
        recipe=str(own_recipe) if own_recipe.exists() else content.recipe,
        seeds=content.seeds if short.seeds is None else short.seeds,
        budget=short.budget or content.budget or {},
        measure=content.measure if short.measure is None else short.measure,
        show=content.show,
        settings=flatten(content.settings or {}) | flatten(short.settings or {}),
        axes=tuple(axes),
        plots=content.plots,
        published=content.published,
        history=content.history,
        technique=content.technique,
        quick=quick,
    )
    return with_inputs(study, path.resolve().parent), errors


def with_inputs(study: Study, folder: Path) -> Study:
    """Resolve the paths in its settings relative to the folder of its file."""

    def resolved(settings: dict[str, Any]) -> dict[str, Any]:
        return {k: resolve_input(value, folder) if k in INPUT_PATHS else value for k, value in settings.items()}

    axes = tuple(
        replace(axis, values={label: resolved(own) for label, own in axis.values.items()}) for axis in study.axes
    )
    return replace(study, settings=resolved(study.settings), axes=axes)


def check_study(study: Study, path: Path, text: str) -> list[UserError]:
    """Return the errors of its seeds, measures, metrics and settings, each once."""
    from lilliput.studies.measures import MEASURES
    from lilliput.studies.study_metrics import FIGURES, UNITS_OF_METRICS, find_figure, is_figure

    errors: list[UserError] = []

    def add(what: str, name: str, fix: str) -> None:
        errors.append(
            UserError(what, f"{path.name}, line {line_of(text, name)}", fix=fix, code="study.file", setting=name)
        )

    if not study.seeds or len(set(study.seeds)) < len(study.seeds):
        what = f"seeds must be one or more different numbers (got {list(study.seeds)})"
        add(what, "seeds", "use seeds = [1, 2, 3]")
    for name in study.measure:
        if name not in MEASURES:
            fix = nearest(name, MEASURES) or f"one of {', '.join(MEASURES)}"
            add(f"unknown measure {name!r}", "measure", f"use {fix}")
    plotted = [name for plot in study.plots for name in (plot.x, plot.y) if name is not None]
    compared = study.technique.metrics if study.technique else ()
    for place, names in (("show", study.show), ("plots", plotted), ("technique", compared)):
        for name in names:
            if not is_figure(name):
                close = nearest(name, FIGURES)
                add(f"unknown metric {name!r}", place, f"use {close}" if close else f"remove {name}")
            elif not set(found := find_figure(name).measures) & set(study.measure):
                what = f"metric {name} requires the measure {' or '.join(found)} (got {', '.join(study.measure)})"
                measures = ", ".join(f'"{one}"' for one in (*study.measure, found[0]))
                add(what, place, f"use measure = [{measures}]")
    for plot in study.plots:
        if plot.kind in ("scatter", "fit") and (plot.x is None or plot.y is None):
            what = f"a plot of kind {plot.kind} requires two metrics, x and y"
            add(what, "plots", 'set both, such as x = "train.seconds" and y = "validation.loss"')
        if plot.kind == "curves" and plot.x not in (None, *UNITS_OF_METRICS):
            what = f"curves are drawn against {', '.join(UNITS_OF_METRICS)} (got x = {plot.x!r})"
            add(what, "plots", "use one of them as x, or remove x")
    if study.technique is not None and not study.quick:  # the quick form may leave labels out
        for key in study.technique.unknown_cells({axis.name: axis.values for axis in study.axes}):
            what = f"technique.{key} must have one label of every axis (got {getattr(study.technique, key)})"
            add(what, f"technique.{key}", f"use labels of {', '.join(axis.name for axis in study.axes)}")
    if not is_there(study.recipe):
        return errors  # already reported; settings cannot be checked without the recipe
    for cell in cells(study):

        def where(name: str, cell: Cell = cell) -> str:
            return f"{path.name}, line {setting_line(study, cell, name, text)}"

        errors += check_cell(study, cell, where)
    return list({(error.what, error.where): error for error in errors}.values())


def is_there(recipe: str) -> bool:
    return recipe in BUILT_IN_CORPORA or find_recipe(recipe) is not None or Path(recipe).exists()


def check_cell(study: Study, cell: Cell, where: Where) -> list[UserError]:
    from lilliput.studies.measure_settings import read_settings

    errors = reserved_settings(study, cell, where)
    budgets = [name for name in cell.settings if name.startswith("budget.")]
    if len(budgets) != 1:
        what, place = f"a study requires one budget (got {len(budgets)})", where(budgets[0]) if budgets else None
        errors.append(UserError(what, place, fix="use budget = { steps = 500 }", code="study.file", setting="budget"))
    if errors:
        return errors  # these settings would also be reported as conflicts
    try:
        cell_config(study, cell.settings, where)
    except UserErrors as several:
        errors += several.errors
    except UserError as error:
        errors.append(error)
    try:
        read_settings(cell.settings)
    except UserErrors as several:
        for one in several.errors:
            assert one.setting is not None
            errors.append(UserError(one.what, where(one.setting), fix=one.fix, code=one.code, setting=one.setting))
    return errors


def reserved_settings(study: Study, cell: Cell, where: Where) -> list[UserError]:
    """Return an error for each setting that a cell cannot have."""
    found = [
        UserError(f"{name} cannot be a setting of a study", where(name), fix=fix, code="study.cell", setting=name)
        for name, fix in RESERVED.items()
        if name in cell.settings
    ]
    found += [
        UserError(
            f"unknown unit of a budget: {name.removeprefix('budget.')}",
            where(name),
            fix=f"use one of {', '.join(UNITS)}",
            code="study.cell",
            setting=name,
        )
        for name in cell.settings
        if name.startswith("budget.") and name.removeprefix("budget.") not in UNITS
    ]
    if any("data.seed" in axis.values[cell.labels[axis.name]] for axis in study.axes):
        what = "data.seed on an axis gives cells different validation splits"
        fix = "set data.seed in [settings], the same for all cells"
        found.append(UserError(what, where("data.seed"), fix=fix, code="study.cell", setting="data.seed"))
    return found


def setting_line(study: Study, cell: Cell, name: str, text: str) -> int:
    """Return the line that sets a cell's setting."""
    for axis in reversed(study.axes):
        label = cell.labels[axis.name]
        if name in axis.values[label]:
            return label_line(text, axis.name, label)
    quick = line_of(text, f"quick.settings.{name}") if study.quick else 1
    return line_of(text, f"settings.{name}") if quick == 1 else quick
