"""The one kind of failure that a user sees without a traceback.

Owns: `UserError` and how it is told. Does not own: deciding what is a mistake (each room does that) or the
exit code (`cli` does that). An `assert` is for what only a defect of Lilliput can break; a `UserError` is for
the rest.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake or a circumstance that its user can mend: what happened, where, and what to do about it.

    Told in at most three lines, one for each part that is given.
    """

    def __init__(self, what: str, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at  {self.where}")
        if self.hint:
            lines.append(f"  try {self.hint}")
        return "\n".join(lines)


class UserErrors(UserError):
    """Several independent mistakes, told at once, a line each."""

    def __init__(self, mistakes: list[UserError]) -> None:
        assert mistakes
        self.mistakes = mistakes
        super().__init__("; ".join(mistake.what for mistake in mistakes))

    def __str__(self) -> str:
        if len(self.mistakes) == 1:
            return str(self.mistakes[0])
        return "\n".join(
            one.what + (f"  ({one.where})" if one.where else "") + (f": {one.hint}" if one.hint else "")
            for one in self.mistakes
        )


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The known word that `word` was most likely meant to be, or None."""
    known = list(words)
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if found:
        return found[0]
    # `learning_rate` for `optimizer.lr` is out of reach of spelling; `layer` for `model.layers` is not.
    last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    found = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(last), n=1, cutoff=0.6)
    return last[found[0]] if found else None
