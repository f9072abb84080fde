"""The work of a reproduction: each run of its file is a study of one seed, and the studies that it names keep their own folders.

Owns: the forms of a reproduction (full, quick, other budgets), its folders, the studies to run, and running them in order. Does
not own: the file (`reproduction_files`), checks of names (`reproduction_checks`), trainings and measurements (`runner`).

All runs and studies are resumable, because `runner.run_study` is: finished trainings and measurements are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.recipes import read_toml, shipped_recipes
from lilliput.settings.source_names import BUILT_IN_CORPORA
from lilliput.storage.dotted_names import flatten
from lilliput.studies.grid import Axis, Study, check_study, is_there, load_study, with_inputs
from lilliput.studies.reproduction_files import (
    PlannedRun,
    PlannedStudy,
    QuickRun,
    Reproduction,
    find_reproduction,
    read_reproduction,
)
from lilliput.studies.runner import Report, ignore, run_study
from lilliput.studies.study_files import Amounts
from lilliput.studies.study_results import STUDY, StudyResult, read_result

CELLS = "evaluation"  # name of the axis of a run's cells


@dataclass(frozen=True)
class Form:
    """`minutes` replaces the estimated training time of all runs: every budget of a run is scaled."""

    quick: bool = False
    minutes: float | None = None

    def folder_name(self, name: str) -> str:
        quick = "-quick" if self.quick else ""
        return f"reproduce-{name}{quick}" + ("" if self.minutes is None else f"-{self.minutes:g}-minutes")


@dataclass(frozen=True)
class Part:
    """A run or a study of the reproduction: `study` is what is run in `folder`, `whole` its full form, for checks of names."""

    kind: Literal["run", "study"]
    name: str
    study: Study
    whole: Study
    folder: Path

    def result(self) -> StudyResult | None:
        """Return the results so far; None before the part was started."""
        return read_result(self.folder) if (self.folder / STUDY).exists() else None

    def is_finished(self) -> bool:
        from lilliput.studies.comparison import find_missing

        found = self.result()
        return found is not None and not find_missing(replace(found, study=self.study))


@dataclass(frozen=True)
class Plan:
    """A checked reproduction in one form; `folder` has its runs and its document."""

    path: Path
    content: Reproduction
    form: Form
    folder: Path
    runs: Mapping[str, Part]
    studies: Mapping[str, Part]

    @property
    def parts(self) -> list[Part]:
        return [*self.runs.values(), *self.studies.values()]

    @property
    def name(self) -> str:
        return self.path.stem


def load_plan(name_or_path: str | Path, folder: str | Path = "runs", form: Form | None = None) -> Plan:
    """Read and check a reproduction; raise all errors of its names, settings and tables at once."""
    from lilliput.studies.reproduction_checks import check_items
    from lilliput.studies.reproduction_settings import compare_settings

    form, path = form or Form(), find_reproduction(str(name_or_path))
    content, (text, _) = read_reproduction(path), read_toml(path, "reproduction")
    place = Path(folder) / form.folder_name(path.stem)
    errors: list[UserError] = []
    runs: dict[str, Part] = {}
    studies: dict[str, Part] = {}
    for run in content.runs:
        study, whole = (build_run(path, content, run, one) for one in (form, Form()))
        errors += check_recipe(study, path) or check_study(whole, path, text) or check_study(study, path, text)
        runs[run.name] = Part("run", run.name, study, whole, place / run.name)
    for planned in content.studies:
        try:
            studies[planned.name] = build_part(path, planned, form, Path(folder))
        except UserErrors as several:
            errors += several.errors
        except UserError as error:
            errors.append(error)
    plan = Plan(path, content, form, place, runs, studies)
    errors += check_items(plan, text)
    if errors:
        raise UserErrors(list({(error.what, error.where): error for error in errors}.values()))
    compare_settings(content)
    return plan


def check_recipe(study: Study, path: Path) -> list[UserError]:
    if is_there(study.recipe):
        return []
    close = nearest(study.recipe, [*shipped_recipes(), *BUILT_IN_CORPORA])
    what, fix = f"recipe {study.recipe!r} does not exist", f"use {close or 'a recipe or a text file'}"
    return [UserError(what, f"{path.name}, run {study.name}", fix=fix, code="recipe.missing")]


def build_run(path: Path, content: Reproduction, run: PlannedRun, form: Form) -> Study:
    """Return the study of one run, with one cell, or one for each label of `cells`."""
    quick = run.quick if form.quick else QuickRun()
    cells = {label: flatten(settings) for label, settings in (run.cells or {}).items()}
    own = path.parent / run.recipe
    usual = content.minutes.quick if form.quick else content.minutes.full
    study = Study(
        name=run.name,
        title=f"{content.title}: {run.name}",
        question="",
        recipe=str(own) if own.exists() else run.recipe,
        seeds=(run.seed,),
        budget=scale_budget(quick.budget or run.budget, 1.0 if form.minutes is None else form.minutes / usual),
        measure=run.measure,
        show=(),
        settings=flatten(run.settings or {}) | flatten(quick.settings or {}),
        axes=(Axis(CELLS, cells, next(iter(cells))),) if cells else (),
    )
    return with_inputs(study, path.resolve().parent)


def scale_budget(budget: Amounts, factor: float) -> Amounts:
    """Multiply a budget; steps and tokens stay whole numbers of at least one."""
    whole = ("steps", "tokens")
    return {unit: max(1, round(n * factor)) if unit in whole else n * factor for unit, n in budget.items()}


def build_part(path: Path, planned: PlannedStudy, form: Form, folder: Path) -> Part:
    """Return a study with the seeds of the file and those that are finished in its folder."""
    own = path.parent / planned.name
    target = str(own) if own.is_file() else planned.name
    quick = planned.quick or form.quick
    study = load_study(target, quick, None if form.quick else planned.seeds)
    place = folder / study.folder_name
    if (place / STUDY).exists():
        finished = {row.seed for row in read_result(place).rows}
        study = replace(study, seeds=tuple(dict.fromkeys([*study.seeds, *sorted(finished)])))
    return Part("study", planned.name, study, load_study(target), place)


def run_plan(
    plan: Plan,
    report: Report = ignore,
    began: Callable[[Part], None] = lambda part: None,
    overwrite: bool = False,
    command: str = "lilliput.reproduce",
) -> list[dict[str, str]]:
    """Run the unfinished parts in order; return the failures. `overwrite` starts the runs again, but not the studies, which
    other reproductions share."""
    failures = []
    for part in plan.parts:
        began(part)
        again = overwrite and part.kind == "run"
        result = run_study(part.study, part.folder, report, again, command)
        failures += [{"part": part.name, **failure} for failure in result.about["failed"]]
    return failures
