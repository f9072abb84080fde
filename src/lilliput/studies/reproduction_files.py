"""Files of reproductions: the runs, studies, tables and figures of a published report, and its settings next to ours.

Owns: the keys of a reproduction's TOML file, the places of shipped ones, and errors of its keys and types, all at once. Does not
own: whether names in it exist (`reproduction_checks`), its runs (`reproduction_plan`), values (`reproduction_values`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from lilliput.errors import UserError, UserErrors, nearest
from lilliput.settings.recipes import line_of, read_toml, refuse_other_kind, shipped
from lilliput.settings.requirements import allowed, requirement
from lilliput.settings.tree import STRICT, Count, Positive, Seed
from lilliput.studies.study_files import Amounts

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]  # also the name of a folder
Number = int | float


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StatedSetting:
    """A setting of a report: `stated` is empty if the report does not state it, `recipe` differs from the report's main one."""

    name: str
    stated: str
    setting: str
    recipe: str | None = None
    reason: str = ""


# Runs and studies


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuickRun:
    """Replacements of a run in the quick form."""

    budget: Amounts | None = None
    settings: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlannedRun:
    """A recipe that is trained with one seed and measured: once, or once for each label of `cells`."""

    name: Name
    recipe: str
    budget: Amounts
    measure: tuple[str, ...] = ("training",)
    settings: dict[str, Any] | None = None
    cells: dict[str, dict[str, Any]] | None = None
    seed: Seed = 1
    quick: QuickRun = QuickRun()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlannedStudy:
    """A study, shared by all reproductions in a folder. `quick` selects its quick form; the quick form of the reproduction
    always takes the quick form of the study."""

    name: str
    seeds: tuple[Seed, ...] | None = None
    quick: bool = False


