"""The history of a run: one row per evaluation, as a table and as history.csv.

Owns: the columns and their values, all from metrics.jsonl. Does not own: the log (`training.events`), plots (`run_plots`), or
the other sections of a report (`run_report`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from lilliput.evaluation.metric_format import format_perplexity
from lilliput.reports.document import Table

HISTORY = "history.csv"  # in the folder of the report
METRICS = ("loss", "perplexity", "accuracy")
SHOWN = 40  # rows of the table in a report; history.csv has all

Row = dict[str, float | None]


def run_history(events: Sequence[dict[str, Any]]) -> list[Row]:
    """Return one row per evaluation during training. Keys: step, epoch, seconds (training time), seconds_since (the row
    before), batch_loss, and loss, perplexity and accuracy of train, validation and every test set, as `validation.loss`.

    A key whose value is None in every row is left out.
    """
    rows: list[Row] = []
    before = 0.0
    for event in events:
        if event["event"] != "evaluation" or event["whole"]:
            continue
        seconds = event.get("seconds")
        row: Row = {"step": event["step"], "epoch": event.get("epoch"), "seconds": seconds}
        row |= {"seconds_since": None if seconds is None else seconds - before, "batch_loss": event.get("batch_loss")}
        before = seconds or before
        splits = {"train": event.get("training") or {}, "validation": event, **event.get("tests", {})}
        row |= {f"{name}.{metric}": found.get(metric) for name, found in splits.items() for metric in METRICS}
        rows.append(row)
    keys = dict.fromkeys(key for row in rows for key in row)
    known = [key for key in keys if any(row.get(key) is not None for row in rows)]
    return [{key: row.get(key) for key in known} for row in rows]


def history_csv(rows: Sequence[Row]) -> bytes:
    """Return the rows as CSV with full precision; an unknown value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def history_table(rows: Sequence[Row]) -> Table:
    """Return the table of a report: every n-th row of a long history and the last; of a test set without its loss if it has
    a perplexity or an accuracy."""
    step = max(1, -(-len(rows) // SHOWN))
    shown = [row for number, row in enumerate(rows) if number % step == 0 or number == len(rows) - 1]
    note = "Validation: the fixed validation sample, not the whole split." if has_validation(rows) else ""
    if step > 1:
        note = f"{note} Rows: every {step}th of {len(rows)} evaluations, and the last. {HISTORY} has all.".strip()
    keys = [
        key
        for key in rows[0]
        if not is_test_loss(key) or not {f"{key[:-5]}.perplexity", f"{key[:-5]}.accuracy"} & {*rows[0]}
    ]
    cells = [[format_cell(key, row[key]) for key in keys] for row in shown]
    return Table([heading(key) for key in keys], cells, caption="Evaluations during training", note=note)


def has_validation(rows: Sequence[Row]) -> bool:
    return any(key.startswith("validation.") for key in rows[0])


def is_test_loss(key: str) -> bool:
    split, _, metric = key.rpartition(".")
    return metric == "loss" and split not in ("train", "validation")


def heading(key: str) -> str:
    split, _, metric = key.rpartition(".")
    plain = {
        "seconds": "time, s",
        "seconds_since": "since previous evaluation, s",
        "batch_loss": "loss of the last batch",
    }
    return f"{split} {metric}" if split else plain.get(key, key)


def format_cell(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key == "step":
        return f"{value:,.0f}"
    if key in ("epoch", "seconds", "seconds_since"):
        return f"{value:,.2f}"
    metric = key.rpartition(".")[2]
    if metric == "perplexity":
        return format_perplexity(value)
    return f"{value:.1%}" if metric == "accuracy" else f"{value:.4f}"
