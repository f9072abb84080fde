"""The format of an error: what (one line), where (one line), and a fix that begins with a verb in the imperative.

Owns: the list of verbs, and the check that `conftest` applies to every error that any test raises.
"""

from __future__ import annotations

from typing import Any

from lilliput.errors import UserError, UserErrors

VERBS = {
    *(
        "add",
        "allow",
        "ask",
        "check",
        "choose",
        "close",
        "copy",
        "correct",
        "create",
        "delete",
        "encode",
        "end",
        "free",
        "give",
    ),
    *(
        "increase",
        "install",
        "leave",
        "list",
        "lower",
        "make",
        "move",
        "name",
        "nest",
        "overwrite",
        "pass",
        "prepare",
        "put",
        "quote",
        "read",
    ),
    *(
        "reduce",
        "register",
        "remove",
        "rename",
        "repair",
        "replace",
        "run",
        "save",
        "select",
        "set",
        "shorten",
        "split",
    ),
    *("change", "restore", "resume", "start", "stop", "train", "turn", "update", "use", "wait", "write"),
}


def check_format(error: UserError) -> None:
    lines = (error.what, error.where or "", error.fix)
    assert not any("\n" in line for line in lines), f"an error has one line each for what, where and fix: {lines}"
    assert error.fix.split(" ")[0] in VERBS, f"a fix begins with a verb: {error.fix!r}"
    assert not error.fix.endswith("."), f"a fix has no full stop: {error.fix!r}"


def check_every_error() -> None:
    """Check each error when it is created, whether it is printed or not."""
    original = UserError.__init__

    def checked(self: UserError, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if not isinstance(self, UserErrors):
            check_format(self)

    UserError.__init__ = checked  # type: ignore[method-assign]
