"""From a recipe and flags to checked, frozen settings: TOML -> `base` -> size -> dotted overrides -> `Config`.

Owns: finding recipes, the order of the layers (defaults < base < recipe < size < dotted), where each value
came from, and telling all mistakes at once with the nearest right name. Does not own: what settings there are
(`tree`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.dotted import flatten
from lilliput.settings.rules import conflicts
from lilliput.settings.tree import BUDGETS, SIZES, Config
from lilliput.storage.atomic_files import check_nesting

# Inputs named in a recipe are looked for beside the recipe; outputs always go to the folder that the user is in.
INPUT_PATHS = (
    "data.source",
    "data.validation_source",
    "data.tests",
    "tokenizer.path",
    "tokenizer.vocabulary",
    "vectors.source",
)
BUILT_IN_CORPORA = ("storybook", "tinystories")
NO_PATHS = (*BUILT_IN_CORPORA, "train", "none")  # words that stand where a path may stand

# Settings that earlier versions had, each with the value that turned it off.
REMOVED: dict[str, Any] = {"model.pairs": None, "model.mix_embedding": False, "train.naive_bayes": None}
# Strings of all four kinds, and comments.
_TOML_STRINGS = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*""", re.DOTALL
)

Layer = dict[str, tuple[Any, str]]  # dotted name -> (value, where it was said)


@functools.cache
def setting_types() -> dict[str, Any]:
    """Every dotted name with its type."""
    types: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(Config, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            types |= {f"{name}.{inner}": t for inner, t in typing.get_type_hints(kind, include_extras=True).items()}
        else:
            types[name] = kind
    return types


def sections() -> list[str]:
    return list(dict.fromkeys(name.split(".")[0] for name in setting_types() if "." in name))


def load_config(
    target: str | None = None, overrides: Mapping[str, str] | None = None, size: str | None = None
) -> Config:
    """Settings from `target` (a recipe's path or name, or texts to train on), a size and dotted overrides."""
    layers = [] if target is None else target_layers(target)
    if size is not None:
        if size not in SIZES:
            raise UserError(f"there is no size {size!r}", fix=f"one of {', '.join(SIZES)}")
        layers.append({f"model.{name}": (value, f"--size {size}") for name, value in SIZES[size].items()})
    layers.append({name.replace("-", "_"): (text, f"--{name}") for name, text in (overrides or {}).items()})
    return check(merge(layers), from_flags=set(layers[-1]))


def target_layers(target: str) -> list[Layer]:
    """What a recipe says, its bases first; or that texts are to be trained on."""
    if recipe := find_recipe(target):
        return [{"name": (recipe.stem, "the recipe's name")}, *recipe_layers(recipe, seen=())]
    path = Path(target)
    file = Path(target.partition(".py:")[0] + ".py") if ".py:" in target else path
    if not file.exists() and target not in BUILT_IN_CORPORA and not is_hub_name(target):
        known = [*shipped_recipes(), *BUILT_IN_CORPORA]
        close = nearest(path.stem, known)
        others = f"a text file, a folder, or a shipped recipe: {', '.join(sorted(shipped_recipes()))}"
        raise UserError(f"there is no recipe, file or folder {target!r}", fix=repr(close) if close else others)
    name = re.sub(r"[^\w.-]+", "-", path.stem or path.resolve().name).strip("-.") or "run"
    return [{"name": (name, target), "data.source": (target, target)}]


def config_from_dict(settings: Mapping[str, Any], where: str) -> Config:
    """Settings from a nested dict, such as a checkpoint's config.json."""
    return check({name: (value, where) for name, value in without_removed(settings, where).items()}, from_flags=set())


def without_removed(saved: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return saved settings by dotted name, without the removed ones; raise if one of those was not off."""
    flat = flatten(saved)
    used = {name: flat[name] for name, off in REMOVED.items() if flat.get(name, off) != off}
    if used:
        fix = "lilliput 0.1.0 for this run, or train again without the setting"
        raise UserErrors(
            [
                UserError(f"{name} is {json.dumps(value)}, and this version no longer has the setting", where, fix)
                for name, value in used.items()
            ]
        )
    return {name: value for name, value in flat.items() if name not in REMOVED}


def config_to_dict(config: Config) -> dict[str, Any]:
    """Nested, with JSON's types only."""
    return typing.cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(config))))


