"""Files of reproductions: all errors of keys and types at once, with lines and nearest names."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.small_reproductions import write_reproduction
from helpers.user_errors import refused
from lilliput.errors import UserErrors
from lilliput.studies.reproduction_files import TableItem, read_reproduction, shipped_reproductions


def test_content_of_a_file(tmp_path: Path) -> None:
    found = read_reproduction(write_reproduction(tmp_path))
    assert [run.name for run in found.runs] == ["base"]
    assert found.runs[0].quick.budget == {"steps": 3}
    assert len({item.kind for item in found.items}) == 12
    table = found.items[1]
    assert isinstance(table, TableItem)
    assert table.rows[1].values == (5.5, 200.0, "")
    assert (table.rows[1].progress, table.columns[0].digits, table.columns[0].points) == (0.5, 4, False)


def test_missing_file() -> None:
    error = refused(lambda: read_reproduction("speech"))
    assert error.code == "reproduction.missing" and "speeches" in str(error)


@pytest.mark.parametrize(
    ("old", "new", "setting", "fact"),
    [
        ('report = "S9"', 'report = "S9"\nstudys = []', "studys", "use studies"),
        ('title = "A small report"\n', "", "title", "add title"),
        ('kind = "curves"', 'kind = "curve"', "items.5.kind", "use curves"),
        ('first = "step"', 'frist = "step"', "items.1.table.frist", "use first"),
        ("progress = 0.5", "progress = 1.5", "items.1.table.rows.1.progress", "1.5"),
        ('metric = "bleu.4"', 'metrik = "bleu.4"', "items.2.table.columns.0.metrik", "use metric"),
        ("plots = [1]", "plots = [0]", "items.12.plots.plots.0", "0"),
        ('name = "base"', 'name = "../base"', "runs.0.name", "base"),
        ("budget = { steps = 8 }", "budget = { stepps = 8 }", "runs.0.budget.stepps", "stepps"),
        ('reason = "Too low."', 'raeson = "Too low."', "doubts.0.raeson", "use reason"),
    ],
)
def test_errors_of_keys_and_types(tmp_path: Path, old: str, new: str, setting: str, fact: str) -> None:
    path = write_reproduction(tmp_path)
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(UserErrors) as found:
        read_reproduction(path)
    error = next(one for one in found.value.errors if one.setting == setting)
    assert error.code == "reproduction.file"
    assert fact in str(error)


def test_all_errors_at_once_with_their_lines(tmp_path: Path) -> None:
    path = write_reproduction(tmp_path)
    text = path.read_text("utf-8").replace('report = "S9"', 'reports = "S9"').replace('title = "Sizes"', "title = 5")
    path.write_text(text, "utf-8")
    with pytest.raises(UserErrors) as found:
        read_reproduction(path)
    by_setting = {error.setting: error for error in found.value.errors}
    assert by_setting.keys() == {"report", "reports", "items.3.table.title"}
    headers = [number for number, line in enumerate(text.splitlines(), start=1) if line == "[[items]]"]
    assert by_setting["items.3.table.title"].where == f"mine.toml, line {headers[3]}"


def test_names_of_shipped_files() -> None:
    assert list(shipped_reproductions()) == ["course", "fasttext", "gpt2", "speeches", "words"]
