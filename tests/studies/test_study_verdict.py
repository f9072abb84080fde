"""How numbers read, and the verdict sentence by sentence: each rule with figures that call for it."""

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


def told(table: dict[str, tuple[float, ...]], figure: str = "validation.perplexity") -> str:
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
        ((30_010.0, 30_012.0), "0.03"),  # a deviation of a millionth of a million
        ((230_000.0, 250_000.0), "0.24 ± 0.01"),
        ((238_000.0, 241_000.0), "0.24 ± 0.002"),
        ((240_000.0,), "0.24"),
    ],
)
def test_a_deviation_far_below_the_last_digit_is_not_shown(values: tuple[float, ...], text: str) -> None:
    summary = summarise(values)
    assert summary is not None
    assert spread(summary, Figure("tokens", "millions", None, 2, 1e-6)) == text


def test_numbers_of_figures() -> None:
    memory = find_figure("train.peak_memory_bytes")
    assert (number(6.1e8, memory), with_unit(6.1e8, memory), signed(-2e6, memory)) == ("610", "610 MB", "−2")
    assert with_unit(0.876, find_figure("accuracy")) == "87.6%"
    assert signed(0.0, memory) == "0"
    assert (share(1.0, 8.0), share(-0.1, 8.0), share(1.0, -8.0)) == ("+12%", "−1.2%", "+12%")
    assert [duration(seconds) for seconds in (3.2, 45, 600, 7500)] == ["3.2 s", "45 s", "10 min", "2 h 05 min"]
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_worse_with_its_interval() -> None:
    assert told({"full": FULL, "a": (11.0, 12.1, 13.2)}) == (
        "full has 11.00 (mean of 3 seeds). Worse than full: a 12.10 (+1.10, +10%; interval +0.85 to +1.35)."
    )


def test_better_with_its_interval() -> None:
    assert "Better than full: a 9.90 (−1.10, −10%; interval −1.35 to −0.85)." in told(
        {"full": FULL, "a": (9.0, 9.9, 10.8)}
    )


def test_a_tie_is_called_a_tie() -> None:
    words = told({"full": FULL, "a": (10.5, 10.5, 12.1)})
    assert "Ties with full: a 11.03 (+0.03, +0.3%; interval −1.22 to +1.28)." in words
    assert "orse" not in words and "etter" not in words


def test_what_is_equal_with_every_seed_is_equal_and_not_a_tie() -> None:
    assert told({"full": FULL, "a": FULL}) == "full has 11.00 (mean of 3 seeds). Equal to full with every seed: a."


def test_one_seed_carries_no_claim() -> None:
    study = make_study(AXES, (1,))
    lines = verdict_lines(make_result(study, exact({"full": (10.0,), "a": (99.0,), "b": (1.0,)})))
    assert lines[0] == "One seed: no interval, no claim. What follows is what was measured, once."
    assert (
        lines[1]
        == "Validation perplexity: full has 10.00. One seed, no claim: a 99.00 (+89.00, +890%); b 1.00 (−9.00, −90%)."
    )
    for claim in ("etter", "orse", "best", "ies with"):
        assert claim not in lines[1]


def test_what_is_neither_good_nor_bad_is_higher_or_lower() -> None:
    words = told({"full": FULL, "a": (11.0, 12.1, 13.2)}, "writing.perplexity")
    assert "Higher than full: a 12.10" in words


def test_higher_may_be_better() -> None:
    assert "Better than full: a 12.10" in told({"full": FULL, "a": (11.0, 12.1, 13.2)}, "bleu.4")


def test_a_figure_that_never_changes_is_said_once() -> None:
    assert told({"full": (863_243.0,) * 3, "a": (863_243.0,) * 3}, "parameters") == "0.863 million in every run."


def test_one_run_alone_is_compared_with_nothing() -> None:
    result = make_result(make_study(AXES), exact({"full": FULL, "a": FULL, "b": FULL}))
    del result.rows[1:]
    ((_, words),) = verdict(result)
    assert words == "10.00, and nothing to compare it with."


def test_the_best_is_named_only_where_it_beats_all() -> None:
    assert told({"full": FULL, "a": (5.0, 6.1, 7.0), "b": (20.0, 21.0, 22.5)}).endswith(
        "The best is a, ahead of every other."
    )
    words = told({"full": FULL, "a": (5.0, 6.1, 7.0), "b": (5.1, 6.0, 7.05)})
    assert words.endswith("The best mean is that of a, but b cannot be told from it.")


def test_no_best_is_named_among_unequal_budgets() -> None:
    budgets = {"few": {"budget.steps": 10}, "more": {"budget.steps": 20}, "most": {"budget.steps": 40}}
    table = {"few": (20.0, 21.0, 22.5), "more": FULL, "most": (5.0, 6.1, 7.0)}
    ((_, words),) = verdict(make_result(make_study({"budget": budgets}), exact(table)))
    assert words.endswith("Budgets differ, so that no cell is called the best of all.") and "ahead" not in words


