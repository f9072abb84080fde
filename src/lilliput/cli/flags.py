"""Plain flags made of settings, for the verbs that write: their names, kinds and meanings stand in the types alone.

Owns: flags from the fields of a dataclass of settings, values from flags, a run's settings with changes, and the telling of
mistakes by the names that the user gave. Does not own: the settings and their bounds (`settings`), which of them fit each other
(`conflicts`), nor dotted settings (`parsing`).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from lilliput.cli.parsing import kind_name
from lilliput.config import Layer, admits_none, parse_flag, with_none, wrong_values
from lilliput.conflicts import writing_conflicts
from lilliput.errors import UserError, UserErrors
from lilliput.settings import GenerateSettings

Settings = TypeVar("Settings")
Outcome = TypeVar("Outcome")
Said = dict[str, Any]  # name -> text, texts, or a switch: what the user gave, unchecked


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_flags(group: argparse._ActionsContainer, settings: type, with_default: bool) -> None:
    """One flag for each field. Texts are kept as they are given: `values` and `changed` check them all at once."""
    for field in dataclasses.fields(settings):
        assert isinstance(field.default, FieldInfo)
        kind, about = kinds(settings)[field.name], field.default.description or ""
        told = about.replace("%", "%%") + (f" [{tell(field.default.default)}]" if with_default else "")
        if kind is bool:
            group.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=told)
        elif is_list(kind):
            several = f'{told}; give it again for more, "" for none'
            group.add_argument(flag(field.name), action="append", metavar="TEXT", help=several)
        else:
            group.add_argument(flag(field.name), metavar=kind_name(kind), help=told)


def kinds(settings: type) -> dict[str, Any]:
    return typing.get_type_hints(settings, include_extras=True)


def is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def tell(value: Any) -> str:
    """A setting's value as it would be typed."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def said(arguments: argparse.Namespace, settings: type) -> Said:
    """What was given for these settings."""
    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(settings)}
    texts = {name: value for name, value in given.items() if value is not None}
    return {
        name: [text for text in value if text] if isinstance(value, list) else value for name, value in texts.items()
    }


def values(settings: type[Settings], given: Said, call: Callable[[str], str] = flag) -> Settings:
    """The settings that were given, over their defaults; `call` is how the user names a setting."""
    types = kinds(settings)
    try:
        return TypeAdapter(settings).validate_python({name: value_of(given[name], types[name]) for name in given})
    except ValidationError as error:
        layer: Layer = {name: (value, call(name)) for name, value in given.items()}
        told = wrong_values(error, layer)
        raise UserErrors([UserError(f"{one.where} {one.what.partition(' ')[2]}") for one in told]) from None


def value_of(text: Any, kind: Any) -> Any:
    value = parse_flag(text, kind)
    return with_none(value) if admits_none(kind) else value


def changed(
    how: GenerateSettings, given: Said, call: Callable[[str], str] = flag
) -> tuple[GenerateSettings, list[str]]:
    """The settings with those that were given in their place, and a sentence for each that gave way to them.

    Where two do not fit each other, one that was not given is left out: a run's own `top_k` is no reason to refuse
    `--temperature 0`. What was given and does not fit is refused.
    """

    def named(sentence: str) -> str:
        return re.sub(r"\bgenerate\.(\w+)", lambda found: call(found[1]), sentence)

    how, default, left_out = values(type(how), vars(how) | given, call), type(how)(), dict[str, str]()
    while unsaid := {name: why for name, why in misfits(how) if name not in {*given, *left_out}}:
        how = dataclasses.replace(how, **{name: getattr(default, name) for name in unsaid})
        left_out |= unsaid
    mistakes = [UserError(named(why)) for _, why in misfits(how)]
    if mistakes:
        raise UserErrors(mistakes)
    return how, [f"left out {call(name)}: {named(why)}" for name, why in left_out.items()]


def misfits(how: GenerateSettings) -> list[tuple[str, str]]:
    """(name, sentence) of settings that do not fit the others."""
    return [(name.removeprefix("generate."), why) for name, why in writing_conflicts(how)]


def gather(mistakes: list[UserError], part: Callable[[], Outcome]) -> Outcome | None:
    """What the part gives, or None and its mistakes added: so that those of all parts are told at once."""
    try:
        return part()
    except UserErrors as error:
        mistakes += error.mistakes
    except UserError as error:
        mistakes.append(error)
    return None
