"""Our values: equal to those recomputed from logs, tables and weights."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import chdir
from typing import Any

import pytest

from helpers.small_reproductions import STEPS, reproduced
from lilliput.decoding.writer import load
from lilliput.storage.run_folders import METRICS
from lilliput.studies.reproduction_files import Source
from lilliput.studies.reproduction_plan import Form, Plan, load_plan
from lilliput.studies.reproduction_report import produce
from lilliput.studies.reproduction_values import find_value, history_value, merge_sources
from lilliput.studies.study_results import TABLE


@pytest.fixture
def plan() -> Iterator[Plan]:
    with chdir(reproduced()):
        yield load_plan("mine.toml")


def test_values_equal_those_of_logs_tables_and_weights(plan: Plan) -> None:
    """Every number of the document is recomputed from files, without the code of reproductions."""
    found = {
        (one.item.title, cell.row.name, cell.column.name): cell.ours.value
        for one in produce(plan).items
        for row in one.rows
        for cell in row
    }
    base = plan.folder / "base"
    events = [json.loads(line) for line in (base / "seed1" / METRICS).read_text("utf-8").splitlines()]
    (third,) = (event for event in events if event["event"] == "evaluation" and event["step"] == 3)
    lines = [json.loads(line) for line in (base / METRICS).read_text("utf-8").splitlines()]
    greedy, sampling = (line["figures"] for line in lines)
    with (reproduced() / "runs" / "small" / TABLE).open(encoding="utf-8", newline="") as file:
        full, window = (float(row["validation.loss"]) for row in csv.DictReader(file))
    model = load(base / "seed1").model
    blocks = sum(weights.numel() for name, weights in model.named_parameters() if name.startswith("blocks."))
    expected: dict[tuple[str, str, str], Any] = {
        ("History", "3", "loss"): third["loss"],
        ("History", "3", "perplexity"): third["perplexity"],
        ("History", "3", "batch"): third["batch_loss"],
        ("History", "half", "loss"): third["loss"],  # the last evaluation up to step 4
        ("History", "half", "perplexity"): third["perplexity"],
        ("History", "half", "batch"): None,
        **{("History", "500", name): None for name in ("loss", "perplexity", "batch")},
        ("Strategies", "greedy", "BLEU"): greedy["bleu.4"] * 0.01,
        ("Strategies", "sampling", "BLEU"): sampling["bleu.4"] * 0.01,
        ("Strategies", "greedy", "of greedy"): 1.0,
        ("Strategies", "sampling", "of greedy"): sampling["writing.tokens"] / greedy["writing.tokens"],
        ("Sizes", "total", "parameters"): sum(weights.numel() for weights in model.parameters()),
        ("Sizes", "blocks", "parameters"): blocks,
        ("Windows", "full", "loss"): full,
        ("Windows", "window", "loss"): window,
    }
    assert found == expected
    assert STEPS // 2 == 4 and blocks > 0


def test_differences(plan: Plan) -> None:
    cells = {
        (one.item.title, cell.row.name, cell.column.name): cell
        for one in produce(plan).items
        for row in one.rows
        for cell in row
    }
    total = cells["Sizes", "total", "parameters"]
    assert total.ours.value is not None and total.difference == total.ours.value / 1000 - 1
    points = cells["Windows", "window", "loss"]
    assert points.ours.value is not None and points.difference == points.ours.value - 5.25
    for key in (("Strategies", "sampling", "of greedy"), ("History", "500", "loss"), ("History", "half", "batch")):
        assert cells[key].difference is None
    assert cells["History", "500", "loss"].ours.reason == f"ended at step {STEPS}"


def test_parts_that_were_not_run_have_no_values() -> None:
    with chdir(reproduced()):
        plan = load_plan("mine.toml", "elsewhere", Form(quick=True))
        found = find_value(plan, Source(run="base", metric="bleu.4"))
    assert (found.value, found.reason) == (None, "not run yet")


def test_later_sources_replace_earlier_ones() -> None:
    table, column = Source(run="a", metric="train.loss", step=3), Source(study="b")
    assert merge_sources(table, column) == Source(study="b", metric="train.loss", step=3)
    assert merge_sources(table, Source(progress=0.5, scale=2.0)) == Source(
        run="a", metric="train.loss", progress=0.5, scale=2.0
    )
    assert merge_sources(column, Source(), table) == table


EVENTS = [
    {"event": "evaluation", "step": step, "whole": whole, "epoch": step / 100, "loss": loss, "perplexity": None}
    for step, whole, loss in ((0, False, 9.0), (99, False, 5.0), (200, False, 4.0), (300, False, 3.0), (300, True, 3.5))
]


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        (Source(step=200), 4.0, ""),
        (Source(step=0), 9.0, ""),
        (Source(step=250), None, "no evaluation at step 250"),
        (Source(step=400), None, "ended at step 300"),
        (Source(epoch=1), 5.0, ""),
        (Source(epoch=2), 4.0, ""),
        (Source(epoch=2.5), None, "no evaluation at epoch 2.5"),
        (Source(epoch=4), None, "ended at epoch 3"),
        (Source(progress=0.0), 9.0, ""),
        (Source(progress=0.32), 9.0, ""),
        (Source(progress=0.5), 5.0, ""),
        (Source(progress=1.0), 3.0, ""),
    ],
)
def test_value_of_a_history(source: Source, value: float | None, reason: str) -> None:
    found = history_value(EVENTS, source, "validation.loss")
    assert (found.value, found.reason) == (value, reason)
    assert history_value(EVENTS, source, "test.loss").value is None
    assert history_value([], source, "validation.loss").value is None
