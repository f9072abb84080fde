"""`lilliput study`: run a study (a grid of settings over several seeds) and report it, or list the shipped studies."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.cli.output import print_json, stderr_console, stdout_console
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.studies.grid import Study
    from lilliput.studies.study_results import StudyResult

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput study                                 list the shipped studies
    lilliput study window --dry-run                print its runs, budget and estimated time
    lilliput study window --quick                  run a short version (minutes, one seed)
    lilliput study window                          run the study, or resume it
    lilliput study --summary                       compare the techniques of the studies in runs/
    lilliput study window --seeds 1,2,3,4,5,6,7    use more seeds; finished runs are kept
    lilliput study mine.toml --folder elsewhere    run your own study in elsewhere/mine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", nargs="?", help="study (path, or name of a shipped one) [list the shipped studies]")
    parser.add_argument("--quick", action="store_true", help="run the short version of the study, in a separate folder")
    parser.add_argument("--seeds", help="seeds, such as 1,2,3 [those of the study]")
    parser.add_argument("--folder", default="runs", help="parent of the study folder [runs]")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the results in the study folder and start again"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the runs and the estimated time; do not run")
    parser.add_argument(
        "--summary", action="store_true", help="write a page that compares the techniques of the studies in the folder"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    seeds = None if arguments.seeds is None else parse_seeds(arguments.seeds)
    if arguments.summary:
        return write_summary(arguments)
    if arguments.study is None:
        return list_studies(arguments)
    from lilliput.api.consoles import ProgressOutput
    from lilliput.api.study_progress import showing
    from lilliput.studies.grid import load_study
    from lilliput.studies.runner import run_study
    from lilliput.studies.subprocesses import Interrupted

    study = load_study(arguments.study, arguments.quick, seeds)
    folder = Path(arguments.folder) / study.folder_name
    if arguments.dry_run:
        return print_plan(study, folder, arguments.json)
    console, command = stderr_console(), repeat(arguments)
    try:
        with showing(ProgressOutput(console)) as report:
            outcome = run_study(study, folder, report, arguments.overwrite, command)
    except Interrupted as stopped:
        console.print(f"stopped; finished work is kept; resume with\n  {command}", markup=False)
        return 128 + stopped.number
    return print_outcome(outcome, arguments.json)


def parse_seeds(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() and int(word) < 2**32 for word in words):
        what = f"--seeds must be integers from 0, separated by commas (got {text!r})"
        raise UserError(what, None, fix="use --seeds 1,2,3", code="flag.value")
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        what = f"the seeds must be different (got --seeds {text})"
        distinct = list(dict.fromkeys(seeds)) if len(set(seeds)) > 1 else [1, 2, 3]
        fix = f"use --seeds {','.join(map(str, distinct))}"
        raise UserError(what, None, fix=fix, code="flag.value")
    return seeds


def repeat(arguments: argparse.Namespace) -> str:
    """Return the command that resumes the study."""
    words = ["lilliput", "study", arguments.study]
    words += ["--quick"] if arguments.quick else []
    words += ["--seeds", arguments.seeds] if arguments.seeds is not None else []
    words += ["--folder", arguments.folder] if arguments.folder != "runs" else []
    return shlex.join(words)


def list_studies(arguments: argparse.Namespace) -> int:
    given = [
        f"--{name.replace('_', '-')}" for name in ("quick", "seeds", "overwrite", "dry_run") if getattr(arguments, name)
    ]
    if given:
        raise UserError(
            f"{given[0]} requires a study", None, fix=f"run lilliput study window {given[0]}", code="flag.missing"
        )
    from rich.table import Table

    from lilliput.studies.study_files import read_study, shipped_studies

    found = []
    for name, path in shipped_studies().items():
        _, written = read_study(path)
        found.append({"name": name, "title": written.title, "question": written.question})
    if arguments.json:
        print_json(found)
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in found:
        table.add_row(one["name"], one["question"] or one["title"])
    console = stdout_console()
    console.print(table)
    console.print("run a study in minutes with: lilliput study NAME --quick")
    return 0


def write_summary(arguments: argparse.Namespace) -> int:
    """Write the page of techniques from the studies in the folder: the shipped ones, and the user's that have a technique."""
    given = [f"--{name.replace('_', '-')}" for name in ("seeds", "overwrite", "dry_run") if getattr(arguments, name)]
    if arguments.study is not None or given:
        other = arguments.study if arguments.study is not None else given[0]
        what, fix = f"--summary reads all studies in a folder (got {other} as well)", f"remove {other} or --summary"
        raise UserError(what, None, fix=fix, code="flag.conflict")
    from lilliput.cli.report import print_report_path
    from lilliput.reports.report_files import write_document
    from lilliput.studies.grid import load_study
    from lilliput.studies.study_files import shipped_studies
    from lilliput.studies.study_results import STUDY, read_result
    from lilliput.studies.technique_summary import technique_document

    folder = Path(arguments.folder)
    results = [read_result(path.parent) for path in sorted(folder.glob(f"*/{STUDY}"))]
    found = {one.study.name: one for one in results if one.study.quick == arguments.quick and one.rows}
    if not found:
        command = "lilliput study window --quick" if arguments.quick else "lilliput study window"
        what, fix = "the folder has no results of studies", f"run a study first, such as {command}"
        raise UserError(what, str(folder), fix=fix, code="study.incomplete")
    studies = [load_study(name) for name in shipped_studies()]  # a folder of an older version has no technique
    studies += [one.study for name, one in found.items() if name not in shipped_studies()]
    rows = {name: one.rows for name, one in found.items()}
    page, markdown = write_document(technique_document(studies, rows), folder / "techniques.html")
    if arguments.json:
        print_json({"studies": list(found), "report": str(page), "markdown": str(markdown)})
    else:
        print_report_path(page)
    return 0


