"""The summary of techniques: every entry follows from a paired comparison of two cells."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from helpers.study_results import make_result, make_study
from helpers.user_errors import refused
from lilliput.reports.document import as_entry
from lilliput.reports.markdown import table_markdown
from lilliput.studies.grid import Study, load_study
from lilliput.studies.study_files import Technique, shipped_studies
from lilliput.studies.study_results import Row, table
from lilliput.studies.technique_summary import NOT_MEASURED, NOT_RUN, read_table, technique_table

SHOWN = ("validation.loss", "train.tokens_per_second", "train.peak_memory_bytes")
VALUES = {
    "plain": {"validation.loss": (2.0, 2.1, 1.9), "train.tokens_per_second": (100.0, 110.0, 90.0)},
    "new": {"validation.loss": (2.0, 2.1, 1.9), "train.tokens_per_second": (364.0, 390.0, 340.0)},
    "noisy": {"validation.loss": (2.2, 1.9, 2.0), "train.tokens_per_second": (51.0, 54.0, 45.0)},
}


def study_of(label: str, memory: str | None = "train.peak_memory_bytes") -> Study:
    study = make_study({"how": {name: {"model.heads": at + 1} for at, name in enumerate(VALUES)}}, show=SHOWN)
    technique = Technique(
        name="A technique",
        with_it={"how": label},
        without={"how": "plain"},
        use="when it helps",
        quality="validation.loss",
        speed="train.tokens_per_second",
        memory=memory,
    )
    return dataclasses.replace(study, technique=technique)


def rows_of(study: Study) -> list[Row]:
    return make_result(study, lambda cell, seed: {n: v[seed - 1] for n, v in VALUES[cell["how"]].items()}).rows


def entries(study: Study, rows: list[Row] | None) -> list[str]:
    (line,) = technique_table([study], {} if rows is None else {study.name: rows}).rows
    return [as_entry(entry).text for entry in line]


def test_entries_follow_from_the_comparison() -> None:
    study = study_of("new")
    assert entries(study, rows_of(study)) == [
        "A technique",
        "equal",
        "3.65x, better",
        NOT_MEASURED,
        "when it helps",
        "made",
    ]
    study = study_of("noisy", memory=None)
    assert entries(study, rows_of(study))[1:4] == ["no significant difference", "−50%, worse", NOT_MEASURED]
    assert entries(study, None)[1:4] == [NOT_RUN, NOT_RUN, NOT_MEASURED]


def test_remarks_have_the_interval_of_the_difference() -> None:
    study = study_of("new")
    (line,) = technique_table([study], {study.name: rows_of(study)}).rows
    differences = np.array([264.0, 280.0, 250.0])
    half = 4.302652729911275 * differences.std(ddof=1) / np.sqrt(3)  # Student's t of 2 degrees of freedom
    ends = f"+{differences.mean() - half:.0f} to +{differences.mean() + half:.0f}"
    assert as_entry(line[2]).remark == f"training speed, tokens/s: 95% CI {ends}"
    assert as_entry(line[5]).remark == "new against plain"


def test_one_seed_is_not_compared() -> None:
    study = study_of("new")
    rows = [row for row in rows_of(study) if row.seed == 1]
    assert entries(study, rows)[1:3] == ["equal, one seed", "3.64x, one seed"]


def test_phrases_are_left_aligned() -> None:
    study = study_of("new")
    rule = table_markdown(technique_table([study], {})).splitlines()[1]
    assert rule == "| --- | --- | --- | --- | --- | --- |"


def test_study_without_a_technique_has_no_row() -> None:
    assert technique_table([dataclasses.replace(study_of("new"), technique=None)], {}).rows == []


def test_table_of_a_study_is_read_back(tmp_path: Path) -> None:
    study = study_of("new")
    result = make_result(study, lambda cell, seed: {n: v[seed - 1] for n, v in VALUES[cell["how"]].items()})
    path = tmp_path / "table.csv"
    path.write_text(table(result), encoding="utf-8")
    assert read_table(path, study) == result.rows
    path.write_text("other,seed\n1,2\n", encoding="utf-8")
    assert refused(lambda: read_table(path, study)).code == "study.table"


@pytest.mark.parametrize("name", shipped_studies())
def test_techniques_of_shipped_studies_name_their_cells(name: str) -> None:
    study = load_study(name)
    if study.technique is not None:
        labels = {axis.name: {*axis.values} for axis in study.axes}
        for cell in (study.technique.with_it, study.technique.without):
            assert cell.keys() == labels.keys() and all(label in labels[axis] for axis, label in cell.items())


def test_page_of_the_docs_is_current() -> None:
    source = Path(__file__).parents[2] / "docs" / "make_techniques.py"
    spec = importlib.util.spec_from_file_location("make_techniques", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.write_page()
