"""`lilliput.train`: train a run from Python, with the defaults and recipes of the command line.

Owns: the arguments and their conflicts, and what Ctrl-C does in a program or a notebook. Does not own: settings of keywords
(`arguments`), the progress (`training_progress`), or the session (`training.session`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, Never

from lilliput.api.arguments import KEYWORDS, ORIGIN, as_path, checked, python_errors, refuse_unknown, settings_of
from lilliput.api.consoles import choose_output
from lilliput.api.run import Run
from lilliput.errors import UserError, UserErrors
from lilliput.settings.loading import SIZES, replace
from lilliput.settings.tree import Config

if TYPE_CHECKING:
    from lilliput.training.observers import Observer
    from lilliput.training.run_start import RunStart

Target = str | os.PathLike[str] | Config | Run
OTHERS = ("size", "settings", "start_from", "resume", "overwrite", "progress", "observers")  # not settings


def train(
    target: Target,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    max_minutes: float | None = None,
    name: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    size: Literal["nano", "tiny", "small", "base"] | None = None,
    seed: int | None = None,
    batch: int | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] | None = None,
    lr: float | None = None,
    optimizer: str | None = None,
    dim: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    context: int | None = None,
    dropout: float | None = None,
    task: str | None = None,
    labelled: bool | None = None,
    documents: int | None = None,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    settings: Mapping[str, Any] | None = None,
    start_from: str | os.PathLike[str] | Run | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    observers: Sequence[Observer] = (),
    **unknown: Never,
) -> Run:
    """Train a run and return it.

    `target` is a text (a file, a folder, a .jsonl, a data set), a recipe by name or path, a `Config`, or, with `resume`, a
    run. A keyword that is None keeps the value of the recipe. `settings` has any other setting by its dotted name. One of
    `minutes`, `steps`, `tokens` and `epochs` replaces the budget of the recipe. `folder` is the parent of the run's folder.

    `start_from` is a run whose weights and tokenizer are used. `resume` continues a run, or extends it to a larger budget.
    `progress=False` prints nothing and generates no samples. Each of the `observers` is called with each event.

    Ctrl-C (in a notebook: interrupt the cell) ends the current step, saves the run and returns it; `run.finished` is then
    False. A second one raises KeyboardInterrupt at once. Under torchrun, all processes call this function.

    >>> run = lilliput.train("mytext.txt", steps=4, size="nano", name="first", progress=False)
    >>> run.name, run.finished, run.steps
    ('first', True, 4)
    """
    given = {word: value for word, value in locals().items() if word in KEYWORDS and value is not None}
    refuse_unknown(unknown, [*KEYWORDS, *OTHERS], KEYWORDS)
    for flag, value in (("resume", resume), ("overwrite", overwrite), ("progress", progress)):
        checked(flag, value, bool)
    refuse_conflicts(resume, overwrite, start_from is not None, size is not None)
    values = settings_of(given, settings, KEYWORDS)
    from lilliput.api.training_progress import follow
    from lilliput.training.interruption import INTERRUPT
    from lilliput.training.process_group import open_world
    from lilliput.training.session import start_session

    with python_errors(KEYWORDS, "target" if start_from is None else "start_from"):
        with open_world() as world, ExitStack() as stack:
            # Only the first process reads recipes and runs; other machines may not have them.
            start = requested_start(target, values, size, start_from, resume, overwrite) if world.first else None
            output = choose_output(progress, world.first)
            with output.reporting() as report:
                session = stack.enter_context(start_session(start, report, world))
            again = f"lilliput.train({str(session.run.folder)!r}, resume=True)"
            stopped = follow(session, output, again, INTERRUPT, observers if world.first else ())
        if stopped is not None and stopped.at_once:
            raise KeyboardInterrupt
        return Run(session.run)


def refuse_conflicts(resume: bool, overwrite: bool, start_from: bool, size: bool) -> None:
    """Raise all conflicts between arguments."""
    exclusive = [
        {"resume": resume, "overwrite": overwrite},
        {"resume": resume, "start_from": start_from},
        {"start_from": start_from, "size": size},
    ]
    errors = [
        UserError(
            f"{' and '.join(pair)} cannot be combined",
            fix=f"remove {' or '.join(pair)}",
            code="argument.conflict",
            setting=[*pair][1],
        )
        for pair in exclusive
        if all(pair.values())
    ]
    if errors:
        raise UserErrors(errors)


def requested_start(
    target: Target,
    values: Mapping[str, Any],
    size: str | None,
    start_from: str | os.PathLike[str] | Run | None,
    resume: bool,
    overwrite: bool,
) -> RunStart:
    """Return how the run starts; raise for wrong settings and for runs that do not exist."""
    from lilliput.training.run_start import CommandSettings, resolve_start

    origin = start_from.folder if isinstance(start_from, Run) else start_from
    if isinstance(target, Config):
        wanted: Config | CommandSettings = changed(target, values, size)
    else:
        place = target.folder if isinstance(target, Run) else target
        wanted = CommandSettings(as_path(place, "target"), values, size, ORIGIN)
    return resolve_start(wanted, resume, overwrite, None if origin is None else str(origin))


def changed(config: Config, values: Mapping[str, Any], size: str | None = None) -> Config:
    """Return a Config with the changes of a call."""
    if size is not None and size not in SIZES:
        what, fix = f"unknown size {size!r}", f"choose one of {', '.join(SIZES)}"
        raise UserError(what, fix=fix, code="setting.choice", setting="size")
    shape = {f"model.{word}": value for word, value in SIZES[size].items()} if size is not None else {}
    return replace(config, shape | dict(values)) if shape or values else config
