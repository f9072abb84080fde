"""`lilliput train RECIPE --find-lr`: print and plot the loss at increasing learning rates, and suggest one."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from lilliput.cli.output import print_json, progress, stderr_console, stdout_console
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.settings.tree import Config
    from lilliput.training.learning_rate_finder import Trial
    from lilliput.training.process_group import World

LINES = 12  # of the table; the plot shows all rates


def print_rates(arguments: argparse.Namespace, config: Config | None, world: World) -> int:
    """Try learning rates and print them. Only the first process has a `config`."""
    if world.processes > 1:
        what = f"--find-lr requires one process (got {world.processes})"
        fix = "run the same command without torchrun; the result depends only on train.batch"
        raise UserError(what, None, fix=fix, code="flag.conflict")
    for flag in ("resume", "overwrite"):
        if getattr(arguments, flag):
            what = f"--find-lr and --{flag} cannot be combined"
            raise UserError(what, None, fix=f"remove --{flag}", code="flag.conflict")
    assert config is not None
    from lilliput.training.learning_rate_finder import find_learning_rate, plot_trial, scaled_rates

    with progress(stderr_console()) as report:
        trial = find_learning_rate(config, arguments.start_from, report)
    rates = scaled_rates(config, trial.factors[trial.steepest])
    plot: Path | None = None
    failure: UserError | None = None
    try:
        plot = plot_trial(trial, config)
    except UserError as error:  # raised after the results are printed, because they took minutes
        failure = error
    found = {
        "learning_rates": [factor * config.optimizer.lr for factor in trial.factors],
        "losses": trial.losses,
        "smoothed": trial.smoothed,
        "suggestion": rates["optimizer.lr"],
        "settings": rates,
        "diverged": trial.diverged,
        "plot": None if plot is None else str(plot),
    }
    if arguments.json:
        print_json(found)
    else:
        print_trial(arguments, trial, found)
    if failure is not None:
        raise failure
    return 0


def print_trial(arguments: argparse.Namespace, trial: Trial, found: dict[str, Any]) -> None:
    console, rates = stdout_console(), found["learning_rates"]
    table = Table(box=None, pad_edge=False)
    for heading in ("optimizer.lr", "loss", "smoothed"):
        table.add_column(heading, justify="right")
    table.add_column()
    notes = {trial.lowest: "lowest loss", trial.steepest: "fastest decrease"}
    if trial.diverged:
        notes[len(rates) - 1] = "diverged"
    every = max(1, len(rates) // LINES)
    for index, (rate, loss, smoothed) in enumerate(zip(rates, trial.losses, trial.smoothed, strict=True)):
        if index % every == 0 or index in notes:
            table.add_row(f"{rate:.1e}", f"{loss:.3f}", f"{smoothed:.3f}", notes.get(index, ""))
    console.print(table)
    factor, settings = trial.factors[trial.steepest], found["settings"]
    console.print(f"\nthe loss decreases fastest at {factor:.2g} times the current learning rates; try", markup=False)
    console.print(f"  lilliput train {command(arguments, settings)}", markup=False)
    if trial.steepest > len(rates) - 5 and not trial.diverged:
        console.print("this is near the highest rate tried; run --find-lr again with these rates to try higher ones")
    if found["plot"] is not None:
        console.print(f"plot: {found['plot']}", markup=False)


def command(arguments: argparse.Namespace, rates: dict[str, float]) -> str:
    """Return the arguments of the command with these learning rates."""
    words = [arguments.target]
    words += ["--size", arguments.size] if arguments.size else []
    words += ["--from", arguments.start_from] if arguments.start_from else []
    settings = arguments.settings | {name: f"{rate:g}" for name, rate in rates.items()}
    return shlex.join(words + [word for name, value in settings.items() for word in (f"--{name}", value)])
