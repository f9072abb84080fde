"""The one exception that a user sees without a traceback.

Owns: `UserError` and its text. Does not own: the decision what is an error (each room makes it) or the exit code
(`cli`). An `assert` is for what only a defect of Lilliput can break; a `UserError` is for everything else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """An error that the user can fix: what is wrong, where, and how to fix it, in at most three lines.

    `code` is stable and names the kind of error (`setting.unknown`, `file.not-utf8`); `setting` is the dotted name of the
    setting at fault, where there is one. Programs and tests compare these two, never the text.
    """

    def __init__(
        self,
        what: str,
        where: str | None = None,
        fix: str | None = None,
        *,
        code: str,
        setting: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        self.code = code
        self.setting = setting
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class UserErrors(UserError):
    """Several independent errors, reported at once, one line each."""

    def __init__(self, errors: list[UserError]) -> None:
        assert errors
        self.errors = errors
        super().__init__(
            "; ".join(error.what for error in errors),
            code=errors[0].code if len(errors) == 1 else "several",
            setting=errors[0].setting if len(errors) == 1 else None,
        )

    def __str__(self) -> str:
        if len(self.errors) == 1:
            return str(self.errors[0])
        return "\n".join(
            error.what + (f"  ({error.where})" if error.where else "") + (f": {error.fix}" if error.fix else "")
            for error in self.errors
        )


@contextmanager
def blame(setting: str) -> Iterator[None]:
    """Name this setting in errors raised inside that name none."""
    try:
        yield
    except UserError as error:
        error.setting = error.setting or setting
        raise


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that is spelled most like `word`, or None."""
    known = list(words)
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if found:
        return found[0]
    # `learning_rate` for `optimizer.lr` is out of reach of spelling; `layer` for `model.layers` is not.
    last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    found = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.6)
    return last[found[0]] if found else None
