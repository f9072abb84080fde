"""Tests of docs/exporting.md: its tables are generated, its lines are short."""

from __future__ import annotations

from pathlib import Path

from lilliput.exporting.gguf_architectures import ARCHITECTURES
from lilliput.exporting.stock_classes import STOCK_CLASSES, parts_table, shapes_table

PAGE = (Path(__file__).parents[2] / "docs" / "exporting.md").read_text("utf-8")


def test_the_tables_are_those_of_the_program() -> None:
    for formats, noun in ((STOCK_CLASSES, "class"), (ARCHITECTURES, "architecture")):
        for table in (parts_table(formats, noun), shapes_table(formats, noun)):
            assert f"\n{table}\n" in PAGE, f"copy this table to docs/exporting.md:\n{table}"


def test_lines_are_at_most_100_characters() -> None:
    assert not [line for line in PAGE.splitlines() if len(line) > 100]
