"""`lilliput.load` and `lilliput.runs`: runs by name or folder; and short forms of their methods.

Owns: finding runs from Python. Does not own: `Run` (`run`), or run folders (`storage.run_folders`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lilliput.api.arguments import as_path, python_errors
from lilliput.api.run import Run
from lilliput.storage.run_folders import RunFolder, find_run, list_runs

if TYPE_CHECKING:
    from lilliput.api.evaluation_result import EvaluationResult
    from lilliput.api.label_predictions import Prediction, Predictions


def load(path: str | os.PathLike[str] | Run, device: Literal["auto", "cpu", "cuda", "mps"] = "auto") -> Run:
    """Return a run by its folder or its name in runs/, or one of its checkpoints. The model is loaded when first needed.

    >>> lilliput.load("runs/demo").name
    'demo'
    """
    if isinstance(path, Run):
        return path
    with python_errors(argument="path"):
        return Run(find_run(as_path(path, "path")), device)


def runs(folder: str | os.PathLike[str] = "runs") -> list[Run]:
    """Return the runs in a folder, by name.

    >>> [run.name for run in lilliput.runs()][:1]
    ['demo']
    """
    return [Run(RunFolder(Path(about["folder"]))) for about in list_runs(as_path(folder, "folder"))]


def evaluate(
    run: str | os.PathLike[str] | Run, on: str | os.PathLike[str] = "validation", **arguments: Any
) -> EvaluationResult:
    """Return `lilliput.load(run).evaluate(on, ...)`, with the arguments of `Run.evaluate`.

    >>> lilliput.evaluate("runs/demo", progress=False).bits_per_byte > 0
    True
    """
    return load(run).evaluate(on, **arguments)


def predict(run: str | os.PathLike[str] | Run, texts: str | list[str] | tuple[str, ...]) -> Prediction | Predictions:
    """Return `lilliput.load(run).predict(texts)`.

    >>> lilliput.predict("runs/said", "honey").probability > 0
    True
    """
    return load(run).predict(texts)
