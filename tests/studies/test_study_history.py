"""History tables equal means and standard deviations recomputed from the logs; every cell's text of one prompt is shown."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_runs import small_config, train_small, write_text
from helpers.study_results import make_result, make_study
from lilliput.evaluation.metric_format import format_perplexity
from lilliput.reports.document import Table
from lilliput.settings.loading import replace
from lilliput.storage.run_folders import RunFolder
from lilliput.studies.study_history import example_tables, history_tables
from lilliput.studies.study_report import describe_study
from lilliput.studies.study_results import StudyResult

SEEDS = (1, 2, 3)
COLUMNS = ["step", "epoch", "loss of the last batch", "train perplexity", "validation perplexity", "own perplexity"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """Two cells of three seeds; the second cell uses the runs of the first, as in a study of decoding."""
    folder = tmp_path_factory.mktemp("study")
    write_text(folder, "test.txt")
    changes = {"evaluate.at": (1,), "evaluate.every": 4, "evaluate.train_rows": 2, "evaluate.tests": True}
    changes |= {"data.tests": (f"own={folder / 'test.txt'}",)}
    for seed in SEEDS:
        train_small(replace(small_config(folder, f"a-seed{seed}"), changes | {"seed": seed}))
    study = make_study({"how": {"a": {}, "b": {}}}, SEEDS)
    made = make_result(dataclasses.replace(study, history=True), lambda cell, seed: {}, folder / "runs")
    rows = [dataclasses.replace(row, run=f"a-seed{row.seed}") for row in made.rows]
    return dataclasses.replace(made, rows=rows)


def evaluations(result: StudyResult, seed: int) -> dict[int, dict[str, Any]]:
    lines = (result.folder / f"a-seed{seed}" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return {event["step"]: event for event in events if event["event"] == "evaluation" and not event["whole"]}


def test_history_equals_the_logs(result: StudyResult) -> None:
    (table,) = history_tables(result)
    assert table.caption == "Evaluations during training: a"
    assert table.columns == COLUMNS
    logs = [evaluations(result, seed) for seed in SEEDS]
    assert [row[0] for row in table.rows] == ["1", "4", "8"]
    for row in table.rows:
        found = [log[int(str(row[0]))] for log in logs]
        assert row[1] == f"{found[0]['epoch']:.2f}"
        losses = np.array([event["batch_loss"] for event in found])
        assert row[2] == f"{losses.mean():.4f} ± {losses.std(ddof=1):.4f}"
        for text, splits in zip(
            row[3:],
            ([event["training"] for event in found], found, [event["tests"]["own"] for event in found]),
            strict=True,
        ):
            values = np.array([np.exp(split["loss"]) for split in splits])
            assert text == f"{format_perplexity(values.mean())} ± {format_perplexity(values.std(ddof=1))}"


def test_one_seed_has_no_deviation(result: StudyResult) -> None:
    (table,) = history_tables(dataclasses.replace(result, rows=[row for row in result.rows if row.seed == 2]))
    assert table.note == ""
    log = evaluations(result, 2)
    assert [row[2] for row in table.rows] == [f"{log[int(str(row[0]))]['batch_loss']:.4f}" for row in table.rows]


def test_only_steps_that_all_seeds_have(result: StudyResult, tmp_path: Path) -> None:
    shutil.copytree(result.folder, tmp_path / "runs")
    shorter = RunFolder(tmp_path / "runs" / "a-seed3")
    shorter.metrics_path.write_text("".join(json.dumps(one) + "\n" for one in shorter.metrics() if one["step"] < 5))
    (table,) = history_tables(dataclasses.replace(result, folder=tmp_path / "runs"))
    assert [row[0] for row in table.rows] == ["1", "4"]
    shorter.metrics_path.write_text("")
    assert history_tables(dataclasses.replace(result, folder=tmp_path / "runs")) == []


def test_loss_is_shown_if_a_split_has_nothing_else(tmp_path: Path) -> None:
    events = [{"event": "evaluation", "step": step, "whole": False, "loss": 2.0 / step} for step in (1, 2)]
    study = dataclasses.replace(make_study({"how": {"a": {}}}, (1,)), history=True)
    made = make_result(study, lambda cell, seed: {}, tmp_path)
    (tmp_path / made.rows[0].run).mkdir()
    (tmp_path / made.rows[0].run / "config.json").write_text("{}")
    (tmp_path / made.rows[0].run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (table,) = history_tables(made)
    assert (table.columns, table.rows) == (["step", "validation loss"], [["1", "2.0000"], ["2", "1.0000"]])


def test_study_without_history_has_none(result: StudyResult) -> None:
    assert history_tables(dataclasses.replace(result, study=dataclasses.replace(result.study, history=False))) == []


def test_texts_of_one_prompt(result: StudyResult) -> None:
    rows = [
        dataclasses.replace(row, texts={"example": f"Once {row.cell['how']}\n{row.seed}"})
        for row in result.rows
        if (row.cell["how"], row.seed) != ("a", 1)
    ]
    (table,) = example_tables(dataclasses.replace(result, rows=[row for row in rows if row.seed > 1]))
    assert table == Table(
        ["how", "prompt and text"],
        [["a", "Once a\n2"], ["b", "Once b\n2"]],
        note="Every cell continues the same prompt. Seed 2.",
        texts=("prompt and text",),
    )
    (table,) = example_tables(dataclasses.replace(result, rows=rows))
    assert [list(row) for row in table.rows] == [["b", "Once b\n1"]], "the first seed that has texts"
    assert example_tables(result) == []


def test_sections_of_the_report(result: StudyResult) -> None:
    with_texts = [dataclasses.replace(row, texts={"example": "Once"}) for row in result.rows]
    titles = [section.title for section in describe_study(dataclasses.replace(result, rows=with_texts)).sections]
    assert titles.index("One prompt, every cell") < titles.index("History")
