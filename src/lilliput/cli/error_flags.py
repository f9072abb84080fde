"""Errors of other packages with the flags of a command.

Owns: the flag of a setting or an argument, checks of files to write, and collecting errors, so that all are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lilliput.errors import UserError, UserErrors

GENERATE = "generate."  # settings that some commands have as plain flags: --top-p for generate.top_p
Outcome = TypeVar("Outcome")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@contextmanager
def flags_in_errors(call: Callable[[str], str] = flag) -> Iterator[None]:
    """Set the place of errors about a `generate` setting, the device or an argument to its flag (or the name by `call`)."""

    def placed(error: UserError) -> UserError:
        setting = error.setting or ""
        if setting.startswith(GENERATE) or setting == "train.device":
            return with_fields(error, where=call(setting.rpartition(".")[2]))
        if not setting or "." in setting:
            return error
        return rename_argument(error, setting, call(setting))

    try:
        yield
    except UserErrors as error:
        raise UserErrors([placed(one) for one in error.errors]) from None
    except UserError as error:
        raise placed(error) from None


def with_typed_flags(error: UserError, flags: Collection[str]) -> UserError:
    """Return the error with the command's flags in place of names of settings and arguments: --top-k for generate.top_k."""
    if isinstance(error, UserErrors):
        return UserErrors([with_typed_flags(one, flags) for one in error.errors])
    names = [name.removeprefix("--").replace("-", "_") for name in flags]
    plain = [name for name in names if "_" in name]  # words without an underscore may be ordinary words

    def renamed(text: str) -> str:
        for pattern, known in ((rf"\b{GENERATE.replace('.', '[.]')}({{}})\b", names), (r"(?<![\w./-])({})\b", plain)):
            if known:
                text = re.sub(pattern.format("|".join(map(re.escape, known))), lambda found: flag(found[1]), text)
        return text

    fix = re.sub(r"\bset (--[\w-]+) to true\b", r"add \1", renamed(error.fix))
    return with_fields(error, what=renamed(error.what), fix=fix)


def rename_argument(error: UserError, name: str, shown: str) -> UserError:
    """Return the error with the user's name of an argument: `on must be ...` becomes `--on must be ...`."""
    what = shown + error.what.removeprefix(name) if error.what.startswith(f"{name} ") else error.what
    fix = error.fix.replace(f"set {name} ", f"set {shown} ")
    where = error.where if error.where or what.startswith(shown) else shown
    return with_fields(error, what=what, fix=fix, where=where)


def with_fields(error: UserError, **fields: str | None) -> UserError:
    """Return a copy of the error with other fields."""
    values = vars(error) | fields
    return UserError(values["what"], values["where"], fix=values["fix"], code=values["code"], setting=values["setting"])


def gather(errors: list[UserError], part: Callable[[], Outcome]) -> Outcome | None:
    """Call `part` and return its result; if it raises, add its errors to `errors` and return None."""
    try:
        return part()
    except UserErrors as error:
        errors += error.errors
    except UserError as error:
        errors.append(error)
    return None


def check_place(name: str, path: str | None) -> None:
    """Raise if the file cannot be written, before the work starts."""
    if path is None:
        return
    if Path(path).is_dir():
        raise UserError(f"{flag(name)} must be a file (got a folder)", path, fix="choose a file", code="file.is-folder")
    if not Path(path).absolute().parent.is_dir():
        what, fix = f"the folder of {flag(name)} does not exist", "create the folder or choose another path"
        raise UserError(what, path, fix=fix, code="file.not-written")
