"""Tables as text and HTML: the same values, with every text escaped."""

from __future__ import annotations

import html
from html.parser import HTMLParser

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lilliput.api.rendering import as_html, as_text, format_cell, framed, rows_table

EVIL = '<script>alert(1)</script>&"'


class Cells(HTMLParser):
    """The tags of a page, and the text of its cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("td", "th", "p"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


def sample_table() -> Table:
    table = Table("name", box=None)
    table.add_column("value", justify="right")
    table.add_row(escape(EVIL), "1.5")
    table.add_row("[bold]strong[/]", "2.5", style="bold")
    return table


def test_html_has_the_cells_and_escapes_them() -> None:
    found = Cells(as_html([Group(sample_table(), Text(EVIL)), "[bold]end[/]"]))
    assert found.texts == ["name", "value", EVIL, "1.5", "strong", "2.5", EVIL, "end"]
    assert "script" not in found.tags and found.tags.count("strong") == 2


def test_text_has_the_same_cells() -> None:
    lines = as_text([sample_table(), Text(EVIL)]).splitlines()
    assert [line.split() for line in lines] == [["name", "value"], [EVIL, "1.5"], ["strong", "2.5"], [EVIL]]


def test_rows_with_different_keys() -> None:
    table = rows_table([{"a": "x", "b": 1}, {"a": EVIL, "c": 0.5}])
    found = Cells(as_html([table]))
    assert found.texts == ["a", "b", "c", "x", "1", "", EVIL, "", "0.5000"]
    assert [column.justify for column in table.columns] == ["left", "right", "right"]
    assert [format_cell(value) for value in (1234567, 1e9, True, None)] == ["1,234,567", "1.000e+09", "True", ""]


def test_a_frame_holds_the_whole_page() -> None:
    page = f'<!DOCTYPE html><p title="a">{EVIL}</p>'
    frame = framed(page, 300, scripts=False)
    (inside,) = (value for name, value in attributes(frame) if name == "srcdoc")
    assert inside == page and html.escape(page) in frame
    assert ("sandbox", "") in attributes(frame)
    assert ("sandbox", "allow-scripts") in attributes(framed(page, 300, scripts=True))


def attributes(frame: str) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []

    class Frame(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(attrs)

    Frame().feed(frame)
    return found
