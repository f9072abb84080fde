"""The history of a run: every value of the table and of history.csv equals the log."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from helpers.small_runs import copy_of_trained, lilliput, small_config, write_text
from lilliput.reports.run_history import SHOWN, history_csv, history_table, run_history
from lilliput.reports.run_plots import draw_run
from lilliput.settings.loading import replace
from lilliput.storage.run_folders import RunFolder
from lilliput.training.session import open_session


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("history")
    write_text(folder, "test.txt")
    changes = {
        "evaluate.at": (0, 1),
        "evaluate.every": 2,
        "evaluate.train_rows": 2,
        "evaluate.tests": True,
        "train.steps": 4,
    }
    config = replace(small_config(folder), changes | {"data.tests": (f"own={folder / 'test.txt'}",)})
    with open_session(config) as session:
        list(session.events([]))
    return session.run


def test_every_value_is_that_of_the_log(run: RunFolder) -> None:
    events = run.metrics()
    rows = run_history(events)
    evaluations = [event for event in events if event["event"] == "evaluation" and not event["whole"]]
    batches = {event["step"]: event["loss"] for event in events if event["event"] == "step"}
    assert [row["step"] for row in rows] == [0, 1, 2, 4]
    for row, event in zip(rows, evaluations, strict=True):
        assert row["batch_loss"] == batches.get(event["step"])
        assert row["train.perplexity"] == pytest.approx(math.exp(event["training"]["loss"]))
        assert (row["validation.loss"], row["own.loss"]) == (event["loss"], event["tests"]["own"]["loss"])
        assert row["seconds"] == event["seconds"] and row["epoch"] == event["epoch"]
    assert sum(row["seconds_since"] or 0.0 for row in rows) == pytest.approx(rows[-1]["seconds"])
    assert not any(key.endswith("accuracy") for key in rows[0])


def test_the_csv_has_full_precision(run: RunFolder) -> None:
    rows = run_history(run.metrics())
    read = list(csv.DictReader(history_csv(rows).decode().splitlines()))
    assert [{key: float(value) if value else None for key, value in row.items()} for row in read] == rows


def test_the_table_shows_the_values_and_shortens_a_long_history(run: RunFolder) -> None:
    rows = run_history(run.metrics())
    table = history_table(rows)
    assert [row[0] for row in table.rows] == ["0", "1", "2", "4"]
    assert "own perplexity" in table.columns and "own loss" not in table.columns
    at = list(table.columns).index("validation loss")
    assert table.rows[-1][at] == f"{rows[-1]['validation.loss']:.4f}"
    long = [row | {"step": number} for number in range(5 * SHOWN + 1) for row in rows[:1]]
    shown = history_table(long)
    assert len(shown.rows) <= SHOWN + 1 and shown.rows[-1][0] == f"{5 * SHOWN}" and shown.note


def test_plots_and_files_of_the_report(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = {picture.name: picture for picture in draw_run(run.metrics())}
    rows = run_history(run.metrics())
    assert f"own from {rows[0]['own.perplexity']:.4g} to {rows[-1]['own.perplexity']:.4g}" in pictures["perplexity"].alt
    assert "epochs" in pictures["perplexity"].svg
    assert lilliput("report", str(run.folder)).code == 0
    assert (run.folder / "history.csv").read_bytes() == history_csv(rows)
    assert lilliput("report", str(run.folder), "--out", str(tmp_path / "a.html")).code == 0
    assert (tmp_path / "a-history.csv").is_file()


def test_a_log_without_the_newer_fields(tmp_path: Path) -> None:
    """Runs of earlier versions have no epoch, seconds or batch loss in their evaluations."""
    folder = copy_of_trained(tmp_path)
    events = RunFolder(folder / "runs" / "mine").metrics()
    old = [{key: value for key, value in event.items() if key not in NEWER} for event in events]
    rows = run_history(old)
    assert rows and list(rows[0])[:2] == ["step", "validation.loss"]
    assert history_table(rows).columns[0] == "step"


NEWER = ("epoch", "seconds", "batch_loss", "training", "tests")
