"""Samples with references in the report of a run: values, the file in the run's folder, and missing data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.evaluated_runs import judged_runs
from helpers.small_runs import copy_of_trained, small_config, train_small
from helpers.user_errors import refused
from lilliput.decoding.writer import load
from lilliput.evaluation.evaluate import evaluate, open_evaluation
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.reports.document import Paragraph, Table
from lilliput.reports.head_section import find_heads
from lilliput.reports.markdown import to_markdown
from lilliput.reports.run_report import describe_run, write_run_report
from lilliput.reports.sample_section import (
    SAMPLES,
    SampleRequest,
    find_samples,
    read_samples,
    sample_blocks,
    save_samples,
)
from lilliput.storage.run_folders import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A copy: the run's settings name the original's prepared data by an absolute path."""
    return RunFolder(copy_of_trained(tmp_path) / "runs" / "mine")


def test_the_samples_equal_those_of_evaluate(run: RunFolder) -> None:
    found, expected = find_samples(run), evaluate(run.folder, overlap=OverlapTask(), samples=True)
    assert found is not None and found["samples"] == expected["samples"] and len(found["samples"]) > 0
    assert (found["checkpoint"], found["bleu"]) == (expected["checkpoint"], expected["bleu"])
    assert not (run.folder / SAMPLES).exists(), "only `save_samples` writes"


def test_the_table_has_the_first_ten_rows(run: RunFolder) -> None:
    found = find_samples(run)
    assert found is not None
    row = found["samples"][0] | {"prompt": "a |\r\n<b>", "generated_perplexity": 7.25, "sentence_bleu": 1.5}
    found["samples"] = [row] * 12
    about, table = sample_blocks(found)
    assert isinstance(about, Paragraph) and isinstance(table, Table)
    assert len(table.rows) == 10 and table.caption.startswith("The first 10 of 12")
    assert table.rows[0][:2] == ["a | <b>", " ".join(row["generated"].split())]
    assert (table.rows[0][3], table.rows[0][5]) == ("7.25", "1.50")
    assert found["bleu"]["sentence"]["signature"] in table.note
    assert f"{found['overlap']['perplexity']:.2f}" in about.text
    assert f"{found['overlap']['reference_perplexity']:.2f}" in about.text


def test_a_request_has_its_own_set_task_and_generation(run: RunFolder) -> None:
    task = OverlapTask(prompts=3, prompt_tokens=4, tokens=6, seed=2)
    request = SampleRequest(task, "train", {"generate.temperature": 0.0})
    save_samples(run, find_samples(run))
    found = find_samples(run, request)
    settings = load(run.folder).checked(None, {"temperature": 0.0})
    expected = evaluate(run.folder, on="train", overlap=task, samples=True, settings=settings)
    assert found is not None and found["samples"] == expected["samples"] and len(found["samples"]) == 3
    save_samples(run, found)
    assert read_samples(run) is None, "the file is of another request"
    assert read_samples(run, request) == json.loads(json.dumps(found))
    about, table = sample_blocks(found, request, shown=2)
    assert isinstance(about, Paragraph) and isinstance(table, Table)
    assert "the training split" in about.text and len(table.rows) == 2


def test_a_file_without_a_request_is_of_the_usual_one(run: RunFolder) -> None:
    save_samples(run, find_samples(run))
    old = json.loads((run.folder / SAMPLES).read_text("utf-8"))
    assert old.pop("request")
    (run.folder / SAMPLES).write_text(json.dumps(old))
    assert read_samples(run) == old and read_samples(run, SampleRequest(on="train")) is None


def test_without_prepared_data_the_samples_come_from_the_file(tmp_path: Path) -> None:
    """A report does not prepare data."""
    run, _ = train_small(small_config(tmp_path))
    save_samples(run, find_samples(run))
    written = (run.folder / SAMPLES).read_bytes()
    shutil.rmtree(tmp_path / "prepared")
    assert find_samples(run) == json.loads(written)
    _, markdown = write_run_report(run)
    assert "## Samples with references" in markdown.read_text("utf-8")
    assert (run.folder / SAMPLES).read_bytes() == written
    (run.folder / SAMPLES).unlink()
    write_run_report(run)
    assert find_samples(run) is None and not (run.folder / SAMPLES).exists()
    assert "## Samples with references" not in markdown.read_text("utf-8")
    assert not (tmp_path / "prepared").exists()
    error = refused(lambda: open_evaluation(run.folder, build=False))
    assert (error.code, error.where) == ("data.not-prepared", str(tmp_path / "prepared"))


@pytest.mark.parametrize("damage", ["checkpoint", "format", "json", "list"])
def test_an_outdated_or_damaged_file_is_replaced(run: RunFolder, damage: str) -> None:
    save_samples(run, find_samples(run))
    right = json.loads((run.folder / SAMPLES).read_text("utf-8"))
    wrong = {"json": "{", "list": "[]"}.get(damage) or json.dumps(right | {damage: "other"})
    (run.folder / SAMPLES).write_text(wrong)
    assert read_samples(run) is None
    save_samples(run, find_samples(run))
    found = read_samples(run)
    assert found is not None and found["samples"] == right["samples"]


def test_a_classifier_and_a_run_without_checkpoint_have_none(run: RunFolder) -> None:
    assert find_samples(RunFolder(judged_runs() / "runs" / "classifier")) is None
    shutil.rmtree(run.checkpoints_folder)
    run.checkpoints_folder.mkdir()
    assert find_samples(run) is None


def test_the_report_contains_the_table_and_writes_the_file(run: RunFolder) -> None:
    _, markdown = write_run_report(run)
    assert read_samples(run) is not None
    text = markdown.read_text("utf-8")
    assert text == to_markdown(describe_run(run, find_samples(run), find_heads(run)), "report-figures")
    assert (
        "| prompt | generated | reference | perplexity, generated | perplexity, reference | sentence BLEU-4 |" in text
    )


def test_a_folder_that_cannot_be_written(run: RunFolder) -> None:
    (run.folder / SAMPLES).mkdir()
    _, markdown = write_run_report(run)
    assert "## Samples with references" in markdown.read_text("utf-8")
