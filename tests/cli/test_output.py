"""Tests of line wrapping."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from lilliput.cli.output import LineWrapper


@given(some.text("ab \n.", max_size=60), some.integers(1, 7), some.integers(4, 12))
def test_lines_break_between_words_and_nothing_is_lost(text: str, size: int, width: int) -> None:
    wrap = LineWrapper(width)
    result = "".join(wrap.push(text[start : start + size]) for start in range(0, len(text), size)) + wrap.flush()
    assert result.split() == text.split()
    assert all(len(line) <= width or " " not in line.strip() for line in result.split("\n"))
    whole = LineWrapper(width)
    assert result == whole.push(text) + whole.flush(), "the pieces do not matter"
    assert LineWrapper(None).push(text) == text


def test_wide_characters_take_two_columns() -> None:
    wrap = LineWrapper(8)
    assert wrap.push("日本 日本 ab ") + wrap.flush() == "日本\n日本 ab"