# Plan


def print_plan(study: Study, folder: Path, as_json: bool) -> int:
    from lilliput.api.study_progress import clock
    from lilliput.studies.grid import budget_of, cells
    from lilliput.studies.measure_settings import MEASURE_TEXTS
    from lilliput.studies.time_estimate import estimate_study

    found = estimate_study(study, folder)
    measured, seconds, lacking = found.measured, found.seconds, found.lacking
    trainings = found.trainings
    about = {
        "study": study.as_dict(),
        "folder": str(folder),
        "cells": [{"labels": cell.labels, "settings": cell.settings} for cell in cells(study)],
        "runs": [job.run for job in trainings],
        "measurements": found.measurements,
        "measured": measured,
        "seconds_estimate": seconds,
        "lacking": lacking,
    }
    if as_json:
        print_json(about)
        return 0
    console = stdout_console()
    console.print(study.title, style="bold", markup=False)
    if study.question:
        console.print(study.question, markup=False)
    for axis in study.axes:
        for label, settings in axis.values.items():
            changes = ", ".join(f"{name} {value}" for name, value in settings.items()) or "unchanged recipe"
            mark = " (reference)" if label == axis.compare else ""
            console.print(f"  {axis.name}  {label}: {changes}{mark}", markup=False)
    budgets = {budget_of(cell) for cell in cells(study)}
    budget = f", {' '.join(map(str, budgets.pop()[::-1]))} each" if len(budgets) == 1 else ", budgets as above"
    console.print(f"runs          {len(trainings)}{budget}", markup=False)
    console.print(f"seeds         {', '.join(map(str, study.seeds))}")
    console.print(f"measurements  {about['measurements']}, one per cell (combination of values) and seed", markup=False)
    for number, measure in enumerate(study.measure):
        console.print(f"{'' if number else 'measured':14}{measure}: {MEASURE_TEXTS[measure]}", markup=False)
    console.print(f"time          about {clock(seconds)}", markup=False)
    console.print(f"folder        {folder}" + (f" ({measured} rows are finished)" if measured else ""), markup=False)
    for one in lacking:
        console.print(f"missing data: {one}", style="yellow", markup=False)
    return 0


# Result


def print_outcome(outcome: StudyResult, as_json: bool) -> int:
    from lilliput.cli.report import print_report_path
    from lilliput.studies.comparison import find_missing
    from lilliput.studies.study_report import write_report
    from lilliput.studies.study_results import TABLE
    from lilliput.studies.study_verdict import verdict_lines

    page, markdown = write_report(outcome) if outcome.rows else (None, None)
    missing, failed, verdict = find_missing(outcome), outcome.about["failed"], verdict_lines(outcome)
    if as_json:
        about = {
            "study": outcome.study.name,
            "folder": str(outcome.folder),
            "verdict": verdict,
            "rows": [
                {"cell": row.cell, "seed": row.seed, "run": row.run, "figures": row.figures} for row in outcome.rows
            ],
            "missing": [{"cell": cell, "seed": seed} for cell, seed in missing],
            "failed": failed,
            "seconds": outcome.about["seconds"],
            "report": None if page is None else str(page),
            "markdown": None if markdown is None else str(markdown),
            "table": str(outcome.folder / TABLE),
        }
        print_json(about)
        return 1 if missing else 0
    console = stdout_console()
    for line in verdict:
        console.print(line, markup=False)
    for one in failed:
        console.print(f"failed  {one['kind']} {one['name']}: {one['what']}", style="red", markup=False)
    if missing:
        rows = ", ".join(f"{'/'.join(cell.values())} with seed {seed}" for cell, seed in missing)
        console.print(
            f"missing {len(missing)} of {len(missing) + len(outcome.rows)}: {rows}; run the same command again to retry",
            markup=False,
        )
    if page is not None:
        console.print(f"table   {outcome.folder / TABLE}", markup=False)
        print_report_path(page)
    return 1 if missing else 0
