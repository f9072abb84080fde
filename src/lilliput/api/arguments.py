"""Arguments of Python calls: keywords as settings, checks of single values, and errors that name arguments.

Owns: which keyword is which setting, unknown and repeated keywords, and the text of fixes for Python. Does not own: the
settings, their types and conflicts (`settings`), or the flags of commands (`cli`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.loading import check_values, setting_types
from lilliput.settings.requirements import allowed, requirement
from lilliput.settings.tree import GenerateSettings

ORIGIN = "Python arguments"  # the place of settings in error messages
GENERATE = "generate."
EXAMPLES = {"target": "mytext.txt", "csv": "documents.csv", "name": "window"}
LONGEST = 60  # characters of a value in a message
DEVICES = ("auto", "cpu", "cuda", "mps")

# The keywords of `train` and `prepare` that are settings.
KEYWORDS: dict[str, str] = {
    "name": "name",
    "seed": "seed",
    "folder": "log.folder",
    "minutes": "train.minutes",
    "steps": "train.steps",
    "tokens": "train.tokens",
    "epochs": "train.epochs",
    "max_minutes": "train.max_minutes",
    "batch": "train.batch",
    "device": "train.device",
    "lr": "optimizer.lr",
    "optimizer": "optimizer.kind",
    "dim": "model.dim",
    "layers": "model.layers",
    "heads": "model.heads",
    "context": "model.context",
    "dropout": "model.dropout",
    "task": "model.task",
    "labelled": "data.labelled",
    "documents": "data.documents",
    "tokenizer": "tokenizer.kind",
    "vocab_size": "tokenizer.vocab_size",
}
# Those of methods that generate text; `prompt` is an argument of its own.
GENERATE_KEYWORDS = {
    field.name: GENERATE + field.name for field in dataclasses.fields(GenerateSettings) if field.name != "prompt"
}

# What other libraries call some of these settings.
SYNONYMS = {
    "batch_size": "batch",
    "block_size": "context",
    "context_length": "context",
    "d_model": "dim",
    "hidden_size": "dim",
    "learning_rate": "lr",
    "max_new_tokens": "tokens",
    "max_steps": "steps",
    "max_tokens": "tokens",
    "n_heads": "heads",
    "n_layers": "layers",
    "num_beams": "beams",
    "num_epochs": "epochs",
    "stop_strings": "stop",
}
# Fixes of errors that other rooms word for the command line.
FIXES = {
    "run.exists": 'add resume=True to continue it, name="NEW" to keep both, or overwrite=True to replace it',
    "run.name": 'use name="NAME"; folder="FOLDER" keeps the run in another folder',
    "run.no-checkpoint": "resume its training with lilliput.train(FOLDER, resume=True)",
    "setting.changed": 'remove the changed setting, or use name="NEW" and start_from="RUN" to start a new run',
    "data.changed": 'use the original data, or use name="NEW" and start_from="RUN" to start a new run',
    "data.not-prepared": "use lilliput.prepare to prepare it",
    "study.file": "use the name of a shipped study, or a .toml file",
}
LISTED = {"run.missing": "use lilliput.runs() to list the runs", "study.missing": "use the name of a shipped study"}
COMMAND = re.compile(r"\blilliput [a-z]")
# Errors about an argument that other rooms raise without its name, if the caller gives none.
BLAMED = {"run.exists": "name", "recipe.missing": "target"}
OF_ARGUMENTS = (*BLAMED, "run.missing", "run.no-checkpoint", "study.file", "study.missing", "file.missing")


def checked(name: str, value: object, kind: Any) -> Any:
    """Return an argument that is not a setting, as the type `kind`; raise if it is not valid."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        shown = repr(value) if len(repr(value)) <= LONGEST else f"{repr(value)[:LONGEST]}..."
        what = f"{name} {requirement(details)} (got {shown})"
        fix = f"set {name} to {allowed(details) or 'a valid value'}"
        raise UserError(what, fix=fix, code="argument.value", setting=name) from None


def check_device(device: str) -> str:
    if device not in DEVICES:
        what = f"device must be one of {', '.join(DEVICES)} (got {device!r})"
        fix = f'set device to "{nearest(str(device), DEVICES) or "auto"}"'
        raise UserError(what, fix=fix, code="argument.value", setting="device")
    return device


def refuse_unknown(given: Collection[str], known: Collection[str], keywords: Mapping[str, str]) -> None:
    """Raise for keyword arguments that do not exist, with the nearest keyword, or the setting of that name."""
    errors = []
    for name in sorted(given):
        close = SYNONYMS.get(name)
        close = close if close in known else nearest(name, known, 0.7)
        setting = nearest(name, setting_types()) if keywords is KEYWORDS and close is None else None
        fix = f"use {close or 'one of ' + ', '.join(known)}"
        fix = fix if setting is None else f'pass settings={{"{setting}": VALUE}}'
        errors.append(UserError(f"unknown argument {name}", fix=fix, code="argument.unknown", setting=name))
    if errors:
        raise UserErrors(errors)


