"""Parsing JSON of unknown origin: the limit on nesting is the same whatever the recursion limit and the depth of the stack."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lilliput.errors import UserError
from lilliput.settings.recipes import read_toml
from lilliput.storage.atomic_files import parse_json, parse_object

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(alphabet='[]{}"\\,:a\n\u2028é', max_size=8),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text('[]{}"\\', max_size=3), inner, max_size=3)
    ),
)


def nested(levels: int, opening: str = "[", closing: str = "]", inner: str = "1") -> str:
    return opening * levels + inner + closing * levels


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def is_taken(text: str, deepest: int) -> bool:
    try:
        parse_json(text, deepest)
    except ValueError as error:
        assert str(error) == f"nested deeper than {deepest} levels"
        return False
    return True


def in_frames(frames: int, call: Callable[[], Any]) -> Any:
    return in_frames(frames - 1, call) if frames else call()


@pytest.fixture(params=[250, 1000, 100_000])
def recursion_limit(request: pytest.FixtureRequest) -> Iterator[int]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield request.param
    sys.setrecursionlimit(before)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a": ', "}"), ('[{"\\"]": ', "}]")])
def test_the_limit_does_not_depend_on_the_recursion_limit(recursion_limit: int, opening: str, closing: str) -> None:
    each = opening.count("[") + opening.count("{")
    assert parse_json(nested(99 // each, opening, closing)) is not None
    assert parse_json(nested(100 // each, opening, closing)) is not None
    for levels in (100 // each + 1, 200, 5000, 100_000):
        with pytest.raises(ValueError, match=r"^nested deeper than 100 levels$"):
            parse_json(nested(levels, opening, closing).encode())


@pytest.mark.parametrize("frames", [0, 500])
def test_the_limit_does_not_depend_on_the_depth_of_the_stack(frames: int) -> None:
    taken = [in_frames(frames, lambda levels=levels: is_taken(nested(levels), 100)) for levels in (99, 100, 101, 5000)]
    assert taken == [True, True, False, False]


@given(JSON, some.integers(0, 4), some.booleans())
def test_depth_is_that_of_the_value(value: Any, deepest: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert is_taken(text, deepest) == (depth_of(value) <= deepest)
    assert parse_json(text) == value


@pytest.mark.parametrize("inner", ["[" * 500, "]" * 500, '\\"' + "[" * 500, "\\\\", '\\\\\\"' + "{" * 500])
def test_brackets_in_strings_do_not_count(inner: str) -> None:
    assert len(parse_json(f'["{inner}", "{inner}", {nested(99)}]')) == 3
    with pytest.raises(ValueError, match=r"^nested deeper"):
        parse_json(f'["{inner}", {nested(100)}]')


@pytest.mark.parametrize("text", ["", "]" * 500 + "[" * 550, '["' + "[" * 500, '["\\', "[" * 90 + '"', "\ufeff{}"])
def test_what_is_not_json_is_a_value_error_of_the_parser(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


def test_other_mistakes_are_value_errors() -> None:
    with pytest.raises(UnicodeDecodeError):
        parse_json(b'"\xff"')
    with pytest.raises(ValueError, match=r"^a number has too many digits$"):
        parse_json("1" * 5000)
    with pytest.raises(ValueError, match=r"^not a JSON object$"):
        parse_object(b"[]")
    with pytest.raises(ValueError, match=r"^nested deeper than 100 levels$"):
        parse_object(nested(100, '{"a":', "}", "[]").encode())


def test_measuring_depth_is_linear() -> None:
    """Ten million brackets, quotes or backslashes take a second; a quadratic scan would take hours."""
    for text in ("[" * 10**7, "[]" * 10**7, '["' * 10**7, "[" * 200 + '"' + "\\" * 10**7, "[" * 200 + '"\\"' * 10**7):
        began = time.process_time()
        with pytest.raises(ValueError):
            parse_json(text)
        assert time.process_time() - began < 60


TOML = (
    "a = %s",
    "a = {b = %s}",
    '"[[[" = """\n\\"[[" """\na = [\n%s]',
    "# ' [[[\nb = '[[\"'\na = %s",
    "b = '''\n''[[['''\na=%s",
)


@pytest.mark.parametrize("text", TOML)
def test_toml_has_the_same_limit(tmp_path: Any, text: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text % nested(98, inner="'" + "[" * 500 + "'"), "utf-8")
    assert "a" in read_toml(path, "recipe")[1]
    path.write_text(text % nested(5000), "utf-8")
    with pytest.raises(UserError, match="nested deeper than 100 levels"):
        read_toml(path, "recipe")
