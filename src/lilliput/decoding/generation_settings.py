"""The settings of one generation: those of a run with some of them overridden.

Owns: which settings of the run are dropped where they conflict with the given ones. Does not own: the settings
(`settings.tree`), the conflicts between them (`settings.rules`), nor how a user writes them (`cli.generation_flags`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from lilliput.errors import UserError, UserErrors
from lilliput.settings.rules import writing_conflicts
from lilliput.settings.tree import GenerateSettings

PREFIX = "generate."


class Dropped(NamedTuple):
    """A setting of the run that has its default instead; `name` is without the prefix `generate.`."""

    name: str
    reason: str


def override_settings(
    run: GenerateSettings, given: Mapping[str, Any], dropped: Sequence[Dropped] = ()
) -> tuple[GenerateSettings, list[Dropped]]:
    """Return the run's settings with the given values, and the settings of the run that were dropped.

    A setting of the run that conflicts with a given one is dropped: the run's own `top_k` does not forbid a given
    temperature of 0, nor its own `beams` a given `top_p`. A conflict between given settings raises `UserErrors`. The
    caller may drop settings of the run itself (`dropped`).
    """
    default, found = type(run)(), list(dropped)
    settings = replace(run, **{one.name: getattr(default, one.name) for one in dropped}, **given)
    while more := droppable(settings, given, found):
        settings = replace(settings, **{one.name: getattr(default, one.name) for one in more})
        found += more
    conflicts = find_conflicts(settings, given)
    if conflicts and settings.beams is not None and "beams" not in given:
        with suppress(UserErrors):
            return override_settings(run, given, [*dropped, Dropped("beams", conflicts[0].reason)])
    if conflicts:
        raise UserErrors(
            [UserError(one.reason, code="setting.conflict", setting=PREFIX + one.name) for one in conflicts]
        )
    return settings, found


def droppable(settings: GenerateSettings, given: Mapping[str, Any], dropped: Sequence[Dropped]) -> list[Dropped]:
    """Return the first conflict of each setting that was neither given nor dropped already."""
    kept = {*given, *(one.name for one in dropped)}
    return list({one.name: one for one in find_conflicts(settings, given) if one.name not in kept}.values())


def find_conflicts(settings: GenerateSettings, given: Mapping[str, Any]) -> list[Dropped]:
    """Return each setting that conflicts with the others, and why.

    The temperature always has a value, so it conflicts with a beam search only where it was given.
    """
    found = [Dropped(name.removeprefix(PREFIX), why) for name, why in writing_conflicts(settings)]
    drawn = settings.beams is None or settings.sample_beams
    if "temperature" in given and settings.temperature != 0.0 and not drawn:
        why = "generate.temperature has no effect on a beam search without generate.sample_beams"
        found.append(Dropped("temperature", why))
    return found
