"""Plain flags made of settings, for the verbs that write: their names, kinds and meanings stand in the types alone.

Owns: what these verbs have in common on the command line, flags from the fields of a dataclass of settings,
values from flags, a run's settings with changes, and the telling of mistakes by the names that the user gave.
Does not own: the settings and their bounds (`settings.tree`), which of them fit each other
(`settings.rules`), nor dotted settings (`parsing`).
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from lilliput.cli.parsing import kind_name
from lilliput.errors import UserError, UserErrors
from lilliput.settings.loading import admits_none, parse_flag, with_none, wrong_values
from lilliput.settings.recipes import Layer
from lilliput.settings.rules import writing_conflicts
from lilliput.settings.tree import GenerateSettings

Settings = TypeVar("Settings")
Outcome = TypeVar("Outcome")
Said = dict[str, Any]  # name -> text, texts, or a switch: what the user gave, unchecked


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_writing(parser: argparse.ArgumentParser, own: type) -> None:
    """Which run writes, the verb's own settings, and how it writes."""
    parser.add_argument("run", metavar="RUN", help="a run (its folder or its name in runs/) or a checkpoint's folder")
    add_flags(parser, own, with_default=True)
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="where to compute [auto]"
    )
    how = parser.add_argument_group("how it writes", "what is not said is as the run's settings generate.* say")
    add_flags(how, GenerateSettings, with_default=False)


def check_writing(arguments: argparse.Namespace, own: type[Settings], mistakes: list[UserError]) -> Settings | None:
    """The verb's own settings. All of `add_writing` is checked, as far as that can be done before torch is imported."""
    from lilliput.storage.run_folders import resolve_checkpoint

    found = gather(mistakes, lambda: values(own, said(arguments, own)))
    gather(mistakes, lambda: values(GenerateSettings, said(arguments, GenerateSettings)))
    gather(mistakes, lambda: resolve_checkpoint(arguments.run))
    return found


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
        return shlex.join(value) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or '""'


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
    `--temperature 0`, nor its own `beams` to refuse `--top-p 0.9`. What was given and does not fit is refused.
    """
    run, how = how, values(type(how), vars(how) | given, call)
    default, left_out = type(how)(), dict[str, str]()
    while unsaid := {name: why for name, why in misfits(how, given) if name not in {*given, *left_out}}:
        how = dataclasses.replace(how, **{name: getattr(default, name) for name in unsaid})
        left_out |= unsaid
    mistakes = [UserError(named(why, call)) for _, why in misfits(how, given)]
    if mistakes and run.beams is not None and "beams" not in given:
        with suppress(UserErrors):
            return without_beams(run, given, mistakes[0].what, call)
    if mistakes:
        raise UserErrors(mistakes)
    return how, [f"left out {call(name)}: {named(why, call)}" for name, why in left_out.items()]


def without_beams(
    how: GenerateSettings, given: Said, why: str, call: Callable[[str], str] = flag
) -> tuple[GenerateSettings, list[str]]:
    """As `changed`, where the beams of the run are among what gives way."""
    how, left_out = changed(how, given | {"beams": None}, call)
    return how, [f"left out {call('beams')}: {why}", *left_out]


def named(sentence: str, call: Callable[[str], str]) -> str:
    """With settings as their user names them."""
    return re.sub(r"\bgenerate\.(\w+)", lambda found: call(found[1]), sentence)


@contextmanager
def naming(call: Callable[[str], str] = flag) -> Iterator[None]:
    """Mistakes that were found in settings are told by the names that their user gave."""
    try:
        yield
    except UserErrors as error:
        raise UserErrors([renamed(one, call) for one in error.errors]) from None
    except UserError as error:
        raise renamed(error, call) from None


def renamed(error: UserError, call: Callable[[str], str]) -> UserError:
    what, where, fix = (part and named(part, call) for part in (error.what, error.where, error.fix))
    return UserError(what or "", where, fix)


def misfits(how: GenerateSettings, given: Said) -> list[tuple[str, str]]:
    """(name, sentence) of settings that do not fit the others. A temperature is always set: it is one if it was given."""
    found = [(name.removeprefix("generate."), why) for name, why in writing_conflicts(how)]
    if "temperature" in given and how.temperature != 0.0 and how.beams is not None and not how.sample_beams:
        why = "beams are not drawn without generate.sample_beams, so generate.temperature would do nothing"
        found.append(("temperature", why))
    return found


def gather(mistakes: list[UserError], part: Callable[[], Outcome]) -> Outcome | None:
    """What the part gives, or None and its mistakes added: so that those of all parts are told at once."""
    try:
        return part()
    except UserErrors as error:
        mistakes += error.errors
    except UserError as error:
        mistakes.append(error)
    return None
