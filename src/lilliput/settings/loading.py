"""From a recipe and overrides to checked, frozen settings: TOML -> `base` -> size -> dotted overrides -> `Config`.

Owns: the order of the layers (defaults < base < recipe < size < overrides), where each value came from, and reporting all
errors at once with the nearest valid name. Does not own: what settings there are (`tree`), which of them conflict (`rules`),
finding and reading recipes (`recipes`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
import tomllib
import typing
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.recipes import Layer, target_layers
from lilliput.settings.requirements import allowed, requirement
from lilliput.settings.rules import conflicts
from lilliput.settings.tree import BUDGETS, TIME_LIMIT, Config
from lilliput.storage.dotted_names import flatten

TABLES = ("txt", "jsonl", "csv", "tsv", "parquet")  # the files that earlier versions read in a folder
# Settings that earlier versions had, each with the value that turned it off.
REMOVED: dict[str, Any] = {"model.pairs": None, "model.mix_embedding": False, "train.naive_bayes": None}
# Settings whose default changes what earlier versions did, each with the value that does the same as they did.
BEFORE: dict[str, Any] = {
    "data.line_ends": "keep",
    "data.files": [f"*.{kind}{packed}" for kind in TABLES for packed in ("", ".gz", ".zst", ".xz")],
}


@functools.cache
def setting_types() -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""
    types: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(Config, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            types |= {f"{name}.{inner}": t for inner, t in typing.get_type_hints(kind, include_extras=True).items()}
        else:
            types[name] = kind
    return types


# Values of `--size`. The saved settings contain the shapes, not the name.
SIZES: dict[str, dict[str, int]] = {
    "nano": {"dim": 64, "layers": 2, "heads": 2, "hidden": 256, "context": 128},
    "tiny": {"dim": 128, "layers": 4, "heads": 4, "hidden": 512, "context": 256},
    "small": {"dim": 256, "layers": 6, "heads": 8, "hidden": 1024, "context": 256},
    "base": {"dim": 512, "layers": 8, "heads": 8, "hidden": 2048, "context": 512},
}


def sections() -> list[str]:
    return list(dict.fromkeys(name.split(".")[0] for name in setting_types() if "." in name))


def load_config(
    target: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    size: str | None = None,
    origin: str = "overrides",
) -> Config:
    """Load settings from `target` (a recipe's path or name, or a source of text), a size and dotted overrides.

    Overrides that are texts are parsed as TOML values. `origin` names the place of the overrides in error messages.
    """
    layers = [] if target is None else target_layers(target)
    if size is not None:
        if size not in SIZES:
            fix = f"choose one of {', '.join(SIZES)}"
            raise UserError(f"unknown size {size!r}", fix=fix, code="setting.choice", setting="size")
        layers.append({f"model.{name}": (value, f"size {size}") for name, value in SIZES[size].items()})
    layers.append({name.replace("-", "_"): (text, origin) for name, text in (overrides or {}).items()})
    return check(merge(layers), from_flags=set(layers[-1]))


def config_from_dict(settings: Mapping[str, Any], where: str) -> Config:
    """Check settings in a nested dict, such as a checkpoint's config.json, which may be of an earlier version."""
    return check({name: (value, where) for name, value in (BEFORE | without_removed(settings, where)).items()})


def without_removed(saved: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return saved settings by dotted name, without the removed ones; raise if one of those was not off."""
    flat = flatten(saved)
    used = {name: flat[name] for name, off in REMOVED.items() if flat.get(name, off) != off}
    if used:
        fix = "use lilliput 0.1.0 for this run, or train again without the setting"
        raise UserErrors(
            [
                UserError(
                    f"the setting {name} was removed (got {json.dumps(value)})",
                    where,
                    fix=fix,
                    code="setting.removed",
                    setting=name,
                )
                for name, value in used.items()
            ]
        )
    return {name: value for name, value in flat.items() if name not in REMOVED}


def config_to_dict(config: Config) -> dict[str, Any]:
    """Return the settings as nested dicts of JSON types."""
    return typing.cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(config))))


def as_begun(saved: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return saved settings by dotted name. A setting that did not exist when they were saved has its default, which changes
    nothing; removed settings are handled as in `without_removed`."""
    return flatten(config_to_dict(Config())) | without_removed(saved, where)


def replace(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a checked copy with dotted settings changed, as in `replace(config, {"model.vocab_size": 512})`."""
    return check(merge([{name: (value, "a change made in Python") for name, value in changes.items()}]), base=config)


def merge(layers: list[Layer]) -> Layer:
    merged: Layer = {}
    for layer in layers:
        # A budget replaces the budget of the layers below, whatever it is counted in, and its time limit.
        names = [f"train.{budget}" for budget in BUDGETS]
        given = [name for name in names if name in layer and layer[name][0] not in (None, "none")]
        if given:
            merged |= dict.fromkeys([*names, f"train.{TIME_LIMIT}"], (None, layer[given[0]][1]))
        merged |= layer
    return merged


def check(layer: Layer, from_flags: Collection[str] = (), base: Config | None = None) -> Config:
    """Return the settings of a merged layer over `base` (the defaults if None), or raise all errors in it at once.

    Values of the settings in `from_flags` are parsed as TOML. Only sections that the layer changes are validated again.
    """
    config, errors = check_values(layer, from_flags, base)
    config = resolve(config)
    for name, what, fix in conflicts(config):
        place = layer[name][1] if name in layer else None
        errors.append(UserError(what, place, fix=fix, code="setting.conflict", setting=name))
    if errors:
        raise UserErrors(errors)
    return config


def check_values(
    layer: Layer, from_flags: Collection[str] = (), base: Config | None = None
) -> tuple[Config, list[UserError]]:
    """Return the settings of a layer without a check of conflicts, and the errors of names; raise if a value is invalid."""
    types, errors = setting_types(), list[UserError]()
    nested: dict[str, Any] = {}
    for name, (value, where) in layer.items():
        if name not in types:
            errors.append(unknown_setting(name, where))
            continue
        value = parse_flag(value, types[name]) if name in from_flags else value
        value = with_none(value) if admits_none(types[name]) else value
        if isinstance(value, bool) and types[name] is not bool:
            what = f"{name} requires a value (got {str(value).lower()})"
            errors.append(UserError(what, where, fix=f"set {name} to a value", code="setting.value", setting=name))
            continue
        section, _, inner = name.rpartition(".")
        target = nested.setdefault(section, {}) if section else nested
        target[inner] = value
    if base is not None:
        nested = vars(base) | {
            name: vars(getattr(base, name)) | value if name in sections() else value for name, value in nested.items()
        }
    try:
        return TypeAdapter(Config).validate_python(nested), errors
    except ValidationError as error:
        raise UserErrors(errors + wrong_values(error, layer)) from None


def resolve(config: Config) -> Config:
    """Fill in derived defaults, so that a saved config.json is complete."""
    model = config.model
    hidden = model.hidden if model.hidden is not None else 4 * model.dim
    kv_heads = model.kv_heads if model.kv_heads is not None else model.heads
    return dataclasses.replace(config, model=dataclasses.replace(model, hidden=hidden, kv_heads=kv_heads))


def unknown_setting(name: str, where: str) -> UserError:
    if name in sections():
        inside = next(setting for setting in setting_types() if setting.startswith(f"{name}."))
        fix = f"name a setting in the group, such as {inside}"
        return UserError(
            f"{name} is a group of settings, not a setting", where, fix=fix, code="setting.group", setting=name
        )
    if name in REMOVED:
        return UserError(
            f"the setting {name} was removed", where, fix="leave the setting out", code="setting.removed", setting=name
        )
    if name == "plugin":
        fix = "remove it and run the command with --plugin FILE.py: a recipe cannot load code"
        return UserError("a plugin is not a setting", where, fix=fix, code="setting.unknown", setting=name)
    close = nearest(name, setting_types())
    fix = f"use {close}" if close else f"use name, seed or a setting of one of the groups {', '.join(sections())}"
    return UserError(f"unknown setting {name}", where, fix=fix, code="setting.unknown", setting=name)


def wrong_values(error: ValidationError, layer: Layer) -> list[UserError]:
    """Return one error per setting; the branches of a union become one error."""
    details: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"][:2])
        details.setdefault(name if name in setting_types() else str(detail["loc"][0]), []).append(detail)
    return [wrong_value(name, found, layer) for name, found in details.items()]


def wrong_value(name: str, details: list[ErrorDetails], layer: Layer) -> UserError:
    """Return the error of one setting. A text that is not among the names of a choice has a code of its own."""
    value, where = layer[name] if name in layer else (details[0]["input"], None)
    close, subject = None, name
    inside = all(len(detail["loc"]) > 2 and isinstance(detail["loc"][-1], int) for detail in details)
    if inside and all(detail["type"] != "missing" for detail in details):
        subject, value = f"each value of {name}", details[0]["input"]  # of a list
    is_choice = isinstance(value, str) and all(detail["type"] in ("literal_error", "choice") for detail in details)
    if is_choice:
        names = [name for detail in details for name in re.findall(r"'([^']*)'", detail["ctx"]["expected"])]
        close = nearest(value, names, 0.8)
    off = subject == name and admits_none(setting_types().get(name))
    return UserError(
        f"{subject} {requirement(details, off)} (got {value!r})",
        where,
        fix=f"set {subject} to {close or allowed(details, off) or 'a valid value'}",
        code="setting.choice" if is_choice else "setting.value",
        setting=name,
    )


def admits_none(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def with_none(value: Any) -> Any:
    if isinstance(value, list):
        return [with_none(item) for item in value]
    return None if value == "none" else value


def parse_flag(text: Any, kind: Any) -> Any:
    """Parse a flag's text as the TOML value it would be in a recipe; settings of type str are not parsed."""
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


def as_typed(value: Any) -> str:
    """Return a setting's value as a user would type it."""
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or '""'
