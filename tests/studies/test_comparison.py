"""Summaries and comparisons of cells against NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from helpers.study_results import exact, make_result, make_study
from lilliput.studies.comparison import compare, find_best, find_missing, find_values, summarise, summarise_cell

FIGURE = "validation.perplexity"
AXES = {"window": {"full": {}, "a": {"model.window": 4}, "b": {"model.window": 8}}}


def test_summary_equals_numpy() -> None:
    values = [3.25, 1.5, 2.0, 8.75]
    found = summarise(values)
    assert found is not None and found.interval is not None
    assert found.n == 4
    assert found.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert found.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert found.interval == pytest.approx((low, high), abs=1e-10)


def test_summary_of_one_value_and_of_none() -> None:
    found = summarise([2.0])
    assert found is not None
    assert (found.mean, found.n, found.deviation, found.interval) == (2.0, 1, None, None)
    assert summarise([]) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "finding"),
    [
        ((11.0, 12.1, 13.2), (10.0, 11.0, 12.0), "higher"),
        ((9.0, 9.9, 10.8), (10.0, 11.0, 12.0), "lower"),
        ((10.5, 10.5, 12.1), (10.0, 11.0, 12.0), "not significant"),
        ((10.0, 11.0, 12.0), (10.0, 11.0, 12.0), "equal"),
        # The difference is small compared with the spread over seeds, but the same for each seed.
        ((10.1, 50.1, 90.1), (10.0, 50.0, 90.0), "higher"),
        ((11.0,), (10.0,), "one seed"),
        ((10.0,), (10.0,), "one seed"),
    ],
)
def test_finding_of_two_cells(ours: tuple[float, ...], theirs: tuple[float, ...], finding: str) -> None:
    study = make_study({"window": {"full": {}, "a": {}}}, tuple(range(1, len(ours) + 1)))
    result = make_result(study, exact({"full": theirs, "a": ours}))
    found = compare(result.rows, {"window": "a"}, {"window": "full"}, FIGURE)
    assert found.finding == finding
    assert found.mean == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-12)
    assert (found.paired is None) == (len(ours) == 1)
    if len(ours) > 1 and len(set(np.subtract(ours, theirs))) > 1:
        assert found.paired is not None
        test = stats.ttest_rel(ours, theirs)
        assert (found.paired.low, found.paired.high) == pytest.approx(test.confidence_interval(0.95), abs=1e-9)
        assert (test.pvalue < 0.05) == (finding in ("higher", "lower"))


def test_only_common_seeds_are_paired() -> None:
    result = make_result(make_study(AXES, (1, 2, 3)), exact({"full": (1, 2, 3), "a": (2, 3, 9), "b": (4, 5, 6)}))
    result.rows[:] = [
        row for row in result.rows if (row.cell["window"], row.seed) not in {("a", 3), ("b", 1), ("b", 2)}
    ]
    found = compare(result.rows, {"window": "a"}, {"window": "full"}, FIGURE)
    assert (found.n, found.mean, found.finding) == (2, 1.0, "higher")
    assert compare(result.rows, {"window": "b"}, {"window": "full"}, FIGURE).finding == "one seed"
    assert compare(result.rows, {"window": "b"}, {"window": "a"}, FIGURE).finding == "missing"
    assert find_missing(result) == [({"window": "a"}, 3), ({"window": "b"}, 1), ({"window": "b"}, 2)]
    assert find_values(result.rows, {"window": "a"}, FIGURE) == {1: 2, 2: 3}
    assert summarise_cell(result.rows, {"window": "a"}, "nothing") is None


@pytest.mark.parametrize(
    ("table", "better", "best", "significant"),
    [
        ({"full": (5, 6, 7), "a": (1.1, 2.0, 3.0), "b": (9, 9.5, 9.9)}, "lower", "a", True),
        ({"full": (5, 6, 7), "a": (1.1, 2.0, 3.0), "b": (9, 9.5, 9.9)}, "higher", "b", True),
        ({"full": (1.2, 1.9, 3.1), "a": (1.1, 2.0, 3.0), "b": (9, 9.5, 9.9)}, "lower", "a", False),
    ],
)
def test_best_is_significant_only_against_every_other_cell(
    table: dict[str, tuple[float, ...]], better: str, best: str, significant: bool
) -> None:
    result = make_result(make_study(AXES), exact(table))
    cells = [{"window": label} for label in table]
    assert find_best(result.rows, cells, FIGURE, better) == ({"window": best}, significant)
    assert find_best(result.rows, cells, FIGURE, None) is None
    assert find_best(result.rows, cells[:1], FIGURE, better) is None


def test_best_is_not_significant_with_one_seed() -> None:
    result = make_result(make_study(AXES, (1,)), exact({"full": (5,), "a": (1,), "b": (9,)}))
    assert find_best(result.rows, [{"window": "full"}, {"window": "a"}], FIGURE, "lower") == ({"window": "a"}, False)
