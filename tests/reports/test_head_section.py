"""Heads in the report of a run: patterns and costs, the file in the run's folder, missing data, and bounded work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import copy_of_trained, small_config, train_small
from lilliput.data.storybook.annotations import annotated_stories
from lilliput.decoding.writer import load
from lilliput.evaluation.evaluate import open_evaluation
from lilliput.interpret import ablate_documents, measure_functions
from lilliput.reports import head_section
from lilliput.reports.document import Table
from lilliput.reports.head_section import RESULT, find_heads, head_blocks, save_heads
from lilliput.reports.run_report import write_run_report
from lilliput.storage.run_folders import RunFolder


def test_costs_equal_those_of_ablation(tmp_path: Path) -> None:
    run = RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")
    found, evaluation = find_heads(run), open_evaluation(run.folder)
    assert found is not None and found["functions"] is None, "the text has no annotations"
    assert found["costs"] == ablate_documents(evaluation.writer, evaluation.file).as_dict()
    assert found["costs"]["documents"] == 1 and found["costs"]["costs"][0]["interval"] is None


def test_functions_of_a_run_with_another_text(tmp_path: Path) -> None:
    run = RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")
    save_heads(run, find_heads(run))
    found, writer = find_heads(run, functions=True), load(run.folder)
    assert found is not None and found["costs"] is not None
    expected = measure_functions(writer, annotated_stories(40), 40)
    assert found["functions"] == {"documents": 40, "heads": [one.as_dict() for one in expected]}
    save_heads(run, found)
    assert find_heads(run, functions=True) == json.loads(json.dumps(found)), "read from the file"


@pytest.fixture(scope="module")
def storybook() -> RunFolder:
    return RunFolder(judged_runs() / "runs" / "storybook")


def test_measurements_of_a_storybook_run(storybook: RunFolder) -> None:
    found = find_heads(storybook)
    assert found is not None and found["functions"]["documents"] == 40
    writer, evaluation = load(storybook.folder), open_evaluation(storybook.folder)
    expected = measure_functions(writer, annotated_stories(40), 40)
    assert found["functions"]["heads"] == json.loads(json.dumps([one.as_dict() for one in expected]))
    assert found["costs"] == json.loads(json.dumps(ablate_documents(writer, evaluation.file, documents=40).as_dict()))


def test_the_table_has_patterns_and_costs(storybook: RunFolder) -> None:
    found, writer = find_heads(storybook), load(storybook.folder)
    assert found is not None
    sample = writer.samples(["Once upon a time there was a fox."])[0]
    tables = [block for block in head_blocks(writer, sample, found) if isinstance(block, Table)]
    heads, functions = tables
    assert heads.columns[:3] == ["head", "pattern", "cost of removal"]
    for cost in found["costs"]["costs"]:
        layer, head = cost["heads"][0].split(".")
        (row,) = (row for row in heads.rows if row[0] == f"layer {layer}, head {head}")
        assert row[2].startswith(f"{cost['difference']:+.3f} (")
    assert [row[1] for row in functions.rows] == [one["pattern"] for one in found["functions"]["heads"]]
    (plain,) = (block for block in head_blocks(writer, sample, None) if isinstance(block, Table))
    assert plain.columns[:2] == ["head", "entropy"]


def test_the_file_is_written_once_and_read(tmp_path: Path, storybook: RunFolder) -> None:
    run = RunFolder(Path(shutil.copytree(storybook.folder, tmp_path / "runs" / "storybook")))
    write_run_report(run)
    written = (run.folder / RESULT).read_bytes()
    changed = json.loads(written)
    changed["costs"]["costs"][0]["difference"] = 12.5
    (run.folder / RESULT).write_text(json.dumps(changed))
    _, markdown = write_run_report(run)
    assert "+12.500" in markdown.read_text("utf-8")
    (run.folder / RESULT).write_text(json.dumps(changed | {"checkpoint": "step-000999"}))
    write_run_report(run)
    assert (run.folder / RESULT).read_bytes() == written
    save_heads(run, None)
    assert (run.folder / RESULT).read_bytes() == written


def test_missing_data_and_other_models(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path, data__source="storybook", data__documents="10", train__steps="2"))
    shutil.rmtree(tmp_path / "prepared")
    found = find_heads(run)
    assert found is not None and found["costs"] is None and found["functions"] is not None
    assert find_heads(RunFolder(judged_runs() / "runs" / "classifier")) is None
    assert find_heads(RunFolder(tmp_path / "runs" / "nobody")) is None


def test_large_work_is_reduced_or_skipped(storybook: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_section, "CAPTURED_WEIGHTS", 6 * 2 * 2 * 32**2)
    monkeypatch.setattr(head_section, "ABLATION_FLOPS", 1.0)
    found = head_section.measure_heads(storybook)
    assert found is not None and found["functions"]["documents"] == 6 and found["costs"] is None
    monkeypatch.setattr(head_section, "CAPTURED_WEIGHTS", 1.0)
    assert head_section.measure_heads(storybook) is None
