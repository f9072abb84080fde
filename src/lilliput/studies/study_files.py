"""Files of studies: finding and reading them.

Owns: the keys of a study's TOML file, the places of shipped studies, line numbers for errors. Does not own: whether
settings, labels and measures exist (`grid`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.recipes import line_of, read_toml, refuse_other_kind, shipped
from lilliput.settings.requirements import allowed, requirement
from lilliput.settings.tree import STRICT, Seed

Amounts = dict[Literal["steps", "tokens", "minutes", "epochs", "flops"], Annotated[int | float, Field(gt=0)]]


@dataclass(frozen=True, config=STRICT)
class Plot:
    """A plot that the study requests; `x` and `y` are metrics."""

    kind: Literal["curves", "bars", "scatter", "fit"]
    x: str | None = None
    y: str | None = None
    title: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuickForm:
    """The replacements of a study's [quick] table; for an axis, the labels that are kept."""

    seeds: tuple[Seed, ...] | None = None
    budget: Amounts | None = None
    measure: tuple[str, ...] | None = None
    settings: dict[str, Any] | None = None
    axes: dict[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Technique:
    """The row of a study in the summary of techniques: the cell `with_it` is compared with the cell `without` by three
    metrics; `use` states when to use the technique."""

    name: str
    with_it: dict[str, str]
    without: dict[str, str]
    use: str
    quality: str | None = None
    speed: str | None = None
    memory: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(name for name in (self.quality, self.speed, self.memory) if name is not None)

    def unknown_cells(self, labels: Mapping[str, Collection[str]]) -> list[str]:
        """Return the keys whose cell does not have one of these labels for every axis."""
        given = {"with_it": self.with_it, "without": self.without}
        return [
            key
            for key, cell in given.items()
            if cell.keys() != labels.keys() or any(label not in labels[axis] for axis, label in cell.items())
        ]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StudyFile:
    """The content of a study file."""

    title: str
    recipe: str
    seeds: tuple[Seed, ...]
    measure: tuple[str, ...]
    question: str = ""
    budget: Amounts | None = None
    show: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None
    axes: dict[str, dict[str, Any]] | None = None
    plots: tuple[Plot, ...] = ()
    published: tuple[str, ...] = ()
    history: bool = False
    technique: Technique | None = None
    quick: QuickForm | None = None


KEYS: dict[str, Any] = {"": StudyFile, "quick": QuickForm, "technique": Technique}  # other tables with keys are plots


def shipped_studies() -> dict[str, Path]:
    """Return the shipped studies by name; in a wheel they are in `lilliput/shipped_studies`."""
    return shipped("shipped_studies", "studies")


def find_study(name_or_path: str) -> Path:
    """Return the path of a study, given as a path or the name of a shipped study."""
    path, known = Path(name_or_path), shipped_studies()
    if path.suffix == ".toml" and path.is_file():
        return path
    name = name_or_path.removeprefix("studies/").removesuffix(".toml")
    if name in known:
        return known[name]
    if path.exists():
        raise UserError(
            f"a study must be a .toml file (got {name_or_path})",
            str(path),
            fix="run lilliput study to list the shipped studies",
            code="study.file",
        )
    close = nearest(path.stem, known)
    fix = f"use {close}" if close else "run lilliput study to list the shipped studies"
    raise UserError(f"study {name_or_path!r} does not exist", fix=fix, code="study.missing")


def read_study(path: Path) -> tuple[str, StudyFile]:
    """Return the text of the file and its content; raise all errors at once."""
    text, content = read_toml(path, "study")
    refuse_other_kind(path, content, "study")
    try:
        return text, TypeAdapter(StudyFile).validate_python(content)
    except ValidationError as error:
        errors = []
        for detail in error.errors(include_url=False):
            names = [str(part) for part in detail["loc"]]
            name = ".".join(name for name in names if name != "[key]")
            where = f"{path.name}, line {line_of(text, '.'.join(names))}"
            if detail["type"] == "unexpected_keyword_argument":
                close = nearest(names[-1], (field.name for field in fields(KEYS.get(".".join(names[:-1]), Plot))))
                what, fix = f"unknown key {name}", f"use {close}" if close else f"remove {name}"
                errors.append(UserError(what, where, fix=fix, code="study.file", setting=name))
            elif detail["type"] == "missing":
                what, fix = f"the study has no {name}", f"add {name}"
                errors.append(UserError(what, path.name, fix=fix, code="study.file", setting=name))
            else:
                what = f"{name} {requirement([detail])} (got {detail['input']!r})"
                fix = f"set {name} to {allowed([detail]) or 'a valid value'}"
                errors.append(UserError(what, where, fix=fix, code="study.file", setting=name))
        raise UserErrors(errors) from None


def label_line(text: str, axis: str, label: str) -> int:
    """Return the line of an axis label, which may be any quoted text."""
    inside, quoted = False, rf"""["']?{re.escape(label)}["']?"""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            inside = header[1].strip() == f"axes.{axis}"
            if re.fullmatch(rf"\s*axes\.{re.escape(axis)}\.{quoted}(\..*)?", header[1]):
                return number
        elif inside and re.match(rf"\s*{quoted}\s*[.=]", line):
            return number
    return line_of(text, f"axes.{axis}")
