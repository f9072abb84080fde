"""How mistakes are told."""

from __future__ import annotations

import pytest

from lilliput.errors import UserError, UserErrors, nearest


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("what"), "what"),
        (UserError("what", "where"), "what\n  at  where"),
        (UserError("what", fix="do"), "what\n  try do"),
        (UserError("what", "where", "do"), "what\n  at  where\n  try do"),
    ],
)
def test_one_mistake_costs_at_most_three_lines(error: UserError, told: str) -> None:
    assert str(error) == told


def test_several_mistakes_cost_a_line_each() -> None:
    errors = UserErrors([UserError("a", "here", "b"), UserError("c"), UserError("d", "there"), UserError("e", fix="f")])
    assert str(errors).splitlines() == ["a  (here): b", "c", "d  (there)", "e: f"]


def test_several_that_are_one_are_told_as_one() -> None:
    assert str(UserErrors([UserError("what", "where", "do")])) == str(UserError("what", "where", "do"))


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