# Items: the tables and figures of the report, in the order of the sections


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Where our value comes from. Keys of a row replace those of its column, which replace those of the table.

    `metric` is one of the run's or study's cell, or, at a `step`, `epoch` or `progress` (share of the training), one of the
    run's history. `over`: the cell that the value is divided by. `scale`: a factor, such as 0.01.
    """

    run: str | None = None
    study: str | None = None
    cell: str | dict[str, str] | None = None
    metric: str | None = None
    step: Annotated[int, Field(ge=0)] | None = None
    epoch: Positive | None = None
    progress: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    over: str | dict[str, str] | None = None
    scale: float | None = None


SOURCE_KEYS = tuple(field.name for field in fields(Source))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Column(Source):
    """A column of numbers. Of `points`, such as percentages, differences are absolute; of others they are relative."""

    name: str
    digits: Annotated[int, Field(ge=0, le=8)] = 2
    points: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Row(Source):
    """The published values, one per column: a number, a phrase, or an empty string if there is none."""

    name: str
    values: tuple[Number | str, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Item:
    """`place` is the place in the report, such as "Table 3"; `note` is shown below the item."""

    place: str
    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TableItem(Item, Source):
    """A published table next to our values. `first` is the heading of the names of rows."""

    kind: Literal["table"]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    first: str = ""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CurvesItem(Item):
    """Curves of a run over its steps."""

    kind: Literal["curves"]
    run: str
    curves: tuple[Literal["loss", "perplexity", "accuracy", "learning-rate", "gradient", "speed"], ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunItem(Item):
    """A section about one run: every evaluation during training, or its parts, shapes, masks, positions and checks."""

    kind: Literal["history", "inspection"]
    run: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SamplesItem(Item):
    """Continuations of held-out documents with references, by the settings of the run's first cell; the first `shown`."""

    kind: Literal["samples"]
    run: str
    shown: Count = 10


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HeadsItem(Item):
    """Scores of all attention heads of a run, and, if there are `published` functions (by name, one per head of `layer`),
    ours next to them."""

    kind: Literal["heads"]
    run: str
    layer: Annotated[int, Field(ge=0)] = 0
    published: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MapsItem(Item):
    """Heat maps of all heads of a layer, a picture per text. `pad`: fill the row up to the context."""

    kind: Literal["maps"]
    run: str
    texts: tuple[str, ...]
    layer: Annotated[int, Field(ge=0)] = 0
    pad: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TextsItem(Item):
    """Texts that a run generates after prompts, with its `generate.*` settings."""

    kind: Literal["texts"]
    run: str
    prompts: tuple[str, ...]
    tokens: Count | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlotsItem(Item):
    """Plots of a study, numbered from 1 in the order of its file."""

    kind: Literal["plots"]
    study: str
    plots: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExamplesItem(Item):
    """One prompt (`measure.example`), continued by every cell of a run or a study."""

    kind: Literal["examples"]
    run: str | None = None
    study: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SettingsItem(Item):
    """A table of settings of the report; the document has all settings in one section."""

    kind: Literal["settings"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AbsentItem(Item):
    """A table or figure that is not produced, and why."""

    kind: Literal["absent"]
    reason: str


AnyItem = Annotated[
    TableItem
    | CurvesItem
    | RunItem
    | SamplesItem
    | HeadsItem
    | MapsItem
    | TextsItem
    | PlotsItem
    | ExamplesItem
    | SettingsItem
    | AbsentItem,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Doubt:
    """A published figure that is inconsistent, and why: of an item (its title), a row or a column of it, or the report."""

    reason: str
    item: str | None = None
    row: str | None = None
    column: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Minutes:
    """The estimated training time of all runs on two cores; `--minutes N` scales every budget by N over this."""

    full: Positive
    quick: Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Reproduction:
    """The content of a reproduction file."""

    title: str
    report: str
    recipe: str
    settings: tuple[StatedSetting, ...] = ()
    minutes: Minutes = Minutes(full=60, quick=6)
    runs: tuple[PlannedRun, ...] = ()
    studies: tuple[PlannedStudy, ...] = ()
    items: tuple[AnyItem, ...] = ()
    doubts: tuple[Doubt, ...] = ()


KINDS: dict[str, Any] = {
    "table": TableItem,
    "curves": CurvesItem,
    "history": RunItem,
    "samples": SamplesItem,
    "heads": HeadsItem,
    "inspection": RunItem,
    "maps": MapsItem,
    "texts": TextsItem,
    "plots": PlotsItem,
    "examples": ExamplesItem,
    "settings": SettingsItem,
    "absent": AbsentItem,
}
PARTS: dict[str, Any] = {
    "settings": StatedSetting,
    "runs": PlannedRun,
    "studies": PlannedStudy,
    "doubts": Doubt,
    "minutes": Minutes,
    "quick": QuickRun,
    "columns": Column,
    "rows": Row,
}


# Reading


def shipped_reproductions() -> dict[str, Path]:
    """Return the shipped reproductions by name; in a wheel they are in `lilliput/reproductions`."""
    return shipped("reproductions", "reproductions")


def find_reproduction(name_or_path: str) -> Path:
    """Return the path of a reproduction, given as a path or the name of a shipped one."""
    known = shipped_reproductions()
    path = known.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        close = nearest(name_or_path, known)
        fix = f"use {close}" if close else f"choose one of {', '.join(known)}"
        raise UserError(f"reproduction {name_or_path!r} does not exist", fix=fix, code="reproduction.missing")
    return path


def read_reproduction(name_or_path: str | Path) -> Reproduction:
    """Read a reproduction; raise all errors of its keys and types at once."""
    path = find_reproduction(str(name_or_path))
    text, content = read_toml(path, "reproduction")
    refuse_other_kind(path, content, "reproduction")
    try:
        return TypeAdapter(Reproduction).validate_python(content)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise UserErrors([describe_error(path, text, detail) for detail in details]) from None


def describe_error(path: Path, text: str, detail: Any) -> UserError:
    parts: list[str | int] = [part for part in detail["loc"] if part != "[key]"]
    name = ".".join(str(part) for part in parts)
    where = f"{path.name}, line {part_line(text, parts)}"
    if detail["type"] == "unexpected_keyword_argument":
        known = [field.name for field in fields(class_of(parts[:-1]))]
        close = nearest(str(parts[-1]), known)
        what, fix = f"unknown key {name}", f"use {close}" if close else f"remove {name}"
    elif detail["type"] == "missing":
        what, fix = f"{name} is missing", f"add {parts[-1]}"
    elif detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        given = detail["input"].get("kind") if isinstance(detail["input"], dict) else None
        close, name = nearest(str(given), KINDS), f"{name}.kind"
        what = f"{name} must be one of {', '.join(KINDS)} (got {given!r})"
        fix = f"use {close}" if close else "set kind to one of them"
    else:
        what = f"{name} {requirement([detail])} (got {str(detail['input'])[:60]!r})"
        fix = f"set {name} to {allowed([detail]) or 'a valid value'}"
    return UserError(what, where, fix=fix, code="reproduction.file", setting=name)


def class_of(parts: Sequence[str | int]) -> Any:
    """Return the class of the table at a place in the file."""
    names = [part for part in parts if isinstance(part, str)]
    known = KINDS if names[:1] == ["items"] and len(names) == 2 else PARTS
    return known.get(names[-1], Reproduction) if names else Reproduction


def part_line(text: str, parts: Sequence[str | int]) -> int:
    """Return the line of a part: of a key at the top, or of the header of the n-th entry of a list, such as [[items]]."""
    if len(parts) < 2 or not isinstance(parts[1], int):
        return line_of(text, ".".join(str(part) for part in parts))
    lines = text.splitlines()
    headers = [number for number, line in enumerate(lines, 1) if re.match(rf"\s*\[\[\s*{parts[0]}\s*\]\]", line)]
    return headers[parts[1]] if parts[1] < len(headers) else line_of(text, str(parts[0]))
