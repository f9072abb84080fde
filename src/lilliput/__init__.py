"""Lilliput: a workbench for small transformer language models.

The public names, imported on first use, so that `import lilliput` is fast:

    import lilliput
    run = lilliput.train("mytext.txt", minutes=3)
    print(run.generate("Once upon a time", top_p=0.9))
    print(lilliput.load("runs/mytext").evaluate(baselines=True))

docs/python.md describes them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilliput.api.load import evaluate as evaluate
    from lilliput.api.load import load as load
    from lilliput.api.load import predict as predict
    from lilliput.api.load import runs as runs
    from lilliput.api.prepare import prepare as prepare
    from lilliput.api.run import Run as Run
    from lilliput.api.study import study as study
    from lilliput.api.train import train as train
    from lilliput.errors import UserError as UserError
    from lilliput.settings.choice_tables import register as register
    from lilliput.settings.loading import load_config as load_config
    from lilliput.settings.tree import Config as Config
    from lilliput.settings.tree import GenerateSettings as GenerateSettings

__version__ = "0.2.0"

_PLACES = {
    "Config": "lilliput.settings.tree",
    "GenerateSettings": "lilliput.settings.tree",
    "Run": "lilliput.api.run",
    "UserError": "lilliput.errors",
    "evaluate": "lilliput.api.load",
    "load": "lilliput.api.load",
    "load_config": "lilliput.settings.loading",
    "predict": "lilliput.api.load",
    "prepare": "lilliput.api.prepare",
    "register": "lilliput.settings.choice_tables",
    "runs": "lilliput.api.load",
    "study": "lilliput.api.study",
    "train": "lilliput.api.train",
}

__all__ = [
    "Config",
    "GenerateSettings",
    "Run",
    "UserError",
    "evaluate",
    "load",
    "load_config",
    "predict",
    "prepare",
    "register",
    "runs",
    "study",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'lilliput' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
