"""Parsing of flags and dotted settings.

Owns: the parser of all commands, with errors that name the nearest valid flag; dotted settings (`--model.layers 8`) of the
commands that accept them; the help text of the settings.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol

from lilliput.errors import UserError, nearest

SETTINGS = (
    "settings. --model.layers 8 on the command line is layers = 8 under [model] in a recipe. You can write - for _. A "
    "true|false setting without a value becomes true. Square brackets show the default. Names in round brackets at the end, "
    "such as (muon) or (word, character): the setting is used only with that optimizer, tokenizer, task or engine."
)
# What a flag requires, by its metavar.
VALUES = {
    "FILE": "a file name",
    "FILE.py": "a file name",
    "FOLDER": "a folder",
    "RUN": "a run",
    "N": "a number",
    "X": "a number",
    "TEXT": "a text",
}
CLOSE = 0.75  # similarity of a flag that is suggested in place of an unknown one
LEFT = 40  # columns of the names and types of settings in the help


class Command(Protocol):
    EXAMPLES: str
    TAKES_SETTINGS: bool

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise an error for a missing required argument, the only one that argparse reports here."""
        missing = message.rpartition(": ")[2]
        fix = f"run {self.first_example()}, for example ({self.prog} --help shows all flags)"
        raise UserError(f"the argument {missing} is missing", None, fix=fix, code="flag.missing")

    def first_example(self) -> str:
        return (self.epilog or "").splitlines()[1].strip().partition("  ")[0]

    def parse_words(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the arguments and the unknown words; flags and positional arguments may be mixed."""
        try:
            return self.parse_known_intermixed_args(self.fill_values(words))
        except argparse.ArgumentError as error:
            raise self.flag_error(error.argument_name or "", words) or UserError(
                str(error), None, fix=f"run {self.prog} --help to list the flags", code="flag.value"
            ) from None

    def flag_error(self, name: str, words: Sequence[str]) -> UserError | None:
        """Return the error of a flag that argparse rejected: its value is missing, or is not one of its values."""
        from lilliput.settings.requirements import any_of

        names = name.split("/")
        action = self._option_string_actions.get(names[0])
        if action is None:
            return None
        if action.nargs == 0:  # a value after an equals sign
            what = f"{names[0]} has no value"
            return UserError(what, None, fix=f"use {' or '.join(names)}", code="flag.value")
        given = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
        following = [after for word, after in itertools.pairwise([*words, None]) if word == name]
        missing = [after for after in following if after is None or after.startswith("-")]
        if missing:
            metavar, after = str(action.metavar or "VALUE"), missing[0] or ""
            dashed = after and after.split("=")[0] not in self._option_string_actions  # a value that begins with a dash
            example = re.search(rf"""{re.escape(name)} ("[^"]*"|\S+)""", self.epilog or "")
            fix = (
                f"use {name}={shlex.quote(after)}"
                if dashed
                else f"use {example[0] if example else f'{name} {metavar}'}"
            )
            what = f"{name} requires {VALUES.get(metavar, 'a value')}"
            return UserError(what, None, fix=fix, code="flag.missing")
        kinds: dict[Any, str] = {int: "an integer", float: "a number"}
        valid = any_of(map(str, action.choices)) if action.choices else kinds.get(action.type, "a valid value")
        given += [after for after in following if after is not None]
        wrong = [value for value in given if value not in (action.choices or ())]
        what = f"{name} must be {valid} (got {wrong[-1]!r})"
        close = nearest(wrong[-1], map(str, action.choices or ()), 0.8)
        return UserError(
            what, None, fix=f"use {name} {close}" if close else f"set {name} to {valid}", code="flag.value"
        )

    def fill_values(self, words: Sequence[str]) -> list[str]:
        """Return the words with the default of each flag whose number is optional and omitted (`--ids mytext.txt`), and with
        `--no-x` for `--x false`, the form of settings."""
        filled = list[str]()
        skipped = False
        for word, after in itertools.pairwise([*words, ""]):
            action, is_value = self._option_string_actions.get(word), skipped
            skipped = False
            if is_value:
                continue
            if isinstance(action, argparse.BooleanOptionalAction) and after in ("true", "false"):
                positive = word.replace("--no-", "--", 1)
                filled.append(
                    word if after == "true" else positive.replace("--", "--no-", 1) if word == positive else positive
                )
                skipped = True
            elif action is not None and action.nargs == "?" and not after.removeprefix("-")[:1].isdecimal():
                filled.append(f"{word}={action.const}")
            else:
                filled.append(word)
        return filled


def parse(command: str, summary: str, module: Command, argv: list[str]) -> argparse.Namespace:
    """Return the command's arguments; dotted settings are in `arguments.settings` as a dict of texts."""
    parser = Parser(
        prog=f"lilliput {command}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(module.EXAMPLES).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="load a Python file that defines new choices, such as a new model.norm (repeatable; CONTRIBUTING.md)",
    )
    load_plugins(argv)
    module.add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    if "-h" in argv or "--help" in argv:
        print(parser.format_help() + (settings_help() if module.TAKES_SETTINGS else ""), end="")
        sys.exit(0)
    settings, rest = take_settings(argv, flags) if module.TAKES_SETTINGS else ({}, argv)
    arguments, unknown = parser.parse_words(rest)
    if unknown:
        raise value_of_switch(parser, unknown[0], argv) or unknown_argument(
            command, unknown[0], flags, module.TAKES_SETTINGS
        )
    arguments.settings, arguments.flags = settings, flags
    return arguments


def load_plugins(argv: list[str]) -> None:
    """Load the plugins of a command line before it is parsed, because they add names of choices."""
    from lilliput.settings.plugins import load_plugin

    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--plugin" and (equals or index + 1 < len(argv)):
            load_plugin(value if equals else argv[index + 1])


