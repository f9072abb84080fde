"""The settings of a published report next to those of our recipes.

Owns: the comparison and the table of settings. A row without a reason asserts that our setting equals the stated one; this is
checked. Does not own: the file (`reproduction_files`), or recipes (`settings.recipes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilliput.errors import UserError, nearest
from lilliput.reports.document import Table
from lilliput.reports.formatting import format_value
from lilliput.settings.loading import config_to_dict, load_config, setting_types
from lilliput.storage.dotted_names import flatten
from lilliput.studies.reproduction_files import Reproduction, StatedSetting

NOT_STATED = "not stated"


@dataclass(frozen=True)
class ComparedSetting:
    stated: StatedSetting
    ours: Any
    equal: bool


def compare_settings(reproduction: Reproduction) -> list[ComparedSetting]:
    """Return every row with the value of our recipe; refuse a row that needs a reason and has none, or the reverse."""
    ours = {
        recipe: recipe_values(recipe) for recipe in {row.recipe or reproduction.recipe for row in reproduction.settings}
    }
    compared = []
    for row in reproduction.settings:
        if row.setting not in setting_types():
            fix = f"use {nearest(row.setting, setting_types()) or 'a setting of `lilliput info --schema`'}"
            what = f"unknown setting {row.setting} of {row.name!r}"
            raise UserError(what, fix=fix, code="setting.unknown", setting=row.setting)
        value = ours[row.recipe or reproduction.recipe][row.setting]
        equal = bool(row.stated) and is_equal(row.stated, value)
        if not equal and not row.reason:
            what = f"{row.name!r} differs from the report and has no reason (stated {row.stated or 'nothing'}, ours {value})"
            raise UserError(what, fix="add a reason", code="reproduction.reason", setting=row.setting)
        compared.append(ComparedSetting(row, value, equal))
    return compared


def recipe_values(recipe: str) -> dict[str, Any]:
    """Return the settings of a recipe by their dotted names."""
    return flatten(config_to_dict(load_config(recipe)))


def is_equal(stated: str, ours: Any) -> bool:
    """Return whether a stated value, a text, is ours: the same number, or the same word."""
    if isinstance(ours, bool) or not isinstance(ours, int | float):
        return stated == format_value(ours).lower()
    try:
        return float(stated) == float(ours)
    except ValueError:
        return False


def settings_table(reproduction: Reproduction) -> Table:
    """Return the table of settings: stated, ours, and the reason for a difference."""
    rows = [
        [
            compared.stated.name,
            compared.stated.stated or NOT_STATED,
            shown(compared.ours),
            compared.stated.reason,
            compared.stated.setting,
        ]
        for compared in compare_settings(reproduction)
    ]
    columns = ["setting", "stated", "ours", "reason for a difference or a choice", "name"]
    return Table(columns, rows, texts=columns[1:])


def shown(value: Any) -> str:
    """Format a value; of a path, its last part."""
    text = f"{value:g}" if isinstance(value, float) else format_value(value)
    return Path(text).name if isinstance(value, str) and "/" in text else text