def keyword_of(setting: str, keywords: Mapping[str, str]) -> str:
    """Return how a Python call names a setting."""
    names = {dotted: keyword for keyword, dotted in keywords.items()}
    return names.get(setting, f'settings["{setting}"]')


def settings_of(
    given: Mapping[str, Any], settings: Mapping[str, Any] | None, keywords: Mapping[str, str]
) -> dict[str, Any]:
    """Return keywords and dotted settings as one dict by dotted name; raise if both have a setting."""
    check_mapping(settings)
    found = {keywords[name]: plain(value) for name, value in given.items()}
    for name, value in (settings or {}).items():
        dotted = str(name).replace("-", "_")
        if dotted in found:
            keyword = keyword_of(dotted, keywords)
            what = f"{keyword} and settings have the setting {dotted}"
            fix = f"remove {keyword} or {dotted}"
            raise UserError(what, fix=fix, code="argument.conflict", setting=dotted)
        found[dotted] = plain(value)
    return found


def check_mapping(settings: object) -> None:
    if settings is not None and not isinstance(settings, Mapping):
        what = f"settings must be a dict of dotted names (got {type(settings).__name__})"
        fix = 'use settings={"model.layers": 8}, for example'
        raise UserError(what, fix=fix, code="argument.value", setting="settings")


def plain(value: Any) -> Any:
    """Return a path as text, and a scalar of NumPy or torch as a number."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if getattr(value, "shape", None) == () else value


def generate_values(given: Mapping[str, Any], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return checked `generate` settings by their short names, from keywords and a dict of dotted or short names."""
    check_mapping(settings)
    short = {
        name if name not in GENERATE_KEYWORDS else GENERATE + name: value for name, value in (settings or {}).items()
    }
    dotted = settings_of(given, short if settings is not None else None, GENERATE_KEYWORDS)
    for name in dotted:
        if not name.startswith(GENERATE):
            what, fix = f"{name} is not a setting of generation", f"use {nearest(name, GENERATE_KEYWORDS) or 'tokens'}"
            raise UserError(what, fix=fix, code="argument.unknown", setting=name)
    kinds = setting_types()
    for name, value in dotted.items():
        if isinstance(value, str) and typing.get_origin(kinds.get(name)) is tuple:
            dotted[name] = [value]  # a list of one, as on the command line
    config, errors = check_values({name: (value, ORIGIN) for name, value in dotted.items()})
    if errors:
        raise UserErrors(errors)
    names = [name.removeprefix(GENERATE) for name in dotted]
    return {name: getattr(config.generate, name) for name in names}


# Errors -------------------------------------------------------------------------------------------------------------------


@contextmanager
def python_errors(keywords: Mapping[str, str] | None = None, argument: str | None = None) -> Iterator[None]:
    """Name Python arguments in the errors raised inside. `argument`: the one at fault if an error about a run, a study or a
    file names none."""

    def translate(error: UserError) -> UserError:
        blamed = (argument or BLAMED.get(error.code)) if error.code in OF_ARGUMENTS else None
        blamed = "name" if error.code == "run.exists" else blamed
        fix = python_fix(error, keywords or {})
        return UserError(error.what, error.where, fix=fix, code=error.code, setting=error.setting or blamed)

    try:
        yield
    except UserErrors as error:
        raise UserErrors([translate(one) for one in error.errors]) from error.__cause__
    except UserError as error:
        raise translate(error) from error.__cause__


def python_fix(error: UserError, keywords: Mapping[str, str]) -> str:
    if error.code in LISTED and not error.fix.startswith("use "):
        return LISTED[error.code]
    if error.code == "model.task" and COMMAND.search(error.fix):
        return 'use generate, or train a run with labelled=True and task="classifier"'
    if error.code in FIXES and not (error.code == "study.file" and not COMMAND.search(error.fix)):
        return FIXES[error.code]
    names = sorted((name for name in setting_types() if "." in name), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.\"])({'|'.join(map(re.escape, names))})(?![\w.\"])")
    fix = pattern.sub(lambda found: keyword_of(found[1], keywords), error.fix)
    return re.sub(r"\bto none\b", "to None", fix)


def as_path(value: object, name: str) -> str:
    """Return an argument that is a path or a name as text."""
    if isinstance(value, str | os.PathLike):
        return cast(str, os.fspath(value))
    what = f"{name} must be a path or a name (got {type(value).__name__})"
    raise UserError(
        what,
        fix=f"set {name} to a text such as {EXAMPLES.get(name, 'runs/demo')!r}",
        code="argument.value",
        setting=name,
    )


def check_place(path: str | os.PathLike[str] | None, name: str) -> None:
    """Raise if a file cannot be written, before the work starts."""
    if path is None:
        return
    place = Path(as_path(path, name))
    if place.is_dir() or not place.absolute().parent.is_dir():
        what = f"{name} must be a file in an existing folder (got {str(place)!r})"
        raise UserError(what, fix="choose another path or create the folder", code="file.not-written", setting=name)
