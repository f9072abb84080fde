"""Small studies: a grid over small runs, and its metrics without times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.small_runs import SETTINGS, write_text
from lilliput.studies.study_results import StudyResult

AXES = {"window": {"full": {}, "4 tokens": {"model.window": 4}}}
# Values that differ if a row is measured again.
TIMES = (
    "train.seconds",
    "train.tokens_per_second",
    "train.epoch_seconds",
    "train.micro_batch_seconds",
    "train.peak_memory_bytes",
)


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def dotted(settings: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {toml(value)}" for name, value in settings.items()) + " }"


def number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def write_study(
    folder: Path,
    axes: Mapping[str, Mapping[str, Mapping[str, Any] | str]] = AXES,
    name: str = "small",
    settings: Mapping[str, Any] | None = None,
    extra: str = "",
    **changes: Any,
) -> Path:
    """Write a study next to mytext.txt; `changes` of its top-level keys, None removes one; `extra` is appended TOML."""
    write_text(folder)
    keys = {"title": "Small", "question": "Does it hurt?", "recipe": "mytext.txt", "seeds": [1], "budget": {"steps": 8}}
    keys |= {"measure": ["training"], "show": ["validation.loss"]} | changes
    lines = [f"{key} = {toml(value)}" for key, value in keys.items() if value is not None]
    own = {key: number(text) for key, text in SETTINGS.items() if key != "train.steps"}
    own |= {"data.cache": str(folder / "prepared")} | dict(settings or {})
    lines += ["[settings]", *(f"{key} = {toml(value)}" for key, value in own.items())]
    for axis, values in axes.items():
        lines.append(f"[axes.{axis}]")
        for label, value in values.items():
            lines.append(f"{json.dumps(label)} = {toml(value) if isinstance(value, str) else dotted(value)}")
    path = folder / f"{name}.toml"
    path.write_text("\n".join([*lines, extra]) + "\n", encoding="utf-8")
    return path


def timeless(result: StudyResult) -> list[tuple[dict[str, str], int, str, dict[str, float]]]:
    return [
        (row.cell, row.seed, row.run, {name: value for name, value in row.figures.items() if name not in TIMES})
        for row in result.rows
    ]
