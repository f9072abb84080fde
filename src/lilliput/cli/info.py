"""`lilliput info`: list runs, show one, or compare two or more. Needs no torch."""

from __future__ import annotations

import argparse
from typing import Any

from lilliput.cli.output import print_json, readable, stdout_console

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput info                                   list all runs
    lilliput info demo                              show a run
    lilliput info demo --json
    lilliput info demo mine                         compare two runs
    lilliput info demo mine slower                  three or more runs: one table, a row per run
    lilliput info --schema > recipe.schema.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", help="run to show, or runs to compare [list all runs]")
    parser.add_argument("--folder", default="runs", help="folder of runs [runs]")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of recipes")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        from lilliput.settings.recipes import recipe_schema

        print_json(recipe_schema())
        return 0
    show = {1: print_one, 2: print_two}.get(len(arguments.runs), print_all)
    show(arguments)
    return 0


def print_all(arguments: argparse.Namespace) -> None:
    from rich.markup import escape
    from rich.table import Table

    from lilliput.storage.run_folders import find_run, list_runs, summarise_run

    names = arguments.runs
    found = (
        [summarise_run(find_run(name, arguments.folder)) for name in names] if names else list_runs(arguments.folder)
    )
    if arguments.json:
        print_json(found)
    elif not found:
        stdout_console().print(f"no runs in {arguments.folder}/; train one with: lilliput train demo")
    else:
        columns = {"loss": "loss", "bits_per_byte": "bits/byte", "accuracy": "accuracy"}
        if all(run["accuracy"] is None for run in found):
            del columns["accuracy"]
        table = Table("run", "state", "steps", *columns.values(), box=None, pad_edge=False)
        for run in found:
            shown = (figure(run[name]) for name in columns)
            table.add_row(escape(run["name"]), run["state"], f"{run['steps']:,}", *shown)
        stdout_console().print(table)


def print_one(arguments: argparse.Namespace) -> None:
    from rich.markup import escape

    from lilliput.evaluation.metric_format import format_limit

    about = describe_run(arguments.runs[0], arguments.folder)
    if arguments.json:
        print_json(about)
        return
    console, parameters, model = stdout_console(), about["parameters"], about["config"]["model"]
    console.print(f"[bold]{escape(about['name'])}[/]  {escape(about['folder'])}")
    passed = f"{readable(about['tokens_seen'])} tokens, {about['seconds'] / 60:.1f} minutes of training"
    console.print(f"  steps       {about['steps']:,}, {passed}")
    if about["limited_at"] is not None:
        console.print(f"  end         {format_limit(about['limited_at'])}")
    if about["validation"]:
        console.print(f"  validation  {format_loss(about['validation'])} (best)")
    for name, found in about["tests"].items():
        console.print(f"  test        {escape(name)}: {format_loss(found)}")
    shape = ", ".join(f"{name} {model[name]:,}" for name in ("dim", "layers", "heads", "context", "vocab_size"))
    console.print(f"  model       {shape}")
    console.print("  parameters  " + ", ".join(f"{part} {n:,}" for part, n in parameters.items()))
    console.print(f"  FLOPs       {readable(about['flops_per_token'])} per token, forward and backward")
    for checkpoint in about["checkpoints"]:
        marks = " ".join(mark for mark in ("best", "last") if checkpoint[mark])
        good = "" if checkpoint["verified"] else "  [red]damaged[/]"
        console.print(f"  checkpoint  {checkpoint['name']}  {readable(checkpoint['bytes'])}B  {marks}{good}")


def print_two(arguments: argparse.Namespace) -> None:
    from rich.markup import escape
    from rich.table import Table

    from lilliput.settings.loading import without_removed
    from lilliput.storage.run_folders import differences

    first, second = (describe_run(name, arguments.folder) for name in arguments.runs)
    found = differences(*(without_removed(about["config"], about["folder"]) for about in (first, second)))
    if arguments.json:
        print_json({name: list(values) for name, values in found.items()})
        return
    table = Table("setting", *(escape(name) for name in arguments.runs), box=None, pad_edge=False)
    for name, (one, two) in found.items():
        table.add_row(name, *(escape("none" if value is None else str(value)) for value in (one, two)))
    for name in ("loss", "bits_per_byte", "accuracy"):
        pair = [about["validation"][name] if about["validation"] else None for about in (first, second)]
        if pair != [None, None]:
            table.add_row(f"validation {name}", *(figure(value) for value in pair))
    stdout_console().print(table)


def describe_run(name: str, folder: str) -> dict[str, Any]:
    """Return the summary of a run with its parameter counts."""
    from lilliput.model.counting import count
    from lilliput.settings.loading import config_from_dict
    from lilliput.storage.checkpoints import CONFIG
    from lilliput.storage.run_folders import RunFolder, describe, find_run

    run = find_run(name, folder)
    if not isinstance(run, RunFolder):
        run = RunFolder.open(run.folder.absolute().parents[1])
    about = describe(run)
    config = config_from_dict(about["config"], str(run.folder / CONFIG))
    counted = count(config.model, config.vectors).as_dict()
    return {"name": run.name, "folder": str(run.folder), **about, **counted}


def format_loss(found: dict[str, Any]) -> str:
    from lilliput.evaluation.metric_format import format_figures

    return ", ".join([f"loss {found['loss']:.4f}", *format_figures(found)])


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
