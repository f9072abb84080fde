"""The one exception that a user sees without a traceback.

Owns: `UserError` and its text. Does not own: the decision what is an error (each package) or the exit code (`cli`). An
`assert` checks what only a defect of Lilliput can break; everything else is a `UserError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error that the user can fix: what is wrong, where, and how to fix it, one line each.

    `what` states the error with the value that was found and the values that are valid. `where` is a file, a line, a flag
    or another place. `fix` is an imperative sentence. `code` is stable and names the kind of error (`setting.unknown`,
    `file.not-utf8`); `setting` is the dotted name of the setting at fault, if there is one. Programs and tests compare
    `code` and `setting`, never the text.
    """

    def __init__(self, what: str, where: str | None = None, *, fix: str, code: str, setting: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        self.code = code
        self.setting = setting
        super().__init__(what)

    @property
    def place(self) -> str | None:
        """The second line: the setting at fault, with the file or flag that has it, or another place."""
        if self.dotted_setting is None:
            named = self.where and self.what.startswith(f"{self.where} ")  # the first line names the place
            return None if named else self.where and f"at: {self.where}"
        return f"setting: {self.setting}" + (f" ({self.where})" if self.where not in (None, self.setting) else "")

    @property
    def dotted_setting(self) -> str | None:
        """The setting at fault, unless it is the name of an argument, which has no dot."""
        return self.setting if self.setting and "." in self.setting else None

    def __str__(self) -> str:
        return "\n  ".join(filter(None, (self.what, self.place, f"fix: {self.fix}")))

    def printed(self) -> str:
        """The text as a command prints it."""
        return f"error: {self}"

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        return self.printed().splitlines()


class UserErrors(UserError):
    """Several independent errors, reported at once, one line each."""

    def __init__(self, errors: list[UserError]) -> None:
        assert errors
        self.errors = errors
        super().__init__(
            "; ".join(error.what for error in errors),
            fix="; ".join(error.fix for error in errors),
            code=errors[0].code if len(errors) == 1 else "several",
            setting=errors[0].setting if len(errors) == 1 else None,
        )

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return str(self.errors[0])
        lines = []
        for error in self.errors:
            named = error.dotted_setting and error.dotted_setting in error.what
            place = error.where if named else error.dotted_setting or error.where
            shown = f" ({place})" if place and not error.what.startswith(place) else ""
            lines.append(f"{error.what}{shown}; fix: {error.fix}")
        return "\n".join(lines)

    def printed(self) -> str:
        return (
            "\n".join(f"error: {line}" for line in str(self).splitlines()) if len(self.errors) > 1 else f"error: {self}"
        )


@contextmanager
def blame(setting: str) -> Iterator[None]:
    """Name this setting in errors raised inside that name none."""
    try:
        yield
    except UserError as error:
        error.setting = error.setting or setting
        raise


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is spelled most like `word`, or None. `cutoff`: least similarity (difflib)."""
    known = list(words)
    found = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    if found:
        return found[0]
    # Compare last parts too: `layer` is close to `model.layers` only by its last part.
    last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    found = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(last), n=1, cutoff=cutoff)
    return last[found[0]] if found else None