def test_the_mean_of_easy_seeds_is_not_called_the_best() -> None:
    """Of seed 1, which is easy with all of them, a has more than full."""
    result = make_result(make_study(AXES), exact({"full": FULL, "a": (10.5, 0.0, 0.0), "b": (20.0, 21.0, 22.5)}))
    result.rows[:] = [row for row in result.rows if (row.cell["window"], row.seed) not in {("a", 2), ("a", 3)}]
    ((_, words),) = verdict(result)
    assert words.endswith("The best mean is that of full, but a cannot be told from it.")


@pytest.mark.parametrize("axes", [{}, {"window": {"full": {}}}, {"window": {"full": {}}, "size": {"small": {}}}])
def test_one_cell_alone_has_its_interval(axes: dict[str, dict[str, dict[str, int]]]) -> None:
    result = make_result(make_study(axes), lambda cell, seed: {"validation.perplexity": FULL[seed - 1]})
    ((_, words),) = verdict(result)
    assert words.endswith(" has 11.00 (mean of 3 seeds), interval 8.52 to 13.48, and nothing to compare it with.")


def test_a_cell_that_has_fewer_seeds_says_so() -> None:
    result = make_result(make_study(AXES), exact({"full": FULL, "a": (11.0, 12.1, 99.0), "b": FULL}))
    result.rows[:] = [
        row for row in result.rows if (row.cell["window"], row.seed) != ("a", 3) and row.cell["window"] != "b"
    ]
    ((_, words),) = verdict(result)
    assert "a 11.55 (+1.05, +10%; interval +0.41 to +1.69, 2 seeds only)" in words, "of their 10.5"
    assert "Not to be compared with full: b (no seed in common)." in words


def test_figures_after_the_first_are_told_in_short(tmp_path: Path) -> None:
    (_, first), (_, second), *_ = verdict(windows(tmp_path))
    assert "interval" in first and "interval" not in second
    assert "Worse than full: 4 tokens 1.4392 (+3.6%)." in second


def test_several_axes_are_judged_at_every_place() -> None:
    study = make_study({"size": {"small": {}, "large": {}}, "window": {"full": {}, "short": {}}})
    table = {
        "small, full": FULL,
        "small, short": (11.0, 12.1, 13.2),
        "large, full": (5.0, 6.1, 7.0),
        "large, short": (5.1, 6.0, 7.05),
    }
    ((_, words),) = verdict(make_result(study, exact(table)))
    assert words == (
        "By size. Better than small at each of 2 choices of window: large (means −6.05 to −4.97). "
        "By window. It depends for short: worse than full at small (+1.10); ties with full at large (+0.02). "
        "The best mean is that of large, full, but large, short cannot be told from it."
    )


def test_what_is_shown() -> None:
    study = make_study(AXES, show=("tokens", "nothing", "bleu.4"))
    result = make_result(study, lambda cell, seed: {"bleu.4": 1.0, "tokens": 2.0, "train.seconds": 3.0})
    assert shown_figures(result) == ["tokens", "bleu.4"]
    silent = make_result(make_study(AXES, show=()), lambda cell, seed: {"tokens": 2.0, "train.seconds": 3.0})
    assert shown_figures(silent) == ["train.seconds"], "a budget is not judged"


def test_what_nothing_has_is_said() -> None:
    study = make_study(AXES, show=("validation.perplexity", "validation.accuracy"))
    result = make_result(study, exact(dict.fromkeys(AXES["window"], (1.0, 2.0, 3.0))))
    assert verdict_lines(result)[-1] == "Asked for and not measured: validation accuracy."


def test_nothing_measured_yet() -> None:
    result = make_result(make_study(AXES), exact({"full": FULL, "a": FULL, "b": FULL}))
    result.rows.clear()
    assert verdict_lines(result) == ["Nothing was measured yet."]


def test_an_unknown_figure_is_shown_by_its_name() -> None:
    assert find_figure("my.figure") == Figure("my.figure", "", None, 4)
    assert "Higher than full: a 12.1000" in told({"full": FULL, "a": (11.0, 12.1, 13.2)}, "my.figure")


def test_a_larger_budget_is_not_a_technique() -> None:
    """Beside another axis it is a place where that one is judged, and is not judged itself."""
    text = {"few": {"budget.steps": 10}, "many": {"budget.steps": 20}}
    study = make_study({"update": {"small": {}, "large": {"train.batch": 8}}, "text": text})
    few, many = {"small, few": (2.0, 2.1, 2.2), "large, few": (1.5, 1.6, 1.71)}, (1.0, 1.1, 1.2)
    table = few | {"small, many": many, "large, many": (1.21, 1.3, 1.4)}
    ((_, words),) = verdict(make_result(study, exact(table)))
    assert words.startswith("It depends for large: better than small at few") and "worse than small at many" in words
    assert "By " not in words and "than few" not in words
