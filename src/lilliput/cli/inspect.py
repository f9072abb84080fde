"""`lilliput inspect`: a model's summary, shapes, first numbers and masks, and checks that run now on this very model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.output import print_json, stdout_console
from lilliput.cli.report import print_report_path
from lilliput.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from lilliput.interpret.inspection import Inspection
    from lilliput.model.transformer import Transformer

TAKES_SETTINGS = True
EXAMPLES = """
    lilliput inspect demo                             the run demo; if there is no such run, the recipe
    lilliput inspect demo --model.window 8            the recipe demo with another setting
    lilliput inspect demo --html inspection.html      also write a page with pictures of masks and positions
    lilliput inspect demo --json
"""
ROWS, COLUMNS = 4, 8  # numbers of a table that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="RECIPE|RUN",
        help="run (folder, or name in runs/) or recipe; if both have this name: the run, or the recipe if you give a setting",
    )
    parser.add_argument("--html", metavar="FILE", help="also write an .html page with pictures")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from lilliput.reports.report_files import check_place

    if arguments.html is not None:
        with flags_in_errors():
            check_place(Path(arguments.html))
    name, model = load_model(arguments.target, arguments.settings)
    from lilliput.interpret.inspection import inspect_model

    found = inspect_model(model)
    if arguments.html is not None:
        from lilliput.reports.inspection_report import write_inspection

        write_inspection(name, found, Path(arguments.html))
    if arguments.json:
        print_json(as_dict(found))
    else:
        print_inspection(name, found)
    if arguments.html is not None:
        print_report_path(Path(arguments.html))
    return 0 if all(check.passed for check in found.checks) else 1


def load_model(target: str, settings: dict[str, str]) -> tuple[str, Transformer]:
    """Return the model of a run, or, if there is no such run or settings are given, a new one by a recipe; and its name."""
    from lilliput.storage.run_folders import resolve_checkpoint

    try:
        checkpoint = None if settings else resolve_checkpoint(target)
    except UserError as error:
        if error.code != "run.missing":
            raise
        checkpoint = None
    if checkpoint is not None:
        from lilliput.decoding.writer import load

        return f"{target}, weights of {checkpoint.name}", load(checkpoint.folder).model
    from lilliput.model.transformer import build_model
    from lilliput.settings.loading import load_config
    from lilliput.settings.recipes import shipped_recipes
    from lilliput.training.cost_estimate import assume_data

    try:
        config = assume_data(load_config(target, settings, origin="command line"))
    except UserError as error:
        if error.code != "recipe.missing" or settings:
            raise
        what = f"no run or recipe is named {target!r}"
        close = nearest(target, shipped_recipes())
        others = f"give a run (lilliput info lists them), a recipe or a shipped recipe: {', '.join(shipped_recipes())}"
        fix = f"use {close}" if close else others
        raise UserError(what, fix=fix, code="recipe.missing") from None
    return f"recipe {target}, new weights", build_model(config.model, config.vectors, seed=config.seed)


def as_dict(found: Inspection) -> dict[str, Any]:
    return {
        "parts": [vars(part) for part in found.parts],
        "stages": [vars(stage) for stage in found.stages],
        "embedding": numbers(found.embedding),
        "positions": {"kind": found.position_kind, "rows": numbers(found.positions)},
        "masks": {str(window): mask.int().tolist() for window, mask in found.masks.items()},
        "checks": [vars(check) | {"passed": check.passed} for check in found.checks],
    }


def numbers(table: Tensor | None) -> list[list[float]] | None:
    return None if table is None else table[:ROWS, :COLUMNS].tolist()


def print_inspection(name: str, found: Inspection) -> None:
    from rich.table import Table

    from lilliput.interpret.inspection import mask_text

    console = stdout_console()

    def title(text: str) -> None:
        console.print(f"\n[bold]{text}[/]")

    console.print(f"[bold]{name}[/]")
    title("parts")
    table = Table("part", "kind", "parameters", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for part in found.parts:
        table.add_row(part.name, part.kind, f"{part.parameters:,}")
    console.print(table)
    title("shapes of one batch")
    table = Table("stage", "shape", box=None, pad_edge=False)
    for stage in found.stages:
        table.add_row(stage.name, " x ".join(map(str, stage.shape)))
    console.print(table)
    title(f"embedding: first rows of {' x '.join(map(str, found.embedding.shape))}")
    console.print(number_lines(found.embedding), markup=False)
    cosines = " (cosine of the angle; a row per position)" if found.position_kind == "rotary" else ""
    title(f"positions: {found.position_kind}{cosines}")
    nothing = "no encoding is added to the embedding"
    console.print(nothing if found.positions is None else number_lines(found.positions), markup=False)
    for window, mask in found.masks.items():
        layers = "every layer" if len(found.masks) == 1 else "layers"
        title(f"mask of {layers} " + ("(no window)" if window is None else f"with window {window}"))
        console.print(mask_text(mask), markup=False)
    title("checks")
    table = Table("", "check", "value", "meaning", box=None, pad_edge=False)
    for check in found.checks:
        table.add_row(
            "[green]ok[/]" if check.passed else "[red]failed[/]", check.name, f"{check.value:.3g}", check.meaning
        )
    console.print(table)


def number_lines(table: Tensor) -> str:
    more = " ..." if table.shape[1] > COLUMNS else ""
    return "\n".join(" ".join(f"{value:8.4f}" for value in row) + more for row in table[:ROWS, :COLUMNS].tolist())
