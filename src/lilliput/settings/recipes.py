"""Recipes: TOML files with settings, found by path or by name and read with their bases.

Owns: finding recipe files, reading TOML, the line of a setting in its file, the layers of a recipe and its bases, and the JSON
schema of a recipe. Does not own: merging and checking the layers (`loading`).
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lilliput.errors import UserError, nearest
from lilliput.settings.source_names import BUILT_IN_CORPORA, INPUT_PATHS, is_hub_name, nearest_path, resolve_input
from lilliput.settings.tree import Config
from lilliput.storage.atomic_files import check_nesting
from lilliput.storage.dotted_names import flatten

# Strings of all four kinds, and comments.
TOML_STRINGS = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*""", re.DOTALL
)

# Keys that only one kind of TOML file has; those of recipes are the settings.
KEYS = {
    "study": {"seeds", "measure", "axes", "question"},
    "reproduction": {"report", "items", "runs", "studies", "doubts", "minutes"},
}
Layer = dict[str, tuple[Any, str]]  # dotted name -> (value, place of the value for error messages)


def target_layers(target: str) -> list[Layer]:
    """Return the layers of a recipe, its bases first; or one layer with `target` as data.source."""
    if recipe := find_recipe(target):
        return [{"name": (recipe.stem, "the recipe's name")}, *recipe_layers(recipe, seen=())]
    path = Path(target)
    file = Path(target.partition(".py:")[0] + ".py") if ".py:" in target else path
    if not file.exists() and target not in BUILT_IN_CORPORA and not is_hub_name(target):
        known = [*shipped_recipes(), *BUILT_IN_CORPORA]
        close = nearest_path(path) or nearest(path.stem, known)
        others = f"give a text file, a folder or a shipped recipe: {', '.join(sorted(shipped_recipes()))}"
        what, fix = f"no recipe, file or folder is named {target!r}", f"use {str(close)!r}" if close else others
        raise UserError(what, fix=fix, code="recipe.missing")
    name = re.sub(r"[^\w.-]+", "-", path.stem or path.resolve().name).strip("-.") or "run"
    return [{"name": (name, target), "data.source": (target, target)}]


def recipe_layers(path: Path, seen: tuple[Path, ...]) -> list[Layer]:
    """Return the layers of a recipe, its bases first."""
    path = path.resolve()
    if path in seen:
        chain = " -> ".join(str(p.name) for p in (*seen, path))
        raise UserError("the base recipes form a cycle", chain, fix="remove one `base`", code="recipe.cycle")
    text, settings = read_toml(path, "recipe")
    refuse_other_kind(path, settings, "recipe")
    base = settings.pop("base", None)
    layer = {name: (value, f"{path.name}, line {line_of(text, name)}") for name, value in flatten(settings).items()}
    for name in INPUT_PATHS:
        if name in layer:
            layer[name] = (resolve_input(layer[name][0], path.parent), layer[name][1])
    if base is None:
        return [layer]
    if not isinstance(base, str) or not (found := find_recipe(str(path.parent / base)) or shipped_recipe(base)):
        where, fix = f"{path.name}, line {line_of(text, 'base')}", "give a path relative to this recipe"
        raise UserError(f"the base recipe {base!r} does not exist", where, fix=fix, code="recipe.missing")
    return [*recipe_layers(found, (*seen, path)), layer]


def read_toml(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Return the file's text and its content; `what` names the kind of file in error messages."""
    fix = "save it as UTF-8"
    try:
        text = path.read_bytes().decode("utf-8")
        fix = "nest its tables and arrays less deeply"
        check_nesting(TOML_STRINGS.sub("", text))
        fix = "correct its syntax"
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        where = f"{path}, byte {error.start}"
        raise UserError(f"the {what} is not UTF-8", where, fix=fix, code="file.not-utf8") from None
    except ValueError as error:
        # Before Python 3.14 the line is only in the text of the error.
        place = re.search(r"at line (\d+)", str(error))
        where, fix = (f"{path}, line {place[1]}", f"{fix} in line {place[1]}") if place else (str(path), fix)
        raise UserError(f"the {what} is not valid TOML: {error}", where, fix=fix, code="file.syntax") from None
    except OSError as error:
        what = f"cannot read the {what}: {error.strerror}"
        raise UserError(what, str(path), fix="check its path and permissions", code="file.unreadable") from None


def refuse_other_kind(path: Path, content: Mapping[str, Any], wanted: str) -> None:
    """Raise if a TOML file has the keys of another kind of file, and none of the wanted kind only."""
    own = {"recipe": {"base", "name", "seed", *(field.name for field in dataclasses.fields(Config))}} | KEYS
    if own[wanted] & content.keys():
        return
    for kind, keys in own.items():
        if keys & content.keys():
            command = {"recipe": "train"}.get(kind, kind.replace("reproduction", "reproduce"))
            here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            what, fix = f"{path.name} is a {kind}, not a {wanted}", f"run lilliput {command} {shlex.quote(str(here))}"
            raise UserError(what, str(here), fix=fix, code="file.kind")


def line_of(text: str, name: str) -> int:
    """Return the line of a setting in a recipe, for error messages (tomllib keeps no positions)."""
    section, last = "", name.rsplit(".", 1)[-1]
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([\w.\-]+)\]", line):
            section = header[1] + "."
        key = re.match(r"""\s*["']?([\w.\-]+)["']?\s*=""", line)
        if key and f"{name}.".startswith(f"{section}{key[1]}."):  # the setting itself, or an inline table that holds it
            return number
    word = re.compile(rf"\b{re.escape(last)}\b")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if word.search(line)), 1)


def shipped(inside: str, root: str) -> dict[str, Path]:
    """Return the TOML files that come with Lilliput by name: in the package in a wheel, in the root in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / inside, package.parents[1] / root):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def shipped_recipes() -> dict[str, Path]:
    return shipped("recipes", "recipes")


def find_recipe(target: str) -> Path | None:
    """Find a recipe by its path, or a shipped one by its name (`demo`, `demo.toml`, `recipes/demo.toml`)."""
    path = Path(target)
    if path.suffix == ".toml" and path.is_file():
        return path
    return None if path.exists() else shipped_recipe(target)


def shipped_recipe(name: str) -> Path | None:
    return shipped_recipes().get(name.removeprefix("recipes/").removesuffix(".toml"))


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of a recipe, for completion and checks in editors. TOML has no null: "none" replaces it."""

    def in_toml(node: Any) -> Any:
        if isinstance(node, dict):
            if node.get("type") == "null":
                return {"const": "none"}
            return {
                key: ("none" if key == "default" and value is None else in_toml(value)) for key, value in node.items()
            }
        return [in_toml(item) for item in node] if isinstance(node, list) else node

    schema = typing.cast(dict[str, Any], in_toml(TypeAdapter(Config).json_schema()))
    schema["title"] = "A Lilliput recipe"
    schema["properties"]["base"] = {"type": "string", "description": "recipe to inherit from, relative to this file"}
    return schema
