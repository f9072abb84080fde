"""Tables are NumPy's figures by hand; strong is what is surely the best, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from helpers.study_results import exact, make_result, make_study
from lilliput.reports.document import Entry, Table
from lilliput.studies.study_tables import figure_table, other_figures_table, overview_table
from lilliput.studies.study_verdict import verdict

AXES = {"window": {"full": {}, "a": {"model.window": 4}, "b": {"model.window": 8}}}
TABLE = {"full": (10.0, 11.0, 12.0), "a": (5.0, 6.1, 7.0), "b": (20.0, 21.0, 22.5)}


def texts(row: Sequence[str | Entry]) -> list[str]:
    return [entry.text if isinstance(entry, Entry) else entry for entry in row]


def strong(table: Table) -> list[str]:
    return [entry.text for row in table.rows for entry in row if isinstance(entry, Entry) and entry.strong]


def test_all_cells_at_a_glance() -> None:
    table = overview_table(make_result(make_study(AXES), exact(TABLE)))
    assert table.columns == ["window", "n", "validation perplexity"]
    assert table.heads == 1
    assert [texts(row) for row in table.rows] == [
        [label, "3", f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"] for label, values in TABLE.items()
    ]
    assert strong(table) == ["6.03 ± 1.00"]


def test_a_tie_for_the_best_sets_nothing_strong() -> None:
    result = make_result(make_study(AXES), exact(TABLE | {"b": (5.1, 6.0, 7.05)}))
    assert strong(overview_table(result)) == []
    assert "Nothing is strong" in overview_table(result).note
    assert strong(figure_table(result, "validation.perplexity")) == []


def test_one_seed_sets_nothing_strong_and_has_no_deviation() -> None:
    table = overview_table(
        make_result(make_study(AXES, (1,)), exact({label: values[:1] for label, values in TABLE.items()}))
    )
    assert strong(table) == []
    assert [texts(row)[-1] for row in table.rows] == ["10.00", "5.00", "20.00"]
    assert table.note == "One seed."


def test_a_figure_in_full() -> None:
    table = figure_table(make_result(make_study(AXES), exact(TABLE)), "validation.perplexity")
    assert table.caption == "Validation perplexity (lower is better)"
    assert table.columns == ["window", "mean", "deviation", "n", "95% interval", "against full"]
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
    assert a[5] == Entry("−4.97 (−45%)", remark=f"{low} to {high}: better")
    assert isinstance(b[5], Entry) and b[5].remark.endswith(": worse")
    assert strong(table) == ["6.03"]


def test_each_axis_has_a_comparison_of_its_own() -> None:
    study = make_study({"size": {"small": {}, "large": {}}, "window": {"full": {}, "short": {}}, "only": {"one": {}}})
    result = make_result(study, lambda cell, seed: {"validation.perplexity": 10.0 + seed + len(cell["size"])})
    table = figure_table(result, "validation.perplexity")
    assert table.columns[:3] == ["size", "window", "only"] and table.heads == 3
    assert table.columns[-2:] == ["against small", "against full"], "an axis of one label compares nothing"
    assert isinstance(table.rows[1][-1], Entry) and table.rows[1][-1].remark == "equal with every seed"


def test_what_is_missing_is_a_dash_and_counted() -> None:
    result = make_result(make_study(AXES), exact(TABLE))
    result.rows[:] = [
        row for row in result.rows if row.cell["window"] != "b" and (row.cell["window"], row.seed) != ("a", 3)
    ]
    assert [texts(row) for row in overview_table(result).rows][1:] == [["a", "2", "5.55 ± 0.78"], ["b", "0", "–"]]
    assert texts(figure_table(result, "validation.perplexity").rows[2]) == ["b", "–", "–", "0", "–", "–"]


def test_unequal_budgets_set_nothing_strong() -> None:
    axes = {"text": {"full": {}, "a": {"budget.steps": 9000}, "b": {"budget.steps": 10}}}
    result = make_result(make_study(axes), exact(TABLE))
    assert strong(overview_table(result)) == strong(figure_table(result, "validation.perplexity")) == []
    assert overview_table(result).note.endswith("Budgets differ, so that nothing is strong.")


def test_longer_texts_take_longer_and_nobody_is_worse_for_it() -> None:
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
    assert strong(overview_table(result)) == ["996 ± 1"], "of the speed, and not of the time of a text"
    assert figure_table(result, "tokens_per_second").columns[-2:] == ["against none", "against 64"]
    assert figure_table(result, "seconds_per_sample").columns[-2:] == ["95% interval", "against none"]
    assert strong(figure_table(result, "seconds_per_sample")) == []
    told = dict(verdict(result))
    assert "By tokens" in told["Writing speed:"] and "256" not in told["Time of a text:"]
    alone = make_result(make_study(axes, show=shown[1:]), values)
    assert overview_table(alone).note.endswith("Lengths of texts differ, so that nothing is strong.")


def test_many_figures_are_rows_and_what_is_strong_stays_so() -> None:
    names = ("bleu.1", "bleu.2", "bleu.3", "bleu.4", "chrf", "tokens_per_second", "seconds_per_sample")
    result = make_result(
        make_study(AXES, show=names),
        lambda cell, seed: dict.fromkeys(names, seed + len(cell["window"])),
    )
    table = overview_table(result)
    assert table.columns == ["", "full", "a", "b"]
    assert [row[0] for row in table.rows][:3] == ["n", "BLEU-1, of 100", "BLEU-2, of 100"]
    assert strong(table) == ["6.00 ± 1.00"] * 5 + ["6 ± 1"]
    assert overview_table(make_result(make_study(AXES, show=names[:6]), exact(TABLE))).columns[0] == "window"


def test_a_figure_that_some_seeds_lack_tells_its_own_n() -> None:
    result = make_result(make_study(AXES), exact(TABLE))
    del result.rows[5].figures["validation.perplexity"]
    assert [texts(row) for row in overview_table(result).rows][1] == ["a", "3", "5.55 ± 0.78 (n = 2)"]


def test_other_figures_are_rows() -> None:
    study = make_study(AXES, show=("bleu.4",))
    result = make_result(study, lambda cell, seed: {"bleu.4": 1.0, "train.seconds": 3.0 + seed, "tokens": 2e6})
    table = other_figures_table(result)
    assert table is not None
    assert table.columns == ["", "full", "a", "b"]
    assert [texts(row) for row in table.rows] == [
        ["n", "3", "3", "3"],
        ["tokens trained on, millions", "2.00", "2.00", "2.00"],
        ["training time, s", "5.0 ± 1.0", "5.0 ± 1.0", "5.0 ± 1.0"],
    ]
    assert other_figures_table(make_result(make_study(AXES), exact(TABLE))) is None
