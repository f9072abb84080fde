"""Tables of a reproduction: three values of each cell, marks of doubts, and lines of the checklist."""

from __future__ import annotations

import pytest

from lilliput.reports.document import Bullets, Entry, Table, as_entry
from lilliput.studies.reproduction_files import Column, Doubt, Row, TableItem
from lilliput.studies.reproduction_tables import difference_text, summarise_table, table_blocks
from lilliput.studies.reproduction_values import Compared, Found

LOSS, TIME, SHARE = Column(name="loss", digits=4), Column(name="time", digits=1), Column(name="share", points=True)
FIRST, SECOND = Row(name="1", values=(2.0, 10, 50)), Row(name="2", values=(1.0, "long", ""))


def item(*columns: Column) -> TableItem:
    rows = tuple(Row(name=row.name, values=row.values[: len(columns)]) for row in (FIRST, SECOND))
    return TableItem(
        kind="table", place="Table 7", title="Results", first="epoch", columns=columns, rows=rows, note="Note."
    )


def compared(columns: tuple[Column, ...], ours: list[list[float | None]]) -> list[list[Compared]]:
    return [
        [
            Compared(row, column, None if value == "" else value, Found(mine, "" if mine is not None else "lost"))
            if value != ""
            else Compared(row, column, None, Found())
            for column, value, mine in zip(columns, row.values, mine_of_row, strict=False)
        ]
        for row, mine_of_row in zip((FIRST, SECOND), ours, strict=True)
    ]


def texts(table: Table) -> list[list[str]]:
    return [[as_entry(cell).text for cell in row] for row in table.rows]


def test_two_columns_are_side_by_side() -> None:
    columns = (LOSS, TIME)
    (table,) = table_blocks(item(*columns), compared(columns, [[2.5, 30.0], [None, 3.0]]), [])
    assert isinstance(table, Table)
    assert table.columns == ["epoch", "loss, published", "ours", "difference", "time, published", "ours", "difference"]
    assert texts(table) == [
        ["1", "2.0000", "2.5000", "+25.0%", "10.0", "30.0", "3x"],
        ["2", "1.0000", "–", "–", "long", "3.0", "–"],
    ]
    assert table.caption == "Table 7"
    assert table.note == "Note. Reasons for missing values of ours: lost."


def test_more_columns_have_three_lines_and_rows_without_our_values_one() -> None:
    columns = (LOSS, TIME, SHARE)
    ours: list[list[float | None]] = [[1.5, 10.0, 51.5], [None, None, None]]
    (table,) = table_blocks(item(*columns), compared(columns, ours), [])
    assert isinstance(table, Table)
    assert table.columns == ["epoch", "", "loss", "time", "share"]
    assert texts(table) == [
        ["1", "published", "2.0000", "10.0", "50.00"],
        ["", "ours", "1.5000", "10.0", "51.50"],
        ["", "difference", "−25.0%", "equal", "+1.50"],
        ["2", "published", "1.0000", "long", "–"],
    ]
    assert table.rows[1][2] == Entry("1.5000", strong=True)


def test_doubts_are_marked_and_listed() -> None:
    columns = (LOSS, TIME)
    doubts = list(
        enumerate(
            [
                Doubt(reason="of another table", item="Others"),
                Doubt(reason="of one value", item="Results", row="1", column="time"),
                Doubt(reason="of a column", item="Results", column="loss"),
                Doubt(reason="of a table", item="Results"),
                Doubt(reason="of the report"),
            ],
            start=1,
        )
    )
    table, listed = table_blocks(item(*columns), compared(columns, [[2.0, 10.0], [1.0, 3.0]]), doubts)
    assert isinstance(table, Table) and isinstance(listed, Bullets)
    assert [row[1] for row in texts(table)] == ["2.0000 [3]", "1.0000 [3]"]
    assert [row[4] for row in texts(table)] == ["10.0 [2]", "long"]
    assert table.caption == "Table 7 [4]"
    assert listed.items == [("[2]", "of one value"), ("[3]", "of a column"), ("[4]", "of a table")]


@pytest.mark.parametrize(
    ("published", "ours", "text"),
    [
        (4.0, 5.0, "+25.0%"),
        (4.0, 8.0, "2x"),
        (4.0, 4800.0, "1,200x"),
        (4.0, 1.0, "0.25x"),
        (4.0, 4.0, "equal"),
        (0.0, 1.0, "–"),
    ],
)
def test_relative_differences(published: float, ours: float, text: str) -> None:
    assert difference_text(Compared(FIRST, LOSS, published, Found(ours))) == text


def test_lines_of_the_checklist() -> None:
    columns = (LOSS, TIME, SHARE)
    whole: list[list[float | None]] = [[3.0, 10.0, 51.5], [1.0, 3.0, None]]
    state, text = summarise_table(compared(columns, whole))
    assert state == "produced"
    assert text == (
        "3 values: median difference 0.0%, largest +50.0% (1, loss); "
        "1 value: median difference 1.5 points, largest +1.50 (1, share)"
    )
    state, text = summarise_table(compared(columns, [[2.0, 10.0, None], [None, None, None]]))
    assert (state, text) == ("partly", "2 values: equal; 3 values of ours missing: lost")
    state, text = summarise_table(compared(columns, [[None] * 3] * 2))
    assert (state, text) == ("not produced", "5 values of ours missing: lost")
