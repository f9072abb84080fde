"""The processes of a study: which ones, in which order, with which command lines.

Owns: which cells share a run, names of runs, the order of the jobs, the command line of each process, and the
conversion of a budget in FLOPs to tokens. Does not own: running processes (`runner`), finished work
(`study_results`). Does not import torch.

The outer loop is over seeds, and every second seed takes the cells in reverse order. If the machine becomes slower
during the study, the cells that run late for one seed run early for the next, so the slowdown does not appear as a
difference between cells.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lilliput.errors import UserError
from lilliput.model.counting import count
from lilliput.settings.loading import config_to_dict, load_config, replace
from lilliput.settings.plugins import plugin_flags
from lilliput.settings.tree import BUDGETS, Config
from lilliput.storage.dotted_names import flatten
from lilliput.studies.grid import MEASURED, Cell, Study, budget_of, cell_config, cells

LILLIPUT = (sys.executable, "-m", "lilliput")
LONGEST_NAME = 100  # bytes, as in `training.run_start`
QUIET = {"log.sample_seconds": "none"}  # for every run: generating samples would count as training time


@dataclass(frozen=True)
class Preparation:
    """Prepares data before the first run that uses them, so that no run is charged for the time and memory."""

    name: str
    kind: ClassVar[str] = "preparing"


@dataclass(frozen=True)
class Training:
    """Trains one run: one process, or several if it is interrupted and resumed."""

    kind: ClassVar[str] = "training"
    run: str
    seed: int
    settings: dict[str, Any]
    config: Config

    @property
    def name(self) -> str:
        return self.run


@dataclass(frozen=True)
class Measurement:
    """Measures one cell with one seed: one process, after the run, which several cells may share."""

    kind: ClassVar[str] = "measuring"
    cell: dict[str, str]
    seed: int
    run: str
    settings: dict[str, Any]
    measures: tuple[str, ...]

    @property
    def name(self) -> str:
        return "-".join([*self.cell.values(), f"seed{self.seed}"])


Job = Preparation | Training | Measurement


def plan(study: Study) -> list[Training | Measurement]:
    """Return all jobs in order; every run comes before its first measurement."""
    trainings = [(cell, training_settings(study, cell)) for cell in cells(study)]
    found: list[Training | Measurement] = []
    names: dict[str, str] = {}  # complete settings of a training -> its name
    for turn, seed in enumerate(study.seeds):
        done: set[str] = set()
        for cell, settings in reversed(trainings) if turn % 2 else trainings:
            config = cell_config(study, settings)
            key = json.dumps([config_to_dict(config), budget_of(cell)])
            name = names.setdefault(key, name_run(study, cell))
            run, where = f"{name}-seed{seed}" if name else f"seed{seed}", f"study {study.name}"
            if list(names.values()).count(name) > 1:
                what = f"the labels {', '.join(cell.labels.values())} and those of another cell give the same run name, {name}"
                raise UserError(what, where, fix="use labels that differ in letters or digits", code="run.name")
            if len(os.fsencode(run)) > LONGEST_NAME:
                what = f"the labels {', '.join(cell.labels.values())} are too long for a run name"
                fix = f"use labels of at most {LONGEST_NAME - 10} characters in total"
                raise UserError(what, where, fix=fix, code="run.name")
            if key not in done:
                done.add(key)
                training = Training(run, seed, settings, config)
                check_typed(study, training)
                found.append(training)
            found.append(Measurement(cell.labels, seed, run, measured_settings(study, cell), study.measure))
    return found


def training_settings(study: Study, cell: Cell) -> dict[str, Any]:
    """Return the settings that affect the run: those of training, and `generate.*` if the study sets them for all cells."""
    trained = {name: value for name, value in cell.settings.items() if not name.startswith(MEASURED)}
    return trained | {name: value for name, value in study.settings.items() if name.startswith("generate.")}


def measured_settings(study: Study, cell: Cell) -> dict[str, Any]:
    """Return the checked `generate.*` and the `measure.*` settings."""
    generate = config_to_dict(cell_config(study, cell.settings))["generate"]
    return {
        name: generate[name.removeprefix("generate.")] if name.startswith("generate.") else value
        for name, value in cell.settings.items()
        if name.startswith(MEASURED)
    }


def name_run(study: Study, cell: Cell) -> str:
    """Return a name from the labels of the axes that affect training; cells that differ only on other axes share the run."""
    trained = [
        cell.labels[axis.name]
        for axis in study.axes
        if any(not name.startswith(MEASURED) for settings in axis.values.values() for name in settings)
    ]
    words = (re.sub(r"[^\w.]+", "-", label).strip("-.").lower() for label in trained)
    return "-".join(word for word in words if word)


# Command lines.


def prepare_command(study: Study, training: Training) -> list[str]:
    return [*LILLIPUT, "prepare", study.recipe, *flags(training.settings), *plugin_flags(), "--json"]


def preparation_key(training: Training) -> str:
    """Return a key that is the same for all runs on the same prepared data."""
    settings = config_to_dict(training.config)
    return json.dumps([settings["data"], settings["tokenizer"], settings["vectors"]])


def train_command(study: Study, training: Training, folder: Path, tokens: int | None = None) -> list[str]:
    """Return the command; `tokens` replaces a budget in FLOPs."""
    places = {"seed": training.seed, "name": training.run, "log.folder": str(folder)} | QUIET
    settings = training.settings if tokens is None else training.settings | {"budget.tokens": tokens}
    return [*LILLIPUT, "train", study.recipe, *flags(settings | places), *plugin_flags(), "--json"]


def resume_command(training: Training, folder: Path) -> list[str]:
    return [*LILLIPUT, "train", str(folder / training.run), "--resume", *plugin_flags(), "--json"]


def measure_command(measurement: Measurement, folder: Path) -> list[str]:
    spec = {"measures": measurement.measures, "settings": measurement.settings, "seed": measurement.seed}
    return [
        sys.executable,
        "-m",
        "lilliput.studies.measures",
        str(folder / measurement.run),
        "--spec",
        json.dumps(spec),
        *plugin_flags(),
    ]


def typed(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings as the texts of flags."""
    texts: dict[str, str] = {}
    for name, value in settings.items():
        if name.startswith("budget."):
            unit = name.removeprefix("budget.")
            texts |= {} if unit == "flops" else {f"train.{unit}": type_value(value)}
        else:
            texts[name] = type_value(value)
    return texts