def value_of_switch(parser: Parser, word: str, argv: list[str]) -> UserError | None:
    """Return the error of an unexpected word after a flag that has no value, or after a true|false setting."""
    from lilliput.settings.loading import setting_types

    before = next((flag for flag, value in itertools.pairwise(argv) if value == word), "")
    name = before.removeprefix("--").replace("-", "_")
    if before.startswith("--") and "." in name and setting_types().get(name) is bool:
        what, fix = f"{name} must be true or false (got {word!r})", f"use {before} true or {before} false"
        return UserError(what, None, fix=fix, code="setting.value", setting=name)
    action = parser._option_string_actions.get(before)
    if action is None or action.nargs != 0:
        return None
    return UserError(f"{before} has no value (got {word!r})", None, fix=f"remove {word!r}", code="flag.unknown")


def unknown_argument(command: str, word: str, flags: list[str], takes_settings: bool) -> UserError:
    if not word.startswith("-"):
        fix = "quote a text that has spaces, or put several files into a folder and give the path of the folder"
        return UserError(f"unexpected argument {word!r}", None, fix=fix, code="flag.unknown")
    known: Iterable[str] = flags
    if takes_settings:
        from lilliput.settings.loading import setting_types

        known = [*flags, *(f"--{name}" for name in setting_types())]
    name = word.split("=")[0]
    group = [flag for flag in known if flag.startswith(f"{name}.")]
    if group:
        fix = f"name a setting of the group, such as {group[0]}"
        return UserError(f"{name} is a group of settings, not a flag", None, fix=fix, code="flag.unknown")
    bare, names = name.removeprefix("--"), [flag.removeprefix("--") for flag in known]
    longest = max((flag for flag in names if len(flag) > 2 and bare.startswith(flag)), key=len, default=None)
    close = nearest(bare, names, CLOSE) or longest  # longest: a known name with more letters, such as --prompt-file
    longer = [flag for flag in names if close and flag != close and flag.startswith(close) and bare.startswith(close)]
    meant = [f"--{flag}" for flag in (close, *longer) if flag]
    fix = f"use {' or '.join(meant)}" if meant else f"run lilliput {command} --help to list the flags"
    if bare in ("step", "checkpoint") and not meant:
        fix = f"give the folder of a checkpoint, as in lilliput {command} runs/demo/checkpoints/step-003000"
    return UserError(f"unknown flag {name}", None, fix=fix, code="flag.unknown")


def take_settings(argv: list[str], flags: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the settings (dotted names, `name` and `seed`) and the other arguments."""
    from lilliput.settings.loading import setting_types

    kinds = setting_types()
    settings: dict[str, str] = {}
    rest: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        index += 1
        name, equals, value = word.removeprefix("--").partition("=")
        is_setting = word.startswith("--") and f"--{name}" not in flags and ("." in name or name in kinds)
        if not is_setting:
            rest.append(word)
            continue
        name = name.replace("-", "_")
        if not equals:
            given = index < len(argv) and not argv[index].startswith("--")
            if kinds.get(name) is bool and not (given and argv[index].lower() in ("true", "false")):
                value = "true"
            elif given:
                value = argv[index]
                index += 1
            elif name in kinds:  # an unknown name is reported later, with the nearest one
                what, fix = f"--{name} requires a value", f"use --{name} VALUE"
                raise UserError(what, None, fix=fix, code="flag.missing", setting=name)
        settings[name] = value
    return settings, rest


def settings_help() -> str:
    """Return the type, description and default of every setting."""
    import dataclasses

    from pydantic.fields import FieldInfo

    from lilliput.settings.loading import SIZES, setting_types
    from lilliput.settings.tree import Config

    default, width = Config(), min(120, max(80, shutil.get_terminal_size().columns)) - 2
    lines = ["", *textwrap.wrap(SETTINGS, width)]
    for name, kind in setting_types().items():
        section, _, inner = name.rpartition(".")
        owner = getattr(default, section) if section else default
        field = next(field for field in dataclasses.fields(owner) if field.name == inner)
        about = field.default.description if isinstance(field.default, FieldInfo) else ""
        left, right = f"  --{name} {kind_name(kind)}", f"{about} [{shown_default(getattr(owner, inner))}]"
        wrapped = textwrap.wrap(right, width - LEFT, break_long_words=False, break_on_hyphens=False)
        if len(left) > LEFT - 2:  # two spaces before the description
            lines, left = [*lines, left], ""
        lines += [f"{left:{LEFT}}{wrapped[0]}", *(" " * LEFT + line for line in wrapped[1:])]
    sizes = "; ".join(f"{size} = " + ", ".join(f"{k} {v}" for k, v in values.items()) for size, values in SIZES.items())
    lines += ["", *textwrap.wrap(f"sizes: {sizes}", width, subsequent_indent="       ")]
    return "\n".join(lines) + "\n"


def shown_default(value: Any) -> str:
    """Return a default as the help shows it in square brackets."""
    if value in ((), ""):
        return "empty"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def kind_name(kind: Any) -> str:
    """Return a type as shown in the help: N, X, a|b|c."""
    from lilliput.settings.choice_tables import OneOf

    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        names = [name for part in inner[1:] if isinstance(part, OneOf) for name in part.names()]
        return "|".join(names) or kind_name(inner[0])
    if origin is typing.Literal:
        return "|".join(str(value) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return "|".join(dict.fromkeys("none" if part is type(None) else kind_name(part) for part in inner))
    if origin is tuple:
        return "A,B"
    return {int: "N", float: "X", str: "TEXT", bool: "true|false"}.get(kind, "VALUE")
