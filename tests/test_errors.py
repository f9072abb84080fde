"""The text, the code and the setting of errors."""

from __future__ import annotations

import pytest

from lilliput.errors import UserError, UserErrors, blame, nearest


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("what", code="x.y"), "what"),
        (UserError("what", "where", code="x.y"), "what\n  at: where"),
        (UserError("what", fix="do", code="x.y"), "what\n  fix: do"),
        (UserError("what", "where", "do", code="x.y"), "what\n  at: where\n  fix: do"),
    ],
)
def test_one_error_has_at_most_three_lines(error: UserError, told: str) -> None:
    assert str(error) == told


def test_several_errors_have_one_line_each() -> None:
    parts = [("a", "here", "b"), ("c", None, None), ("d", "there", None), ("e", None, "f")]
    errors = UserErrors([UserError(*part, code="x.y") for part in parts])
    assert str(errors).splitlines() == ["a  (here): b", "c", "d  (there)", "e: f"]


def test_a_list_of_one_error_equals_that_error() -> None:
    one = UserError("what", "where", "do", code="setting.value", setting="seed")
    errors = UserErrors([one])
    assert str(errors) == str(one)
    assert (errors.code, errors.setting) == ("setting.value", "seed")


def test_the_code_of_several_errors() -> None:
    errors = UserErrors([UserError("a", code="setting.value", setting="seed"), UserError("b", code="file.missing")])
    assert (errors.code, errors.setting) == ("several", None)


@pytest.mark.parametrize("setting", [None, "data.text_field"])
def test_blame_names_a_setting_where_there_is_none(setting: str | None) -> None:
    with pytest.raises(UserError) as found, blame("data.source"):
        raise UserError("what", code="data.column", setting=setting)
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
