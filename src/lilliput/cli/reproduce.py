"""`lilliput reproduce`: run what a published report needs, and write its tables and figures next to ours."""

from __future__ import annotations

import argparse
import math
import shlex
from typing import TYPE_CHECKING, Any

from lilliput.cli.output import print_json, stderr_console, stdout_console
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.studies.reproduction_plan import Part, Plan
    from lilliput.studies.reproduction_report import Outcome

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput reproduce                               list the shipped reproductions
    lilliput reproduce speeches --dry-run            print its runs, studies and estimated time
    lilliput reproduce speeches --quick              run a short version (at most 6 minutes on two cores)
    lilliput reproduce speeches                      run it, or resume it
    lilliput reproduce speeches --minutes 10         scale the budgets of its runs to 10 minutes in total
    lilliput reproduce paper.toml --folder results   run your own file; its runs are in results/reproduce-paper
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reproduction", nargs="?", help="reproduction (path, or name of a shipped one) [list them]")
    parser.add_argument("--quick", action="store_true", help="run the short version, in a separate folder")
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=float,
        help="scale the budgets of all runs so that their training takes about N minutes on two cores",
    )
    parser.add_argument("--folder", default="runs", help="parent of the folder of the reproduction [runs]")
    parser.add_argument("--overwrite", action="store_true", help="delete its runs and start again; studies are kept")
    parser.add_argument("--dry-run", action="store_true", help="print the runs and the estimated time; do not run")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if arguments.minutes is not None and not (math.isfinite(arguments.minutes) and arguments.minutes > 0):
        what = f"--minutes must be a number greater than 0 (got {arguments.minutes})"
        raise UserError(what, None, fix="use --minutes 10", code="flag.value")
    if arguments.reproduction is None:
        return list_reproductions(arguments)
    from lilliput.studies.reproduction_plan import Form, load_plan, run_plan
    from lilliput.studies.subprocesses import Interrupted

    plan = load_plan(arguments.reproduction, arguments.folder, Form(arguments.quick, arguments.minutes))
    if arguments.dry_run:
        return print_plan(plan, arguments.json)
    from lilliput.api.consoles import ProgressOutput
    from lilliput.api.study_progress import showing

    console, command = stderr_console(), repeat(arguments)

    def began(part: Part) -> None:
        number = plan.parts.index(part) + 1
        console.print(f"{part.kind} {part.name} ({number} of {len(plan.parts)})", style="bold", markup=False)

    try:
        with showing(ProgressOutput(console)) as report:
            failures = run_plan(plan, report, began, arguments.overwrite, command)
    except Interrupted as stopped:
        console.print(f"stopped; finished work is kept; resume with\n  {command}", markup=False)
        return 128 + stopped.number
    console.print("writing the document", markup=False)
    return print_outcome(plan, failures, arguments.json)


def repeat(arguments: argparse.Namespace) -> str:
    """Return the command that resumes the reproduction."""
    words = ["lilliput", "reproduce", arguments.reproduction]
    words += ["--quick"] if arguments.quick else []
    words += ["--minutes", f"{arguments.minutes:g}"] if arguments.minutes is not None else []
    words += ["--folder", arguments.folder] if arguments.folder != "runs" else []
    return shlex.join(words)


def list_reproductions(arguments: argparse.Namespace) -> int:
    given = [f"--{name}" for name in ("quick", "minutes", "overwrite", "dry-run") if getattr(arguments, under(name))]
    if given:
        what, fix = f"{given[0]} requires a reproduction", f"run lilliput reproduce speeches {given[0]}"
        raise UserError(what, None, fix=fix, code="flag.missing")
    from rich.table import Table

    from lilliput.studies.reproduction_files import read_reproduction, shipped_reproductions

    found: list[dict[str, Any]] = []
    for name in shipped_reproductions():
        content = read_reproduction(name)
        about = {"name": name, "title": content.title, "report": content.report}
        found.append(about | {"items": len(content.items), "runs": len(content.runs), "studies": len(content.studies)})
    if arguments.json:
        print_json(found)
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for one in found:
        table.add_row(one["name"], one["report"], one["title"], f"{one['items']} tables and figures")
    console = stdout_console()
    console.print(table)
    console.print("run one in minutes with: lilliput reproduce NAME --quick")
    return 0


def under(name: str) -> str:
    return name.replace("-", "_")


# Plan


