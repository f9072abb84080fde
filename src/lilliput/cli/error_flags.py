"""Errors of other rooms as a command reports them: with the flag that the user gave, and all at once.

Owns: the flag of a setting or an argument, and collecting errors. Errors are distinguished by `code` and `setting`, never by
their text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from lilliput.errors import UserError, UserErrors

GENERATE = "generate."  # settings that some commands have as plain flags: --top-p for generate.top_p
Outcome = TypeVar("Outcome")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@contextmanager
def flags_in_errors(call: Callable[[str], str] = flag) -> Iterator[None]:
    """Give errors about a `generate` setting, the device or an argument its flag (or other name, by `call`) as their place."""

    def placed(error: UserError) -> UserError:
        setting = error.setting or ""
        if setting.startswith(GENERATE) or setting == "train.device":
            return with_fields(error, where=call(setting.rpartition(".")[2]))
        is_argument = setting and "." not in setting  # of a function, which the command has as a flag
        return with_fields(error, where=call(setting)) if is_argument and error.where is None else error

    try:
        yield
    except UserErrors as error:
        raise UserErrors([placed(one) for one in error.errors]) from None
    except UserError as error:
        raise placed(error) from None


def with_fields(error: UserError, **fields: str | None) -> UserError:
    """Return a copy of the error with other fields."""
    values = vars(error) | fields
    return UserError(values["what"], values["where"], fix=values["fix"], code=values["code"], setting=values["setting"])


def gather(errors: list[UserError], part: Callable[[], Outcome]) -> Outcome | None:
    """Return what the part returns, or None after adding its errors, so that those of all parts are reported at once."""
    try:
        return part()
    except UserErrors as error:
        errors += error.errors
    except UserError as error:
        errors.append(error)
    return None
