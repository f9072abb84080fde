"""Phrases for the valid values of a setting."""

from __future__ import annotations

import pytest

from lilliput.errors import UserError
from lilliput.settings.loading import load_config
from lilliput.settings.requirements import any_of


def refused(name: str, value: str) -> UserError:
    with pytest.raises(UserError) as found:
        load_config("demo", {name: value})
    return found.value


@pytest.mark.parametrize(
    ("name", "value", "phrase"),
    [
        ("model.window", "0", "must be a number of at least 1, a list, or none"),
        ("generate.top_p", "2", "must be a number of at most 1 or none"),
        ("optimizer.lr", "-1", "must be a number greater than 0"),
        ("model.dropout", "1", "must be a number less than 1"),
        ("model.layers", "zero", "must be an integer"),
        ("evaluate.every", "0", "must be a number of at least 1 or 'epoch'"),
        ("data.labelled", "maybe", "must be true or false"),
        ("model.positions", "x", "must be 'sinusoidal', 'learned', 'rotary' or none"),
        ("optimizer.betas", "0.9", "must have more values"),
        ("optimizer.betas", "0.1,0.2,0.3", "must have at most 2 values"),
        ("evaluate.at", "-1", "must be a number of at least 0"),
    ],
)
def test_what_a_setting_requires(name: str, value: str, phrase: str) -> None:
    error = refused(name, value)
    assert error.setting == name and f"{phrase} (got " in str(error)


def test_joined_phrases() -> None:
    assert any_of(["a"]) == "a" and any_of(["a", "b"]) == "a or b" and any_of(["a", "b", "c"]) == "a, b or c"
    assert any_of(["a list", "b", "c"]) == "a list, b, or c"