def print_plan(plan: Plan, as_json: bool) -> int:
    from lilliput.api.study_progress import clock
    from lilliput.studies.grid import budget_of, cells
    from lilliput.studies.study_report import format_settings
    from lilliput.studies.time_estimate import STARTING, estimate_study

    parts: list[dict[str, Any]] = []
    for part in plan.parts:
        estimate, finished = estimate_study(part.study, part.folder), part.is_finished()
        processes = len(estimate.trainings) + estimate.measurements + 1
        # The training time of the runs is that of the file: a budget in epochs is not known before the text is read.
        own = processes * STARTING if part.kind == "run" else estimate.seconds
        unit, amount = budget_of(cells(part.study)[0])
        parts.append(
            {
                "kind": part.kind,
                "name": part.name,
                "recipe": part.study.recipe,
                "settings": part.study.settings if part.kind == "run" else {},
                "budget": {unit: amount},
                "seeds": list(part.study.seeds),
                "cells": len(cells(part.study)),
                "folder": str(part.folder),
                "finished": finished,
                "seconds_estimate": 0.0 if finished else own,
                "lacking": estimate.lacking,
            }
        )
    training = 0.0
    if any(not one["finished"] for one in parts if one["kind"] == "run"):
        usual = plan.content.minutes
        training = 60 * (plan.form.minutes or (usual.quick if plan.form.quick else usual.full))
    about = {
        "reproduction": plan.name,
        "title": plan.content.title,
        "folder": str(plan.folder),
        "items": [{"place": item.place, "title": item.title} for item in plan.content.items],
        "parts": parts,
        "training_seconds_estimate": training,
        "seconds_estimate": training + sum(one["seconds_estimate"] for one in parts),
    }
    if as_json:
        print_json(about)
        return 0
    console = stdout_console()
    console.print(f"{plan.content.title} (report {plan.content.report})", style="bold", markup=False)
    for one in parts:
        budget = ", ".join(f"{amount:,} {unit}" for unit, amount in one["budget"].items())
        several = f", {one['cells']} cells" if one["cells"] > 1 else ""
        seeds = f"seed{'s' if len(one['seeds']) > 1 else ''} {', '.join(map(str, one['seeds']))}"
        work = f"recipe {one['recipe']}, {budget}{several}, {seeds}"
        console.print(
            f"  {one['kind']:5}  {one['name']}: {work}{' (finished)' if one['finished'] else ''}", markup=False
        )
        if one["settings"]:
            console.print(f"         with {format_settings(one['settings'])}", markup=False)
    console.print(f"items         {len(plan.content.items)} tables and figures", markup=False)
    seconds = clock(about["seconds_estimate"])
    console.print(f"time          about {seconds}, of which training of runs {clock(training)}", markup=False)
    console.print(f"folder        {plan.folder}", markup=False)
    for text in dict.fromkeys(text for one in parts for text in one["lacking"]):
        console.print(f"missing data: {text}", style="yellow", markup=False)
    return 0


# Result


def print_outcome(plan: Plan, failures: list[dict[str, str]], as_json: bool) -> int:
    from lilliput.cli.report import print_report_path
    from lilliput.studies.reproduction_report import produce, write_reproduction

    outcome = produce(plan)
    page, markdown = write_reproduction(outcome)
    unfinished = [part.name for part in plan.parts if not part.is_finished()]
    code = 1 if failures or unfinished else 0
    if as_json:
        about = {
            "reproduction": plan.name,
            "report": plan.content.report,
            "folder": str(plan.folder),
            "items": describe_items(outcome),
            "unfinished": unfinished,
            "failed": failures,
            "html": str(page),
            "markdown": str(markdown),
        }
        print_json(about)
        return code
    console = stdout_console()
    for one in outcome.items:
        text = f": {one.text}" if one.text else ""
        console.print(f"{one.state:12}  {one.item.place}, {one.item.title}{text}", markup=False)
    for failure in failures:
        words = f"failed  {failure['part']}, {failure['kind']} {failure['name']}: {failure['what']}"
        console.print(words, style="red", markup=False)
    if unfinished:
        console.print(f"unfinished: {', '.join(unfinished)}; run the same command again to retry", markup=False)
    print_report_path(page)
    return code


def describe_items(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the checklist with the values of every table."""
    return [
        {
            "place": one.item.place,
            "title": one.item.title,
            "kind": getattr(one.item, "kind", None),
            "state": one.state,
            "text": one.text,
            "values": [
                {
                    "row": cell.row.name,
                    "column": cell.column.name,
                    "published": cell.published,
                    "ours": cell.ours.value,
                    "difference": cell.difference,
                    "reason": cell.ours.reason or None,
                }
                for row in one.rows
                for cell in row
            ],
        }
        for one in outcome.items
    ]
