"""Lilliput: a workbench for small transformer language models.

The public names, imported on first use, so that `import lilliput` is fast:

    import lilliput
    writer = lilliput.load("runs/demo")
    print(writer.generate("Once upon a time"))
    print(writer.generate("Once upon a time", settings=lilliput.GenerateSettings(top_p=0.9, stop=("The end",))))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilliput.data.prepare import prepare as prepare
    from lilliput.decoding.writer import load as load
    from lilliput.errors import UserError as UserError
    from lilliput.evaluation.evaluate import evaluate as evaluate
    from lilliput.evaluation.label_prediction import predict as predict
    from lilliput.settings.choice_tables import register as register
    from lilliput.settings.loading import load_config as load_config
    from lilliput.settings.tree import Config as Config
    from lilliput.settings.tree import GenerateSettings as GenerateSettings
    from lilliput.studies.runner import study as study
    from lilliput.training.session import train as train

__version__ = "0.2.0"

_PLACES = {
    "Config": "lilliput.settings.tree",
    "GenerateSettings": "lilliput.settings.tree",
    "UserError": "lilliput.errors",
    "evaluate": "lilliput.evaluation.evaluate",
    "load": "lilliput.decoding.writer",
    "load_config": "lilliput.settings.loading",
    "predict": "lilliput.evaluation.label_prediction",
    "prepare": "lilliput.data.prepare",
    "register": "lilliput.settings.choice_tables",
    "study": "lilliput.studies.runner",
    "train": "lilliput.training.session",
}

__all__ = [
    "Config",
    "GenerateSettings",
    "UserError",
    "evaluate",
    "load",
    "load_config",
    "predict",
    "prepare",
    "register",
    "study",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'lilliput' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
