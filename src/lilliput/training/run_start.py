"""How a run starts: new, resumed, or from another run's weights.

Owns: which of the three it is; the settings, the folder and the lock of the run; the checkpoint that it loads; and
errors about conflicts, before any work is done. `resolve_start` only reads; `claim_run` locks a run that is resumed.
Does not own: building the trainer (`session`), the processes (`process_group`), automatic restarts
(`elastic_restart`).

This module does not import torch: wrong settings and names are reported without waiting for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lilliput.data.tokenizers import learns
from lilliput.errors import UserError
from lilliput.settings.loading import (
    BEFORE,
    SIZES,
    config_from_dict,
    config_to_dict,
    load_config,
    replace,
    without_removed,
)
from lilliput.settings.recipes import find_recipe
from lilliput.settings.source_names import BUILT_IN_CORPORA
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_folders import RunFolder, looks_like_run, resolve_checkpoint
from lilliput.training.elastic_restart import save_launches, was_trained_by
from lilliput.training.extension import BUDGET_NAMES, larger_budget
from lilliput.training.process_group import World

# No separators, no control characters, no characters that are invalid on Windows.
NAME = re.compile(r'[^\s.\-/\\:*?"<>|\x00-\x1f\x7f]([^/\\:*?"<>|\x00-\x1f\x7f]*[^\s./\\:*?"<>|\x00-\x1f\x7f])?')
LONGEST_NAME = 100  # bytes; file systems allow 255, of which a temporary prefix needs some
RUNS = Path("runs")  # the folder in which a run is found by its name

# Settings that are taken from the data if they are not set; the config.json of a run has them.
FOUND = ("model.vocab_size", "model.classes", "vectors.width", "vectors.rows")
# Settings that are chosen for the machine if they have these values; the config.json of a run has the choice.
CHOSEN = {"train.precision": "auto", "train.threads": None}
# Settings that a resumed run may change: its folder may have been moved, and its processes may share the work differently.
FREE = ("name", "log.folder", "train.parallel")
ADOPTED = ("model.", "tokenizer.", "vectors.")  # settings that are taken from the run whose weights are used


class CommandSettings(NamedTuple):
    """The settings of a command or a call: a target (recipe, text or run), dotted settings, a size, and their place in
    error messages."""

    target: str
    overrides: Mapping[str, Any]
    size: str | None = None
    origin: str = "command line"


@dataclass(frozen=True)
class RunStart:
    """How a run starts. `origin` is the checkpoint of another run whose weights are loaded."""

    config: Config
    resume: bool
    overwrite: bool
    origin: Checkpoint | None


@dataclass
class ClaimedRun:
    """The run that all processes are about to train.

    `checkpoint` is the one that is loaded, of this run or another; only the first process has it. `tokenizer_json` is its
    tokenizer, if that was read from a file. `notes` are sentences for the user.
    """

    run: RunFolder
    config: Config
    resumed: bool
    overwrite: bool
    has_weights: bool
    tokenizer_json: str | None
    checkpoint: Checkpoint | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def origin(self) -> Checkpoint | None:
        return None if self.resumed else self.checkpoint


def run_folder(config: Config) -> Path:
    """Return the folder of a run; raise unless its name is a valid folder name on every system."""
    name = config.name or "run"
    if not NAME.fullmatch(name) or len(os.fsencode(name)) > LONGEST_NAME:
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        raise UserError(
            f"a run name must have at most {LONGEST_NAME} bytes, no slash, and no dot or dash at its start (got {shown!r})",
            fix="choose another name; set log.folder to keep the run in another folder",
            code="run.name",
            setting="name",
        )
    return Path(config.log.folder) / name


# Resolve: find the settings, the run and the weights. Nothing is written. ----------------------------------------------


def resolve_start(
    requested: Config | CommandSettings,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | None = None,
) -> RunStart:
    """Return how the run starts: its settings, and the checkpoint whose weights and tokenizer are used.

    A Config has all settings of a run to resume; a command may name only some of them.
    """
    if resume and isinstance(requested, CommandSettings):
        run, named = find_run_to_resume(requested)
        return RunStart(resumed_config(run, named), True, overwrite, None)
    config = requested if isinstance(requested, Config) else load_config(*requested)
    origin: Checkpoint | None = None
    if start_from is not None:
        if isinstance(requested, CommandSettings):
            refuse_adopted(requested)
        origin = resolve_checkpoint(start_from, config.log.folder)
        config = adopt(config, origin)
    if resume:
        config = resumed_config(RunFolder.open(run_folder(config)), flatten(config_to_dict(config)))
    return RunStart(config, resume, overwrite, origin)


def find_run_to_resume(command: CommandSettings) -> tuple[RunFolder, dict[str, Any]]:
    """Return the run, and the settings that the command names.

    The target is the run's folder, its name in runs/, or the target of the command that started it. In the last case only
    the settings that the command names are compared: the recipe may have changed.
    """
    free = {name: text for name, text in command.overrides.items() if name in ("train.parallel", *BUDGET_NAMES)}
    nothing_else = free.keys() == command.overrides.keys() and not command.size
    folder = Path(command.target)
    trainable = find_recipe(command.target) is not None or command.target in BUILT_IN_CORPORA
    if not folder.exists() and (nothing_else or not trainable) and looks_like_run(RUNS / folder):
        folder = RUNS / folder
    if looks_like_run(folder):
        if not nothing_else:
            changed = next((name for name in command.overrides if name not in free), None)
            what = "settings of a resumed run cannot be changed, except a larger budget"
            fix = "remove them, or start a new run from this one"
            raise UserError(what, str(folder), fix=fix, code="setting.changed", setting=changed)
        config = load_config(None, free, origin=command.origin)
    else:
        config = load_config(*command)
        folder = run_folder(config)
        if not looks_like_run(folder):
            what, fix = f"there is no run named {str(folder)!r}", "check the name, or start a new run"
            raise UserError(what, fix=fix, code="run.missing", setting="name")
    settings = flatten(config_to_dict(config))
    names = [*command.overrides, *(f"model.{name}" for name in SIZES.get(command.size or "", {}))]
    place = {"name": folder.resolve().name, "log.folder": str(folder.parent)}
    return RunFolder(folder), {name: settings[name] for name in names} | place


def resumed_config(run: RunFolder, requested: Mapping[str, Any]) -> Config:
    """Return the settings saved in a run, with the `requested` ones (by dotted name) that may change; raise for any other.

    The budget may grow.
    """
    saved = config_from_dict(run.config(), str(run.folder / CONFIG))
    before = flatten(config_to_dict(saved))
    newer = BEFORE.keys() - flatten(run.config()).keys()  # the run keeps what its version did
    budget = larger_budget(before, requested, str(run.folder))
    for name, value in requested.items():
        if name in BUDGET_NAMES:
            continue
        left_open = (name in FOUND and value is None) or (name in CHOSEN and value == CHOSEN[name]) or name in newer
        if name not in FREE and not left_open and before[name] != value:
            raise UserError(
                f"settings of a resumed run cannot be changed (got {value}, run {run.name} has {before[name]})",
                str(run.folder),
                fix=f"remove {name}, or start a new run from this one",
                code="setting.changed",
                setting=name,
            )
    return replace(saved, {name: requested[name] for name in FREE if name in requested} | budget)


def refuse_adopted(command: CommandSettings) -> None:
    """Raise if a command sets a model or tokenizer setting together with weights of another run; dropout is allowed."""
    for name in command.overrides:
        if name.startswith(ADOPTED) and name != "model.dropout":
            raise UserError(
                f"{name} cannot be set: model and tokenizer are taken from the run whose weights are used",
                fix=f"remove {name}",
                code="setting.conflict",
                setting=name,
            )


def adopt(config: Config, origin: Checkpoint) -> Config:
    """Return the settings of a run that starts from another's weights: it has the model (except dropout) and the tokenizer of
    that run. A model that was trained with labels needs labels again.
    """
    theirs = without_removed(origin.config(), str(origin.folder / CONFIG))
    kept = {name: value for name, value in theirs.items() if name.startswith(ADOPTED)}
    own: dict[str, Any] = {
        "model.dropout": config.model.dropout,
        "tokenizer.path": str(origin.folder / "tokenizer.json"),
        "data.labelled": config.data.labelled or theirs["model.task"] != "language",
    }
    return replace(config, kept | own)


# Claim: lock the run, and send its settings to all processes. ----------------------------------------------------------


def claim_run(start: RunStart | None, world: World, stack: ExitStack) -> ClaimedRun:
    """Claim the run for all processes; a resumed one is locked while `stack` is open. Only the first process needs `start`."""
    claimed = claim_first(start, world, stack) if start is not None else None
    if claimed is not None and world.processes == 1:
        return claimed
    shared = world.share(
        {
            "config": config_to_dict(claimed.config),
            "resumed": claimed.resumed,
            "overwrite": claimed.overwrite,
            "has_weights": claimed.has_weights,
            "tokenizer_json": claimed.tokenizer_json,
        }
        if claimed is not None
        else None
    )
    if claimed is not None:
        return claimed
    config = config_from_dict(shared.pop("config"), "settings")
    return ClaimedRun(RunFolder(run_folder(config)), config, **shared)


def claim_first(start: RunStart, world: World, stack: ExitStack) -> ClaimedRun:
    """Claim the run in the first process: resume it if requested or restarted by torchrun, else check that it can be created."""
    folder, config, launches, notes = run_folder(start.config), start.config, world.launches(), list[str]()
    resumed, checkpoint = start.resume, start.origin
    if not resumed and was_trained_by(folder, launches):
        resumed, config = True, resumed_config(RunFolder(folder), flatten(config_to_dict(config)))
    run = RunFolder(folder)
    if resumed:
        stack.enter_context(run.lock())
        save_launches(run, launches)
        checkpoint = newest_checkpoint(run, notes)
    elif looks_like_run(folder) and not start.overwrite:
        RunFolder.create(folder, {}, overwrite=False)  # raises: the run exists
    # A tokenizer that was read from files is taken from the checkpoint: the files may have changed.
    from_files = checkpoint is not None and not learns(config.tokenizer)
    tokenizer_json = checkpoint.tokenizer_json() if checkpoint is not None and from_files else None
    return ClaimedRun(run, config, resumed, start.overwrite, checkpoint is not None, tokenizer_json, checkpoint, notes)


def newest_checkpoint(run: RunFolder, notes: list[str]) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None if there are no checkpoints; add a note for each damaged one."""
    problems: list[str] = []
    checkpoint = run.newest_valid(lambda _, error: problems.append(error.what))
    if checkpoint is None and problems:
        what = f"all checkpoints of run {run.name} are damaged ({problems[0]})"
        fix = "train again with another name, or overwrite the run"
        raise UserError(what, str(run.checkpoints_folder), fix=fix, code="checkpoint.damaged")
    notes += [f"{problem}; using an older checkpoint" for problem in problems]
    return checkpoint