def as_begun(saved: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return saved settings by dotted name. A setting that did not exist when they were saved has its default, which changes
    nothing; removed settings are handled as in `without_removed`."""
    return flatten(config_to_dict(Config())) | without_removed(saved, where)


def replace(config: Config, changes: Mapping[str, Any]) -> Config:
    """A checked copy with dotted settings changed, as in `replace(config, {"model.vocab_size": 512})`."""
    where = "a change made in Python"
    old, new = flatten(config_to_dict(config)), changes
    layers = [{name: (value, where) for name, value in flat.items()} for flat in (old, new)]
    return check(merge(layers), from_flags=set())


def merge(layers: list[Layer]) -> Layer:
    merged: Layer = {}
    for layer in layers:
        # A budget replaces the budget of the layers below, whatever it is counted in.
        names = [f"train.{budget}" for budget in BUDGETS]
        said = [name for name in names if name in layer and layer[name][0] not in (None, "none")]
        if said:
            merged |= dict.fromkeys(names, (None, layer[said[0]][1]))
        merged |= layer
    return merged


def check(layer: Layer, from_flags: set[str]) -> Config:
    """The settings of a merged layer over the defaults, or every mistake in it."""
    types, mistakes = setting_types(), list[UserError]()
    nested: dict[str, Any] = {}
    for name, (value, where) in layer.items():
        if name not in types:
            mistakes.append(unknown_setting(name, where))
            continue
        value = parse_flag(value, types[name]) if name in from_flags else value
        value = with_none(value) if admits_none(types[name]) else value
        if isinstance(value, bool) and types[name] is not bool:
            mistakes.append(UserError(f"{name} is {str(value).lower()}: a value is needed, not a switch", where))
            continue
        section, _, inner = name.rpartition(".")
        target = nested.setdefault(section, {}) if section else nested
        target[inner] = value
    try:
        config = TypeAdapter(Config).validate_python(nested)
    except ValidationError as error:
        raise UserErrors(mistakes + wrong_values(error, layer)) from None
    config = resolve(config)
    for name, sentence in conflicts(config):
        mistakes.append(UserError(sentence, layer.get(name, (None, None))[1]))
    if mistakes:
        raise UserErrors(mistakes)
    return config


def resolve(config: Config) -> Config:
    """Derived defaults written out, so that a saved config.json is complete."""
    model = config.model
    hidden = model.hidden if model.hidden is not None else 4 * model.dim
    kv_heads = model.kv_heads if model.kv_heads is not None else model.heads
    return dataclasses.replace(config, model=dataclasses.replace(model, hidden=hidden, kv_heads=kv_heads))


def unknown_setting(name: str, where: str) -> UserError:
    if name in sections():
        fix = f"[{name}] in a recipe, --{name}.NAME VALUE as a flag"
        return UserError(f"{name} is a group of settings, not a setting", where, fix)
    if name in REMOVED:
        return UserError(f"there is no setting {name}", where, "leaving it out: the setting was removed")
    close = nearest(name, setting_types())
    return UserError(f"there is no setting {name}", where, close or "lilliput train --help lists them all")


def wrong_values(error: ValidationError, layer: Layer) -> list[UserError]:
    """pydantic's list as sentences; the branches of a union are told as one."""
    told: dict[str, list[str]] = {}
    given: dict[str, Any] = {}
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"][:2])
        name = name if name in setting_types() else str(detail["loc"][0])
        told.setdefault(name, []).append(sentence(detail["msg"]))
        given.setdefault(name, layer[name][0] if name in layer else detail["input"])
    return [
        UserError(
            f"{name} is {given[name]!r}: it {' or '.join(dict.fromkeys(messages))}", layer.get(name, ("", None))[1]
        )
        for name, messages in told.items()
    ]


def sentence(message: str) -> str:
    """pydantic's message as what follows "it"."""
    message = re.sub(r"^(Input|Value|Tuple|List|String) |,? (unable to|got a|after validation).*", "", message)
    message = message.replace("a valid integer", "a whole number").replace("a valid boolean", "true or false")
    return message.replace("a valid ", "a ").replace("Field required", "lacks a value")


def admits_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def with_none(value: Any) -> Any:
    if isinstance(value, list):
        return [with_none(item) for item in value]
    return None if value == "none" else value


def parse_flag(text: Any, kind: Any) -> Any:
    """A flag's text as the TOML value it would be in a recipe; text settings are taken as they are."""
    if not isinstance(text, str) or kind is str or kind == str | None:
        return text
    listed = text.strip()
    if listed.startswith("[") or "," in listed:
        return [parse_flag(item.strip(), Any) for item in listed.strip("[]").split(",") if item.strip()]
    try:
        value = tomllib.loads(f"value = {listed}")["value"]
    except tomllib.TOMLDecodeError:
        value = listed
    return [value] if typing.get_origin(kind) is tuple else value  # a list of one


def recipe_layers(path: Path, seen: tuple[Path, ...]) -> list[Layer]:
    """The layers of a recipe, its bases first."""
    path = path.resolve()
    if path in seen:
        raise UserError("recipes are based on each other in a circle", " -> ".join(str(p.name) for p in (*seen, path)))
    text, settings = read_toml(path, "recipe")
    base = settings.pop("base", None)
    layer = {name: (value, f"{path.name}, line {line_of(text, name)}") for name, value in flatten(settings).items()}
    for name in INPUT_PATHS:
        if name in layer:
            layer[name] = (resolve_input(layer[name][0], path.parent), layer[name][1])
    if base is None:
        return [layer]
    if not isinstance(base, str) or not (found := find_recipe(str(path.parent / base)) or shipped_recipe(base)):
        raise UserError(f"the base recipe {base!r} does not exist", f"{path.name}, line {line_of(text, 'base')}")
    return [*recipe_layers(found, (*seen, path)), layer]


def read_toml(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """The file's text and what it says; `what` it is, a user is told."""
    try:
        text = path.read_bytes().decode("utf-8")
        check_nesting(_TOML_STRINGS.sub("", text))
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise UserError(f"a {what} must be UTF-8 text", f"{path}, byte {error.start}") from None
    except ValueError as error:
        raise UserError(f"not valid TOML: {error}", str(path)) from None
    except OSError as error:
        raise UserError(f"the {what} cannot be read: {error.strerror}", str(path)) from None


def resolve_input(value: Any, folder: Path) -> Any:
    """A path of a recipe beside its file, with $LILLIPUT_DATA put in; of a list of name=path, each."""
    if isinstance(value, list):
        named = [item.partition("=") if isinstance(item, str) else (item, "", "") for item in value]
        return [f"{name}={resolve_input(text, folder)}" if equals else name for name, equals, text in named]
    if not isinstance(value, str) or value in NO_PATHS or is_hub_name(value, folder):
        return value
    if data := os.environ.get("LILLIPUT_DATA"):
        value = value.replace("$LILLIPUT_DATA", data)
    return value if value.startswith("$") else str(folder / Path(value).expanduser())


def is_hub_name(text: str, folder: Path = Path()) -> bool:
    """owner/name, and no path that was mistyped: neither it nor a folder of the owner's name is there."""
    match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)/([\w-][\w.-]*)", text)
    return bool(match) and not Path(text).suffix and not (folder / match[1]).exists()  # type: ignore[index]


def line_of(text: str, name: str) -> int:
    """The line of a recipe on which a setting is said, for the mistake's address (tomllib keeps no positions)."""
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
    """TOML files that travel with Lilliput, by name: in a folder of the package in a wheel, of the root in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / inside, package.parents[1] / root):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def shipped_recipes() -> dict[str, Path]:
    return shipped("recipes", "recipes")


def find_recipe(target: str) -> Path | None:
    """A recipe by its path, or a shipped one by its name (`demo`, `demo.toml`, `recipes/demo.toml`)."""
    path = Path(target)
    if path.suffix == ".toml" and path.is_file():
        return path
    return None if path.exists() else shipped_recipe(target)


def shipped_recipe(name: str) -> Path | None:
    return shipped_recipes().get(name.removeprefix("recipes/").removesuffix(".toml"))


def recipe_schema() -> dict[str, Any]:
    """JSON schema of a recipe, so that editors complete and check it. TOML has no null: "none" stands for it."""

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
