"""A folder in which examples of the Python API run: a text, three runs and a finished study; and training made small.

`workspace()` is made once per process; tests use a copy of it.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import lilliput
from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import MEMORY, SETTINGS, TEXT, small_config, train_small
from helpers.small_studies import write_study

BUDGETS = ("minutes", "steps", "tokens", "epochs")
real_train = lilliput.train


@functools.cache
def workspace() -> Path:
    """Return a folder with mytext.txt, other.txt, window.toml, and runs/{demo,said,window-quick}. Do not change it."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train_small(small_config(folder, "demo"))
    train_small(small_config(folder, "said", **labelled_changes(folder)))
    (folder / "other.txt").write_text(TEXT[:2000], "utf-8")
    study = write_study(
        folder,
        {"window": {"full": {}}},
        "window",
        extra="[quick]\nseeds = [1]\n",
        recipe=str(folder / "mytext.txt"),
    )
    lilliput.study(study, quick=True, folder=folder / "runs", progress=False)
    return folder


def copy_of_workspace(folder: Path) -> Path:
    return Path(shutil.copytree(workspace(), folder / "workspace"))


def train_few_steps(target: Any, **arguments: Any) -> lilliput.Run:
    """Call `lilliput.train` with a small model and three steps; with `resume`, with five steps. The settings of the call stay."""
    for name in BUDGETS:
        arguments.pop(name, None)
    if arguments.get("resume"):
        return real_train(target, steps=5, **arguments)
    given = dict(arguments.pop("settings", {}))
    small = {name: value for name, value in SETTINGS.items() if name != "train.steps"}
    keywords = {"layers": "model.layers", "lr": "optimizer.lr"}
    for name in arguments.keys() & keywords.keys():
        small.pop(keywords[name], None)
    return real_train(target, steps=3, settings=small | given, **arguments)
