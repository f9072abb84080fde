"""Tables of a study against NumPy; only a value significantly better than all others is bold."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from helpers.small_runs import small_config, train_small
from helpers.study_results import exact, make_result, make_study
from lilliput.reports.document import Entry, Table
from lilliput.reports.formatting import fixed
from lilliput.studies.measures import measure_training
from lilliput.studies.study_results import StudyResult
from lilliput.studies.study_tables import figure_table, other_figures_tables, overview_tables
from lilliput.studies.study_verdict import verdict

AXES = {"window": {"full": {}, "a": {"model.window": 4}, "b": {"model.window": 8}}}
TABLE = {"full": (10.0, 11.0, 12.0), "a": (5.0, 6.1, 7.0), "b": (20.0, 21.0, 22.5)}


def texts(row: Sequence[str | Entry]) -> list[str]:
    return [entry.text if isinstance(entry, Entry) else entry for entry in row]


def overview_table(result: StudyResult) -> Table:
    (table,) = overview_tables(result)
    return table


def bold(table: Table) -> list[str]:
    return [entry.text for row in table.rows for entry in row if isinstance(entry, Entry) and entry.strong]


def test_overview() -> None:
    table = overview_table(make_result(make_study(AXES), exact(TABLE)))
    assert table.columns == ["window", "seeds", "validation perplexity"]
    assert table.heads == 1
    assert [texts(row) for row in table.rows] == [
        [label, "3", f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"] for label, values in TABLE.items()
    ]
    assert bold(table) == ["6.03 ± 1.00"]


def test_nothing_is_bold_without_a_significant_best() -> None:
    result = make_result(make_study(AXES), exact(TABLE | {"b": (5.1, 6.0, 7.05)}))
    assert bold(overview_table(result)) == []
    assert "No value is bold" in overview_table(result).note
    assert bold(figure_table(result, "validation.perplexity")) == []


def test_one_seed_has_no_bold_value_and_no_deviation() -> None:
    table = overview_table(
        make_result(make_study(AXES, (1,)), exact({label: values[:1] for label, values in TABLE.items()}))
    )
    assert bold(table) == []
    assert [texts(row)[-1] for row in table.rows] == ["10.00", "5.00", "20.00"]
    assert table.note == "One seed."


def test_table_of_one_metric() -> None:
    table = figure_table(make_result(make_study(AXES), exact(TABLE)), "validation.perplexity")
    assert table.caption == "Validation perplexity (lower is better)"
    assert table.columns == [
        "window", "mean", "standard deviation", "seeds", "95% confidence interval", "difference from full"
    ]  # fmt: skip
    full, a, b = table.rows
    t = 4.302652729911275  # Student's t of 2 degrees of freedom at 97.5%
    for row, label in ((full, "full"), (a, "a"), (b, "b")):
        values = np.array(TABLE[label])
        mean, deviation = values.mean(), values.std(ddof=1)
        reach = t * deviation / np.sqrt(3)
        expected = [f"{mean:.2f}", f"{deviation:.2f}", "3", f"{mean - reach:.2f} to {mean + reach:.2f}"]
        assert texts(row)[1:5] == expected
    differences = np.array(TABLE["a"]) - np.array(TABLE["full"])
    reach = t * differences.std(ddof=1) / np.sqrt(3)
    low, high = (f"{differences.mean() + side * reach:.2f}".replace("-", "−") for side in (-1, 1))
    assert texts(full)[5] == ""
    assert a[5] == Entry("−4.97 (−45%)", remark=f"95% CI {low} to {high}: better")
    assert isinstance(b[5], Entry) and b[5].remark.endswith(": worse")
    assert bold(table) == ["6.03"]


def test_each_axis_has_its_own_differences() -> None:
    study = make_study({"size": {"small": {}, "large": {}}, "window": {"full": {}, "short": {}}, "only": {"one": {}}})
    result = make_result(study, lambda cell, seed: {"validation.perplexity": 10.0 + seed + len(cell["size"])})
    table = figure_table(result, "validation.perplexity")
    assert table.columns[:3] == ["size", "window", "only"] and table.heads == 3
    assert table.columns[-2:] == ["difference from small", "difference from full"], "none for an axis of one label"
    assert isinstance(table.rows[1][-1], Entry) and table.rows[1][-1].remark == "equal for every seed"


def test_missing_values_are_dashes() -> None:
    result = make_result(make_study(AXES), exact(TABLE))
    result.rows[:] = [
        row for row in result.rows if row.cell["window"] != "b" and (row.cell["window"], row.seed) != ("a", 3)
    ]
    assert [texts(row) for row in overview_table(result).rows][1:] == [["a", "2", "5.55 ± 0.78"], ["b", "0", "–"]]
    assert texts(figure_table(result, "validation.perplexity").rows[2]) == ["b", "–", "–", "0", "–", "–"]


def test_nothing_is_bold_with_unequal_budgets() -> None:
    axes = {"text": {"full": {}, "a": {"budget.steps": 9000}, "b": {"budget.steps": 10}}}
    result = make_result(make_study(axes), exact(TABLE))
    assert bold(overview_table(result)) == bold(figure_table(result, "validation.perplexity")) == []
    assert overview_table(result).note.endswith("because budgets differ between cells.")


def test_time_per_sample_is_not_compared_between_text_lengths() -> None:
    axes: dict[str, dict[str, dict[str, object]]] = {
        "cache": {"none": {}, "some": {"generate.engine": "numba"}},
        "tokens": {"64": {"generate.tokens": 64}, "256": {"generate.tokens": 256}},
    }
    shown = ("tokens_per_second", "seconds_per_sample")
    study = make_study(axes, show=shown)

    def values(cell: Mapping[str, str], seed: int) -> dict[str, float]:
        speed = (1000.0 if cell["cache"] == "some" else 100.0) - int(cell["tokens"]) / 10 + seed
        return {"tokens_per_second": speed, "seconds_per_sample": int(cell["tokens"]) / speed}

    result = make_result(study, values)
    assert bold(overview_table(result)) == ["996 ± 1"], "the speed, not the time per sample"
    assert figure_table(result, "tokens_per_second").columns[-2:] == ["difference from none", "difference from 64"]
    assert figure_table(result, "seconds_per_sample").columns[-2:] == [
        "95% confidence interval",
        "difference from none",
    ]
    assert bold(figure_table(result, "seconds_per_sample")) == []
    findings = dict(verdict(result))
    assert "By tokens" in findings["Generation speed:"] and "256" not in findings["Time per sample:"]
    alone = make_result(make_study(axes, show=shown[1:]), values)
    assert overview_table(alone).note.endswith("because amounts of text differ between cells.")


def test_many_metrics_transpose_the_table() -> None:
    names = ("bleu.1", "bleu.2", "bleu.3", "bleu.4", "chrf", "tokens_per_second", "seconds_per_sample")
    result = make_result(
        make_study(AXES, show=names),
        lambda cell, seed: dict.fromkeys(names, seed + len(cell["window"])),
    )
    table = overview_table(result)
    assert table.columns == ["", "full", "a", "b"]
    assert [row[0] for row in table.rows][:3] == ["seeds", "BLEU-1, 0 to 100", "BLEU-2, 0 to 100"]
    assert bold(table) == ["6.00 ± 1.00"] * 5 + ["6 ± 1"]
    assert overview_table(make_result(make_study(AXES, show=names[:6]), exact(TABLE))).columns[0] == "window"


def test_metric_missing_for_some_seeds_shows_their_number() -> None:
    result = make_result(make_study(AXES), exact(TABLE))
    del result.rows[5].figures["validation.perplexity"]
    assert [texts(row) for row in overview_table(result).rows][1] == ["a", "3", "5.55 ± 0.78 (2 seeds)"]


def test_table_of_other_metrics() -> None:
    study = make_study(AXES, show=("bleu.4",))
    result = make_result(study, lambda cell, seed: {"bleu.4": 1.0, "train.seconds": 3.0 + seed, "tokens": 2e6})
    (table,) = other_figures_tables(result)
    assert table.columns == ["", "full", "a", "b"]
    assert [texts(row) for row in table.rows] == [
        ["seeds", "3", "3", "3"],
        ["training tokens, millions", "2.00", "2.00", "2.00"],
        ["training time, s", "5.0 ± 1.0", "5.0 ± 1.0", "5.0 ± 1.0"],
    ]
    assert other_figures_tables(make_result(make_study(AXES), exact(TABLE))) == []


def test_many_metrics_of_many_cells_are_split_into_tables() -> None:
    names = ("bleu.1", "bleu.2", "bleu.3", "bleu.4", "chrf", "tokens_per_second", "seconds_per_sample")
    study = make_study({"cell": {str(n): {} for n in range(7)}}, show=names)
    tables = overview_tables(make_result(study, lambda cell, seed: dict.fromkeys(names, float(cell["cell"]))))
    assert [list(table.columns) for table in tables] == [
        ["cell", "seeds", "BLEU-1, 0 to 100", "BLEU-2, 0 to 100", "BLEU-3, 0 to 100", "BLEU-4, 0 to 100"],
        ["cell", "seeds", "chrF, 0 to 100", "generation speed, tokens/s", "time per sample, s"],
    ]
    assert [texts(row)[:3] for row in tables[0].rows] == [[str(n), "3", f"{n}.00"] for n in range(7)]
    assert [bool(table.note) for table in tables] == [False, True]


def test_batches_are_amounts_of_text() -> None:
    axes = {"cache": {"none": {}, "some": {}}, "batch": {"1": {}, "20": {"measure.batch": 20}}}
    names = ("writing.seconds", "writing.peak_memory_bytes", "tokens_per_second")
    result = make_result(make_study(axes, show=names), lambda cell, seed: dict.fromkeys(names, float(seed)))
    changes = {name: list(figure_table(result, name).columns[6:]) for name in names}
    assert changes["writing.seconds"] == changes["writing.peak_memory_bytes"] == ["difference from none"]
    assert changes["tokens_per_second"] == ["difference from none", "difference from 1"]


def test_columns_of_accumulation_and_checkpointing_equal_the_logs(tmp_path: Path) -> None:
    times = ("train.epoch_seconds", "train.micro_batch_seconds", "train.seconds")
    names = ("train.rows_per_step", *times, "updates", "validation.loss")
    study = make_study({"update": {"1 x 2": {}, "3 x 2": {}}}, seeds=(1, 2), show=names)
    runs = {}
    for accumulate, seed in itertools.product((1, 3), (1, 2)):
        changes = {"train__batch": "2", "train__accumulate": str(accumulate), "seed": str(seed)}
        runs[f"{accumulate} x 2", seed] = train_small(small_config(tmp_path, f"{accumulate}-{seed}", **changes))[0]
    result = make_result(study, lambda cell, seed: measure_training(runs[cell["update"], seed].folder, {}, seed))
    for row in overview_table(result).rows:
        logs = [runs[texts(row)[0], seed].metrics() for seed in (1, 2)]
        accumulate = int(texts(row)[0][0])
        steps = [[event for event in log if event["event"] == "step"] for log in logs]
        seconds = [of_a_run[-1]["seconds"] for of_a_run in steps]
        evaluations = [[one for one in log if one["event"] == "evaluation"] for log in logs]
        last = [[one for one in some if not one["whole"]][-1] for some in evaluations]
        expected = [
            (np.full(2, 2.0 * accumulate), 0),
            (np.array([one["seconds"] / one["epoch"] for one in last]), 1),
            (np.array(seconds) / (8 * accumulate) * 2000, 1),
            (np.array(seconds), 1),
            (np.full(2, 8.0), 0),
            (np.array([[one for one in some if one["whole"]][-1]["loss"] for some in evaluations]), 4),
        ]
        for found, (values, digits) in zip(texts(row)[2:], expected, strict=True):
            mean, _, deviation = found.partition(" ± ")
            assert mean == fixed(values.mean(), digits)
            assert not deviation or deviation == fixed(values.std(ddof=1), digits)
