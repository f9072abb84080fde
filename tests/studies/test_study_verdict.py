"""Number formats, and the sentences about the metrics of a study."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.study_results import exact, make_result, make_study, windows
from lilliput.reports.formatting import duration, fixed, listed
from lilliput.studies.comparison import summarise
from lilliput.studies.study_metrics import Figure, find_figure
from lilliput.studies.study_verdict import (
    number,
    share,
    shown_figures,
    signed,
    spread,
    verdict,
    verdict_lines,
    with_unit,
)

AXES = {"window": {"full": {}, "a": {"model.window": 4}, "b": {"model.window": 8}}}
FULL = (10.0, 11.0, 12.0)


def findings(table: dict[str, tuple[float, ...]], figure: str = "validation.perplexity") -> str:
    labels = {label: {} for label in table}
    study = make_study({"window": labels}, tuple(range(1, len(next(iter(table.values()))) + 1)), (figure,))
    ((_, words),) = verdict(make_result(study, exact(table, figure)))
    return words


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1234.5678, 2, "1,234.57"),
        (-0.25, 2, "−0.25"),
        (0.0, 3, "0.000"),
        (0.0004, 3, "0.0004"),
        (-0.000021, 2, "−0.00002"),
        (3e-11, 2, "3.0e−11"),
        (2.5e13, 0, "2.500e+13"),
    ],
)
def test_numbers(value: float, digits: int, text: str) -> None:
    assert fixed(value, digits) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((30_010.0, 30_012.0), "0.03"),
        ((230_000.0, 250_000.0), "0.24 ± 0.01"),
        ((238_000.0, 241_000.0), "0.24 ± 0.002"),
        ((240_000.0,), "0.24"),
    ],
)
def test_deviation_far_below_the_last_digit_is_not_shown(values: tuple[float, ...], text: str) -> None:
    summary = summarise(values)
    assert summary is not None
    assert spread(summary, Figure("tokens", "millions", None, 2, 1e-6)) == text


def test_number_formats() -> None:
    memory = find_figure("train.peak_memory_bytes")
    assert (number(6.1e8, memory), with_unit(6.1e8, memory), signed(-2e6, memory)) == ("610", "610 MB", "−2")
    assert with_unit(0.876, find_figure("accuracy")) == "87.6%"
    assert signed(0.0, memory) == "0"
    shares = [
        share(*pair, memory) for pair in ((1.0, 8.0), (-0.1, 8.0), (1.0, -8.0), (7.9, 8.0), (8.0, 8.0), (21.12, 8.0))
    ]
    assert shares == ["+12%", "−1.2%", "+12%", "+99%", "2.00x", "3.64x"]
    speed = find_figure("tokens_per_second")
    assert [share(*pair, speed) for pair in ((21.12, 8.0), (4.0, 8.0), (-2.0, 8.0))] == ["3.64x", "1.50x", "0.75x"]
    assert [duration(seconds) for seconds in (3.2, 45, 600, 7500)] == ["3.2 s", "45 s", "10 min", "2 h 05 min"]
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_worse() -> None:
    assert findings({"full": FULL, "a": (11.0, 12.1, 13.2)}) == (
        "full 11.00 (mean of 3 seeds). Worse than full: a 12.10 (+1.10, +10%; 95% CI +0.85 to +1.35)."
    )


def test_better() -> None:
    assert "Better than full: a 9.90 (−1.10, −10%; 95% CI −1.35 to −0.85)." in findings(
        {"full": FULL, "a": (9.0, 9.9, 10.8)}
    )


def test_not_significantly_different() -> None:
    words = findings({"full": FULL, "a": (10.5, 10.5, 12.1)})
    assert "Not significantly different from full: a 11.03 (+0.03, +0.3%; 95% CI −1.22 to +1.28)." in words
    assert "orse" not in words and "etter" not in words


def test_equal_for_every_seed() -> None:
    assert findings({"full": FULL, "a": FULL}) == "full 11.00 (mean of 3 seeds). Equal to full (every seed): a."


def test_one_seed_is_not_tested() -> None:
    study = make_study(AXES, (1,))
    lines = verdict_lines(make_result(study, exact({"full": (10.0,), "a": (99.0,), "b": (1.0,)})))
    assert "no difference is tested" in lines[0]
    assert lines[1] == (
        "Validation perplexity: full 10.00. "
        "Difference from full, not tested: a 99.00 (+89.00, 9.90x); b 1.00 (−9.00, −90%)."
    )


def test_metric_without_a_direction_is_higher_or_lower() -> None:
    words = findings({"full": FULL, "a": (11.0, 12.1, 13.2)}, "writing.perplexity")
    assert "Higher than full: a 12.10" in words


def test_higher_may_be_better() -> None:
    assert "Better than full: a 12.10" in findings({"full": FULL, "a": (11.0, 12.1, 13.2)}, "bleu.4")


def test_constant_metric() -> None:
    assert findings({"full": (863_243.0,) * 3, "a": (863_243.0,) * 3}, "parameters") == "0.863 million in every run."


def test_one_measurement() -> None:
    result = make_result(make_study(AXES), exact({"full": FULL, "a": FULL, "b": FULL}))
    del result.rows[1:]
    ((_, words),) = verdict(result)
    assert words == "10.00 (one measurement, no comparison)."


def test_best_cell() -> None:
    assert findings({"full": FULL, "a": (5.0, 6.1, 7.0), "b": (20.0, 21.0, 22.5)}).endswith(
        "Best: a, significantly better than every other cell."
    )
    words = findings({"full": FULL, "a": (5.0, 6.1, 7.0), "b": (5.1, 6.0, 7.05)})
    assert words.endswith("Best mean: a, not significantly better than b.")


def test_no_best_cell_with_unequal_budgets() -> None:
    budgets = {"few": {"budget.steps": 10}, "more": {"budget.steps": 20}, "most": {"budget.steps": 40}}
    table = {"few": (20.0, 21.0, 22.5), "more": FULL, "most": (5.0, 6.1, 7.0)}
    ((_, words),) = verdict(make_result(make_study({"budget": budgets}), exact(table)))
    assert words.endswith("No best cell is named, because budgets differ between cells.")


def test_cell_with_missing_seeds_is_not_the_best() -> None:
    """Seed 1 is easy for all cells: with it alone, a has a lower mean than full over three seeds."""
    result = make_result(make_study(AXES), exact({"full": FULL, "a": (10.5, 0.0, 0.0), "b": (20.0, 21.0, 22.5)}))
    result.rows[:] = [row for row in result.rows if (row.cell["window"], row.seed) not in {("a", 2), ("a", 3)}]
    ((_, words),) = verdict(result)
    assert words.endswith("Best mean: full, not significantly better than a.")


@pytest.mark.parametrize("axes", [{}, {"window": {"full": {}}}, {"window": {"full": {}}, "size": {"small": {}}}])
def test_single_cell(axes: dict[str, dict[str, dict[str, int]]]) -> None:
    result = make_result(make_study(axes), lambda cell, seed: {"validation.perplexity": FULL[seed - 1]})
    ((_, words),) = verdict(result)
    assert words.endswith(" 11.00 (mean of 3 seeds), 95% CI 8.52 to 13.48; no other cell to compare with.")


def test_cell_with_fewer_seeds() -> None:
    result = make_result(make_study(AXES), exact({"full": FULL, "a": (11.0, 12.1, 99.0), "b": FULL}))
    result.rows[:] = [
        row for row in result.rows if (row.cell["window"], row.seed) != ("a", 3) and row.cell["window"] != "b"
    ]
    ((_, words),) = verdict(result)
    assert "a 11.55 (+1.05, +10%; 95% CI +0.41 to +1.69 from 2 seeds)" in words, "relative to 10.5"
    assert "No seed in common with full: b." in words


def test_other_metrics_have_no_intervals(tmp_path: Path) -> None:
    (_, first), (_, second), *_ = verdict(windows(tmp_path))
    assert "95% CI" in first and "95% CI" not in second
    assert "Worse than full: 4 tokens 1.4392 (+3.6%)." in second


def test_several_axes() -> None:
    study = make_study({"size": {"small": {}, "large": {}}, "window": {"full": {}, "short": {}}})
    table = {
        "small, full": FULL,
        "small, short": (11.0, 12.1, 13.2),
        "large, full": (5.0, 6.1, 7.0),
        "large, short": (5.1, 6.0, 7.05),
    }
    ((_, words),) = verdict(make_result(study, exact(table)))
    assert words == (
        "By size: Better than small for both values of window: large (mean differences −6.05 to −4.97). "
        "By window: The result of short depends on size: worse than full for small (+1.10); "
        "not significantly different from full for large (+0.02). "
        "Best mean: large, full, not significantly better than large, short."
    )


def test_shown_metrics() -> None:
    study = make_study(AXES, show=("tokens", "nothing", "bleu.4"))
    result = make_result(study, lambda cell, seed: {"bleu.4": 1.0, "tokens": 2.0, "train.seconds": 3.0})
    assert shown_figures(result) == ["tokens", "bleu.4"]
    default = make_result(make_study(AXES, show=()), lambda cell, seed: {"tokens": 2.0, "train.seconds": 3.0})
    assert shown_figures(default) == ["train.seconds"], "a budget has no direction"


def test_metric_that_was_not_measured() -> None:
    study = make_study(AXES, show=("validation.perplexity", "validation.accuracy"))
    result = make_result(study, exact(dict.fromkeys(AXES["window"], (1.0, 2.0, 3.0))))
    assert verdict_lines(result)[-1].endswith("not measured: validation accuracy.")


def test_nothing_measured_yet() -> None:
    result = make_result(make_study(AXES), exact({"full": FULL, "a": FULL, "b": FULL}))
    result.rows.clear()
    assert verdict_lines(result) == ["Nothing was measured yet."]


def test_unknown_metric_is_shown_by_its_name() -> None:
    assert find_figure("my.figure") == Figure("my.figure", "", None, 4)
    assert "Higher than full: a 12.1000" in findings({"full": FULL, "a": (11.0, 12.1, 13.2)}, "my.figure")


def test_axis_of_budgets_is_not_compared() -> None:
    """If there is another axis, labels are compared only at equal budgets."""
    text = {"few": {"budget.steps": 10}, "many": {"budget.steps": 20}}
    study = make_study({"update": {"small": {}, "large": {"train.batch": 8}}, "text": text})
    few, many = {"small, few": (2.0, 2.1, 2.2), "large, few": (1.5, 1.6, 1.71)}, (1.0, 1.1, 1.2)
    table = few | {"small, many": many, "large, many": (1.21, 1.3, 1.4)}
    ((_, words),) = verdict(make_result(study, exact(table)))
    assert words.startswith("By update: The result of large depends on text: better than small for few")
    assert "worse than small for many" in words
    assert "By text" not in words and "than few" not in words


def test_speedups_over_several_combinations_are_factors() -> None:
    study = make_study({"cache": {"none": {}, "some": {}}, "size": {"s": {}, "l": {}}}, show=("tokens_per_second",))
    factor = {"s": 1.5, "l": 3.64}

    def values(cell: dict[str, str], seed: int) -> dict[str, float]:
        return {"tokens_per_second": (100.0 + seed) * (factor[cell["size"]] if cell["cache"] == "some" else 1.0)}

    ((_, sentence),) = verdict(make_result(study, values))
    assert "By cache: Better than none for both values of size: some (1.50x to 3.64x)." in sentence


def test_metric_that_follows_from_the_settings_has_no_finding() -> None:
    study = make_study({"how": {"a": {}, "b": {}}}, show=("train.rows_per_step", "validation.loss"))
    values = {"a": 8.0, "b": 64.0}
    result = make_result(
        study, lambda cell, seed: {"train.rows_per_step": values[cell["how"]], "validation.loss": 2.0 + seed}
    )
    assert [title for title, _ in verdict(result)] == ["Validation loss:"]