def flags(settings: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={text}" for name, text in typed(settings).items()]


def type_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        quoted = (json.dumps(item, ensure_ascii=False) if isinstance(item, str) else type_value(item) for item in value)
        return f"[{','.join(quoted)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def check_typed(study: Study, training: Training) -> None:
    """Raise an error for a setting that a flag cannot express: a list of texts with commas."""
    budget = dict.fromkeys((f"train.{unit}" for unit in BUDGETS), None)
    wanted = flatten(config_to_dict(training.config)) | budget
    given = flatten(config_to_dict(load_config(study.recipe, typed(training.settings)))) | budget
    for name in wanted:
        if wanted[name] != given[name]:
            what = f"the value {wanted[name]!r} cannot be passed as a flag of `lilliput train`"
            fix = "set it in a recipe, and use that recipe in the study"
            raise UserError(what, f"study {study.name}", fix=fix, code="study.cell", setting=name)


def tokens_for(config: Config, flops: float, vocab_size: int, width: int | None) -> int:
    """Return the number of tokens nearest to a budget in FLOPs; `width` is that of the word vectors."""
    found: dict[str, Any] = {"vectors.width": width} if width is not None else {}
    if config.model.vocab_size is None:
        found["model.vocab_size"] = vocab_size
    if config.model.task != "language" and config.model.classes is None:
        found["model.classes"] = 2  # the number of classes does not change the FLOPs per token
    config = replace(config, found)
    return max(1, round(flops / count(config.model, config.vectors).flops_per_token))
