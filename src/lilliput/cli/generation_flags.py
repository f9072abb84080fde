"""Flags from dataclasses of settings, for the commands that generate text.

Owns: adding and checking these flags, and applying them to the `generate` settings of a run. Does not own: the settings
(`settings.tree`), conflicts (`settings.rules`), dropped settings (`decoding.generation_settings`), dotted settings (`parsing`).
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from lilliput.cli.error_flags import flag, flags_in_errors, gather, rename_argument, with_fields
from lilliput.cli.parsing import kind_name
from lilliput.decoding.generation_settings import PREFIX, override_settings
from lilliput.errors import UserError, UserErrors
from lilliput.settings.choice_tables import Conflict
from lilliput.settings.loading import admits_none, as_typed, parse_flag, with_none, wrong_values
from lilliput.settings.recipes import Layer
from lilliput.settings.tree import Config, GenerateSettings

Settings = TypeVar("Settings")
Given = dict[str, Any]  # name -> text, list of texts or bool, unchecked


def add_generation_flags(parser: argparse.ArgumentParser, own: type, repeatable: Sequence[str] = ()) -> None:
    """Add the run, the command's own flags, the device and the `generate` settings. `repeatable` ones are lists of texts."""
    parser.add_argument("run", metavar="RUN", help="run (folder, or name in runs/) or checkpoint folder")
    add_flags(parser, own, with_default=True)
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="device to compute on [auto]"
    )
    group = parser.add_argument_group("generation", "defaults: the run's generate.* settings")
    add_flags(group, GenerateSettings, False, repeatable)


def check_generation_flags(
    arguments: argparse.Namespace, own: type[Settings], errors: list[UserError]
) -> Settings | None:
    """Check all flags of `add_generation_flags`, without torch; return the command's own flags."""
    from lilliput.storage.run_folders import resolve_checkpoint

    found = gather(errors, lambda: check_flags(own, given_flags(arguments, own)))
    gather(errors, lambda: check_generate(given_flags(arguments, GenerateSettings)))
    gather(errors, lambda: resolve_checkpoint(arguments.run))
    return found


def add_flags(
    group: argparse._ActionsContainer, settings: type, with_default: bool, repeatable: Sequence[str] = ()
) -> None:
    """Add one flag per field. Values stay strings until `check_flags` and `check_generate` check them together."""
    for field in dataclasses.fields(settings):
        assert isinstance(field.default, FieldInfo)
        kind, about = kinds(settings)[field.name], field.default.description or ""
        text = about.replace("%", "%%") + (f" [{as_typed(field.default.default)}]" if with_default else "")
        if kind is bool:
            group.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=text)
        elif is_list(kind):
            several = f'{text} (repeatable; "" for none)'
            group.add_argument(flag(field.name), action="append", metavar="TEXT", help=several)
        elif field.name in repeatable:
            several = f"{text} (repeatable)"
            group.add_argument(flag(field.name), action="append", metavar=kind_name(kind), help=several)
        else:
            group.add_argument(flag(field.name), metavar=kind_name(kind), help=text)


def kinds(settings: type) -> dict[str, Any]:
    return typing.get_type_hints(settings, include_extras=True)


def is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def given_flags(arguments: argparse.Namespace, settings: type) -> Given:
    """Return the flags of these settings that the user gave."""
    values = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(settings)}
    given = {name: value for name, value in values.items() if value is not None}
    return {
        name: [text for text in value if text] if isinstance(value, list) else value for name, value in given.items()
    }


def check_flags(flags: type[Settings], given: Given, call: Callable[[str], str] = flag) -> Settings:
    """Return a command's own flags with defaults, or raise all errors; `call` returns the user's name of a flag."""
    try:
        return TypeAdapter(flags).validate_python(parse_given(flags, given))
    except ValidationError as error:
        layer: Layer = {name: (value, call(name)) for name, value in given.items()}
        errors = wrong_values(error, layer)
    renamed = [rename_argument(one, one.setting or "", call(one.setting or "")) for one in errors]
    raise UserErrors([with_fields(one, code="flag.value", setting=None) for one in renamed])


def check_generate(given: Given, call: Callable[[str], str] = flag) -> GenerateSettings:
    """Return the given `generate` settings with defaults, or raise all errors."""
    try:
        return TypeAdapter(Config).validate_python({"generate": parse_given(GenerateSettings, given)}).generate
    except ValidationError as error:
        layer: Layer = {PREFIX + name: (value, call(name)) for name, value in given.items()}
        raise UserErrors(wrong_values(error, layer)) from None


def parse_given(settings: type, given: Given) -> Given:
    types = kinds(settings)
    return {name: value_of(text, types[name]) for name, text in given.items()}


def value_of(text: Any, kind: Any) -> Any:
    value = parse_flag(text, kind)
    return with_none(value) if admits_none(kind) else value


def apply_given(
    run: GenerateSettings,
    given: Given,
    call: Callable[[str], str] = flag,
    dropped: Sequence[Conflict] = (),
) -> tuple[GenerateSettings, list[str]]:
    """Return the run's settings with the given ones, and a note for each dropped setting of the run."""
    checked = check_generate(given, call)
    with flags_in_errors(call):
        settings, left_out = override_settings(run, {name: getattr(checked, name) for name in given}, dropped)
    return settings, [f"ignored {call(one.setting.removeprefix(PREFIX))}: {one.what}" for one in left_out]
