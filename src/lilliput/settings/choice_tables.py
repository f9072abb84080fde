"""Tables of choices: the named values of a setting, each with the part it builds, its cost and its conflicts.

Owns: `Choice`, `ChoiceTable`, and `TABLES`, one table for each setting whose value is a name that selects a part. Does not
own: the entries. They are in the modules of `HOMES`, which need neither torch nor tokenizers, so that help and dry runs
stay fast; the part itself is imported when it is first built. To add a choice, write the part and one entry; a plugin
calls `register`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pydantic_core import PydanticCustomError, core_schema

from lilliput.errors import UserError, nearest

if TYPE_CHECKING:
    from lilliput.settings.tree import Config


class Conflict(NamedTuple):
    """Settings that conflict: the dotted name of the one to change, what is wrong, and how to fix it (an imperative)."""

    setting: str
    what: str
    fix: str


Rules = Callable[["Config"], list[Conflict]]


def no_rules(config: Config) -> list[Conflict]:
    return []


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of a setting. `builds` makes the part, or names it as "package.module:attribute"; `rules` returns the
    conflicts of a configuration that selects this value. Subclasses add the cost of the part."""

    name: str
    builds: str | Callable[..., Any]
    rules: Rules = no_rules

    def load(self) -> Any:
        """Return the callable that builds the part; a built-in part is imported here."""
        if not isinstance(self.builds, str):
            return self.builds
        module, _, attribute = self.builds.partition(":")
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return found

    def build(self, *arguments: Any, **named: Any) -> Any:
        return self.load()(*arguments, **named)


Entry = TypeVar("Entry", bound=Choice)


class ChoiceTable(Mapping[str, Entry], Generic[Entry]):
    """The choices of one setting by name, in the order in which they were added."""

    def __init__(self, setting: str, home: str | None) -> None:
        self.setting, self.home = setting, home
        self.kind: type[Choice] = Choice  # of its entries; the home sets it
        self._entries: dict[str, Entry] = {}

    def add(self, *entries: Entry) -> None:
        for entry in entries:
            assert entry.name not in self._entries, f"{self.setting} {entry.name} is in the table already"
            self._entries[entry.name] = entry

    def _filled(self) -> dict[str, Entry]:
        if self.home is not None:
            importlib.import_module(self.home)
        return self._entries

    def __getitem__(self, name: str) -> Entry:
        entries = self._filled()
        if name not in entries:
            raise self.unknown(name)
        return entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._filled())

    def __len__(self) -> int:
        return len(self._filled())

    def __contains__(self, name: object) -> bool:
        return name in self._filled()

    def unknown(self, name: str) -> UserError:
        close = nearest(name, self)
        return UserError(
            f"{self.setting} must be one of {', '.join(self) or 'the registered names: there are none'} (got {name!r})",
            None,
            fix=f"set {self.setting} to {close}"
            if close
            else f"register {name!r}, or set {self.setting} to a known name",
            code="setting.choice",
            setting=self.setting,
        )


HOMES: dict[str, str | None] = {
    "tokenizer.kind": "lilliput.data.tokenizer_choices",
    "model.task": "lilliput.model.task_choices",
    "model.norm": "lilliput.model.model_choices",
    "model.norm_placement": "lilliput.model.model_choices",
    "model.positions": "lilliput.model.model_choices",
    "model.feed_forward": "lilliput.model.model_choices",
    "model.value_embeddings": "lilliput.model.model_choices",
    "model.initialisation": "lilliput.model.model_choices",
    "optimizer.kind": "lilliput.training.training_choices",
    "schedule.kind": "lilliput.training.training_choices",
    "generate.processors": None,  # built-in processors have settings of their own: only plugins add entries
}
TABLES: dict[str, ChoiceTable[Any]] = {setting: ChoiceTable(setting, home) for setting, home in HOMES.items()}


def register(setting: str, name: str, builds: Callable[..., Any], **facts: Any) -> None:
    """Add a choice to the table of a setting: `register("model.norm", "scale", ScaleNorm)`.

    `facts` are the other fields of the table's entries (`rules`, counts). Missing counts are taken from the part itself,
    built without memory.
    """
    if setting not in TABLES:
        raise UserError(
            f"{setting} has no table of choices (expected one of {', '.join(TABLES)})",
            None,
            fix=f"register it under {nearest(setting, TABLES) or 'one of these settings'}",
            code="setting.choice",
            setting=setting,
        )
    table = TABLES[setting]
    if name in table:
        raise UserError(
            f"{setting} has a choice {name!r} already",
            None,
            fix="register it under another name",
            code="setting.choice",
            setting=setting,
        )
    table.add(table.kind(name=name, builds=builds, **facts))


@dataclass(frozen=True)
class OneOf:
    """Type annotation of a setting whose values are the names of a table; for pydantic and the JSON schema."""

    setting: str

    def names(self) -> list[str]:
        return list(TABLES[self.setting])

    def check(self, value: str) -> str:
        if value not in TABLES[self.setting]:
            known = [repr(name) for name in self.names()]
            expected = (
                " or ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known) or "registered first"
            )
            raise PydanticCustomError("choice", "Input should be {expected}", {"expected": expected})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        names = self.names()
        return {"type": "string", "enum": names} if names else {"type": "string"}
