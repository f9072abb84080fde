"""The text, the code and the setting of errors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lilliput
from helpers.error_format import VERBS
from lilliput.errors import UserError, UserErrors, blame, nearest

SOURCE = Path(lilliput.__file__).parent


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (UserError("what", fix="use it", code="x.y"), ["what", "fix: use it"]),
        (UserError("what", "a file", fix="use it", code="x.y"), ["what", "at: a file", "fix: use it"]),
        (
            UserError("what", fix="use it", code="x.y", setting="model.dim"),
            ["what", "setting: model.dim", "fix: use it"],
        ),
        (
            UserError("what", "a file", fix="use it", code="x.y", setting="model.dim"),
            ["what", "setting: model.dim (a file)", "fix: use it"],
        ),
    ],
)
def test_one_error_has_at_most_three_lines(error: UserError, lines: list[str]) -> None:
    assert str(error) == "\n  ".join(lines)


def test_several_errors_have_one_line_each() -> None:
    errors = UserErrors(
        [
            UserError("a", "here", fix="use b", code="x.y"),
            UserError("c", fix="use d", code="x.y"),
            UserError("e", "here", fix="use f", code="x.y", setting="model.dim"),
        ]
    )
    assert str(errors).splitlines() == ["a (here); fix: use b", "c; fix: use d", "e (model.dim); fix: use f"]
    assert errors.printed().splitlines() == [f"error: {line}" for line in str(errors).splitlines()]


def test_a_list_of_one_error_equals_that_error() -> None:
    one = UserError("what", "where", fix="use it", code="setting.value", setting="seed")
    errors = UserErrors([one])
    assert str(errors) == str(one)
    assert (errors.code, errors.setting) == ("setting.value", "seed")


def test_the_code_of_several_errors() -> None:
    errors = UserErrors(
        [
            UserError("a", fix="use b", code="setting.value", setting="seed"),
            UserError("b", fix="use c", code="file.missing"),
        ]
    )
    assert (errors.code, errors.setting) == ("several", None)


@pytest.mark.parametrize("setting", [None, "data.text_field"])
def test_blame_names_a_setting_where_there_is_none(setting: str | None) -> None:
    with pytest.raises(UserError) as found, blame("data.source"):
        raise UserError("what", fix="use it", code="data.column", setting=setting)
    assert found.value.setting == (setting or "data.source")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("model.layer", "model.layers"),
        ("layers", "model.layers"),
        ("modle.dim", "model.dim"),
        ("optimizer.learnrate", "optimizer.lr"),
        ("lr", "optimizer.lr"),
        ("xyzzy", None),
    ],
)
def test_the_nearest_name(word: str, meant: str | None) -> None:
    assert nearest(word, ["model.layers", "model.dim", "optimizer.lr", "seed"]) == meant


# The three lines of every error in the source: what, where, fix ----------------------------------------------------------


def first_words(node: ast.AST, scope: ast.AST, seen: frozenset[str] = frozenset()) -> list[str]:
    """Return the first words of the possible values of an expression; names are resolved in their function."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split()[:1] or [""]
    if isinstance(node, ast.JoinedStr):
        return first_words(node.values[0], scope, seen)
    if isinstance(node, ast.IfExp):
        return first_words(node.body, scope, seen) + first_words(node.orelse, scope, seen)
    if isinstance(node, ast.BinOp):
        return first_words(node.left, scope, seen)
    if isinstance(node, ast.Name) and node.id not in seen:
        pairs = [
            (target, assigned.value)
            for assigned in ast.walk(scope)
            if isinstance(assigned, ast.Assign)
            for target in assigned.targets
        ]
        for target, value in list(pairs):
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=True)
        mine = [value for target, value in pairs if isinstance(target, ast.Name) and target.id == node.id]
        return [word for value in mine for word in first_words(value, scope, seen | {node.id})]
    return []  # computed elsewhere: `conftest` checks every error that a test raises


def fixes() -> list[tuple[str, str]]:
    """Return (place, first word) of each fix in the source."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text())):
            if not isinstance(scope, ast.FunctionDef):
                continue
            for call in ast.walk(scope):
                name = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id
                if name in ("UserError", "Conflict"):
                    assert isinstance(call, ast.Call)
                    given = [keyword.value for keyword in call.keywords if keyword.arg == "fix"]
                    given += call.args[2:3] if name == "Conflict" else []
                    place = f"{path.relative_to(SOURCE)}:{call.lineno}"
                    found += [(place, word) for value in given for word in first_words(value, scope)]
    return found


def test_every_fix_begins_with_a_verb() -> None:
    found = fixes()
    assert len(found) > 300
    assert sorted({(place, word) for place, word in found if word not in VERBS}) == []
