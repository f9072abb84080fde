"""Flags, plain and dotted.

Owns: one parser for all verbs, whose mistakes are sentences with the nearest right name; taking dotted
settings (`--model.layers 8`) out of the arguments of the verbs that accept them; the help text of the
settings, from their types.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol

from lilliput.errors import UserError, nearest

LEFT = 40  # columns of the settings' names and kinds in the help


class Verb(Protocol):
    EXAMPLES: str
    TAKES_SETTINGS: bool

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


class Parser(argparse.ArgumentParser):
    words: Sequence[str] = ()  # that are parsed

    def error(self, message: str) -> NoReturn:
        raise UserError(message, None, self.join_dashed(message) or f"{self.prog} --help")

    def join_dashed(self, message: str) -> str | None:
        """The flag that lacks its value with the word after it, if that only looks like a flag."""
        for name, value in itertools.pairwise(self.words):
            looks = value.startswith("-") and value.split("=")[0] not in self._option_string_actions
            if looks and message.startswith(f"argument {name}: expected"):
                return f"{name}={shlex.quote(value)}"
        return None


def parse(verb: str, summary: str, module: Verb, argv: list[str]) -> argparse.Namespace:
    """The verb's arguments; dotted settings are in `arguments.settings` as a dict of texts."""
    parser = Parser(
        prog=f"lilliput {verb}",
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(module.EXAMPLES).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this and leave")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="load choices that FILE.py registers (repeatable)",
    )
    load_plugins(argv)
    module.add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    if "-h" in argv or "--help" in argv:
        print(parser.format_help() + (settings_help() if module.TAKES_SETTINGS else ""), end="")
        sys.exit(0)
    settings, rest = take_settings(argv, flags) if module.TAKES_SETTINGS else ({}, argv)
    parser.words = rest
    arguments, unknown = parser.parse_known_intermixed_args(rest)  # a flag may stand between RUN and TEXT
    if unknown:
        raise unknown_argument(verb, unknown[0], flags, module.TAKES_SETTINGS)
    arguments.settings = settings
    return arguments


def load_plugins(argv: list[str]) -> None:
    """Load the plugins of a command line, before anything else is read from it: they add names of choices."""
    from lilliput.settings.plugins import load_plugin

    for index, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--plugin" and (equals or index + 1 < len(argv)):
            load_plugin(value if equals else argv[index + 1])


def unknown_argument(verb: str, word: str, flags: list[str], takes_settings: bool) -> UserError:
    if not word.startswith("-"):
        return UserError(
            f"one argument too many: {word!r}", None, f"lilliput {verb} --help; quote text that has spaces"
        )
    known: Iterable[str] = flags
    if takes_settings:
        from lilliput.settings.loading import setting_types

        known = [*flags, *(f"--{name}" for name in setting_types())]
    name = word.split("=")[0]
    close = nearest(name, known) or nearest(name.removeprefix("--"), (flag.removeprefix("--") for flag in known))
    return UserError(
        f"there is no flag {name}", None, "--" + close.removeprefix("--") if close else f"lilliput {verb} --help"
    )


def take_settings(argv: list[str], flags: list[str]) -> tuple[dict[str, str], list[str]]:
    """Settings (a dotted name, or one of the two without a dot) and the arguments that are left."""
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
            elif name in kinds:  # a name that is none is refused as such, with the nearest one
                raise UserError(f"--{name} needs a value", None, f"--{name} VALUE")
        settings[name] = value
    return settings, rest


def settings_help() -> str:
    """Every setting with its kind, default and meaning."""
    import dataclasses

    from pydantic.fields import FieldInfo

    from lilliput.settings.loading import setting_types
    from lilliput.settings.tree import SIZES, Config

    default, width = Config(), min(120, max(80, shutil.get_terminal_size().columns)) - 2
    lines = ["", "settings (in a recipe, [model] layers = 8 says the same as --model.layers 8):"]
    for name, kind in setting_types().items():
        section, _, inner = name.rpartition(".")
        owner = getattr(default, section) if section else default
        field = next(field for field in dataclasses.fields(owner) if field.name == inner)
        about = field.default.description if isinstance(field.default, FieldInfo) else ""
        value = getattr(owner, inner)
        shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else value
        left, right = f"  --{name} {kind_name(kind)}", f"{about} [{shown}]"
        wrapped = textwrap.wrap(right, width - LEFT, break_long_words=False, break_on_hyphens=False)
        if len(left) > LEFT - 2:  # two spaces before the meaning
            lines, left = [*lines, left], ""
        lines += [f"{left:{LEFT}}{wrapped[0]}", *(" " * LEFT + line for line in wrapped[1:])]
    sizes = "; ".join(f"{size} = " + ", ".join(f"{k} {v}" for k, v in values.items()) for size, values in SIZES.items())
    lines += ["", *textwrap.wrap(f"sizes: {sizes}", width, subsequent_indent="       ")]
    return "\n".join(lines) + "\n"


def kind_name(kind: Any) -> str:
    """A type as a newcomer reads it: 8, 0.1, a|b|c."""
    from lilliput.settings.choices import OneOf

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
