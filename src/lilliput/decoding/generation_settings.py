"""The settings of one generation: those of a run, some of them overridden.

Owns: which settings of the run are dropped because they conflict with given ones. Does not own: the settings
(`settings.tree`), the conflicts between them (`settings.rules`), or how a user writes them (`cli.generation_flags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lilliput.errors import UserError, UserErrors
from lilliput.settings.choice_tables import Conflict
from lilliput.settings.rules import writing_conflicts
from lilliput.settings.tree import GenerateSettings

PREFIX = "generate."


def override_settings(
    run: GenerateSettings, given: Mapping[str, Any], dropped: Sequence[Conflict] = ()
) -> tuple[GenerateSettings, list[Conflict]]:
    """Return the run's settings with the given values, and the conflicts for which settings of the run were dropped.

    A setting of the run that conflicts with a given one is dropped, that is, set to its default: for example the run's
    `top_k` if a temperature of 0 is given, or its `beams` if a `top_p` is given. A conflict between given settings raises
    `UserErrors`. `dropped` are settings of the run that the caller drops.
    """
    found = list(dropped)
    settings = replace(reset(run, dropped), **given)
    while more := droppable(settings, given, found):
        settings = reset(settings, more)
        found += more
    conflicts = find_conflicts(settings, given)
    if conflicts and settings.beams is not None and "beams" not in given:
        with suppress(UserErrors):
            return override_settings(run, given, [*dropped, conflicts[0]._replace(setting=PREFIX + "beams")])
    if conflicts:
        raise UserErrors(
            [UserError(one.what, fix=one.fix, code="setting.conflict", setting=one.setting) for one in conflicts]
        )
    return settings, found


def reset(settings: GenerateSettings, conflicts: Sequence[Conflict]) -> GenerateSettings:
    """Return the settings, with the default for each setting that a conflict names."""
    default, names = type(settings)(), [one.setting.removeprefix(PREFIX) for one in conflicts]
    return replace(settings, **{name: getattr(default, name) for name in names})


def droppable(settings: GenerateSettings, given: Mapping[str, Any], dropped: Sequence[Conflict]) -> list[Conflict]:
    """Return the first conflict of each setting that is neither given nor dropped yet."""
    kept = {*(PREFIX + name for name in given), *(one.setting for one in dropped)}
    return list({one.setting: one for one in find_conflicts(settings, given) if one.setting not in kept}.values())


def find_conflicts(settings: GenerateSettings, given: Mapping[str, Any]) -> list[Conflict]:
    """Return the conflicts of the settings.

    The temperature always has a value, so it conflicts with a beam search only if it was given.
    """
    found = writing_conflicts(settings)
    drawn = settings.beams is None or settings.sample_beams
    if "temperature" in given and settings.temperature != 0.0 and not drawn:
        what = "generate.temperature has no effect on a beam search without generate.sample_beams"
        fix = "set generate.sample_beams to true or remove generate.temperature"
        found.append(Conflict("generate.temperature", what, fix))
    return found
