"""What a setting requires of its value, in words: "a number of at least 1, a list, or none".

Owns: the phrases for pydantic's error types. Does not own: the bounds (`tree`), or the errors (`loading` and the readers of
study and reproduction files).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pydantic_core import ErrorDetails

BOUNDS = {
    "greater_than_equal": ("ge", "a number of at least {}"),
    "less_than_equal": ("le", "a number of at most {}"),
    "greater_than": ("gt", "a number greater than {}"),
    "less_than": ("lt", "a number less than {}"),
}
TYPES = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a table",
    "dataclass_type": "a table",
}
LENGTHS = {
    "missing": "must have more values",
    "too_short": "must have at least {min_length} values",
    "too_long": "must have at most {max_length} values",
}


def valid_values(detail: ErrorDetails) -> list[str]:
    """Return the values that an error allows, as phrases; none if it is an error of another kind, such as a wrong length."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in BOUNDS:
        name, phrase = BOUNDS[kind]
        return [phrase.format(f"{context[name]:g}" if isinstance(context[name], float) else f"{context[name]:,}")]
    if kind in ("literal_error", "choice"):
        return re.findall(r"'[^']*'", context["expected"])
    return [TYPES[kind]] if kind in TYPES else []


def requirement(details: Sequence[ErrorDetails], admits_none: bool = False) -> str:
    """Return what the errors of one value require: "must be a number of at least 1 or none"."""
    values = allowed(details, admits_none)
    if values is not None:
        return f"must be {values}"
    others = dict.fromkeys(other_requirement(detail) for detail in details)
    return " and ".join(others)


def allowed(details: Sequence[ErrorDetails], admits_none: bool = False) -> str | None:
    """Return the valid values as one phrase; None if an error is not about the kind or size of the value."""
    found = [valid_values(detail) for detail in details]
    if not all(found):
        return None
    values = [*dict.fromkeys(value for some in found for value in some), *(["none"] if admits_none else [])]
    return any_of(values)


def any_of(values: Iterable[str]) -> str:
    """Join phrases with "or", with a comma before it if a phrase has several words."""
    *first, last = values
    if not first:
        return last
    comma = "," if len(first) > 1 and any(" " in value for value in first) else ""
    return f"{', '.join(first)}{comma} or {last}"


def other_requirement(detail: ErrorDetails) -> str:
    if detail["type"] in LENGTHS:
        return LENGTHS[detail["type"]].format(**detail.get("ctx", {}))
    if detail["type"] == "choice":  # no name is registered
        return f"must be {detail['ctx']['expected']}"
    return f"must be {any_of(values)}" if (values := valid_values(detail)) else "has an invalid value"
