"""The findings of a study as sentences, generated from its metrics by rules.

Owns: number formats, and for each shown metric which cells are better than, worse than or not significantly different
from the reference, and which is the best. Does not own: the statistics behind these statements (`comparison`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lilliput.reports.formatting import capital, counted, fixed, listed
from lilliput.studies.comparison import (
    Difference,
    Finding,
    Labels,
    Summary,
    axis_labels,
    cell_labels,
    compare,
    compared_axes,
    find_best,
    reference_labels,
    summarise_cell,
    what_differs,
)
from lilliput.studies.study_metrics import Figure, find_figure
from lilliput.studies.study_results import StudyResult

DEFAULT_FIGURES = 5  # metrics shown if the study has no `show`


# Numbers --------------------------------------------------------------------------------------------------------------


def number(value: float, figure: Figure) -> str:
    """Return the value with the metric's scale and digits, without its unit."""
    return fixed(value * figure.scale, figure.digits)


def with_unit(value: float, figure: Figure) -> str:
    unit = "" if figure.unit == "0 to 100" else figure.unit
    return number(value, figure) + ("" if not unit else "%" if unit == "%" else f" {unit}")


def signed(value: float, figure: Figure) -> str:
    return fixed(value * figure.scale, figure.digits, "+") if value else "0"


def spread(summary: Summary, figure: Figure) -> str:
    """Return mean and standard deviation; only the mean if there is one value, or if the standard deviation is below a tenth
    of the last digit shown."""
    mean = number(summary.mean, figure)
    if summary.deviation is None or summary.deviation * figure.scale < 0.1 * 10.0**-figure.digits:
        return mean
    return f"{mean} ± {number(summary.deviation, figure)}"


def reach(low: float, high: float, figure: Figure) -> str:
    return f"{signed(low, figure)} to {signed(high, figure)}"


def share(difference: float, reference: float, figure: Figure) -> str:
    """Return a difference in percent of the reference, or as a factor: for metrics with `factor`, and if the value is at
    least twice the reference."""
    if reference > 0 and (figure.factor or difference >= reference):
        return f"{fixed(1 + difference / reference, 2)}x"
    percent = 100 * difference / abs(reference)
    return fixed(percent, 0 if abs(percent) >= 9.95 else 1, "+") + "%"


def name_cell(cell: Labels) -> str:
    return ", ".join(cell.values()) or "the recipe"


# Findings -------------------------------------------------------------------------------------------------------------


def verdict(result: StudyResult) -> list[tuple[str, str]]:
    """Return the title and the findings of each shown metric."""
    shown = [name for name in shown_figures(result) if not find_figure(name).given]
    sentences = [(figure, describe_figure(result, figure, first=figure == shown[0])) for figure in shown]
    return [(f"{find_figure(figure).heading}:", words) for figure, words in sentences]


def verdict_lines(result: StudyResult) -> list[str]:
    """Return the findings for a console, after the explanation of the rule."""
    sentences = [rule_of_claims(result), *(f"{lead} {sentence}" for lead, sentence in verdict(result))]
    return [*sentences, absent] if (absent := absent_note(result)) else sentences


def absent_note(result: StudyResult) -> str:
    """List the metrics in `show` that no run has, such as the accuracy of a language model."""
    measured = {name for row in result.rows for name in row.figures}
    absent = [find_figure(name).title for name in result.study.show if name not in measured]
    return f"In the study's `show`, but not measured: {listed(absent)}." if absent and result.rows else ""


def rule_of_claims(result: StudyResult) -> str:
    if not result.rows:
        return "Nothing was measured yet."
    seeds = len({row.seed for row in result.rows})
    if seeds == 1:
        return "One seed: there are no confidence intervals, so no difference is tested. All values are single measurements."
    return (
        f"Cells (combinations of settings) are compared by differences paired by seed ({seeds} seeds). Two cells are "
        "significantly different if the 95% confidence interval (CI) of their mean difference does not include zero. If "
        "two settings have the same effect, about one of twenty comparisons still appears significant, by chance."
    )


def shown_figures(result: StudyResult) -> list[str]:
    """Return the measured metrics of the study's `show`, or the first metrics that have a direction if it is empty."""
    measured = list(dict.fromkeys(figure for row in result.rows for figure in row.figures))
    if result.study.show:
        return [figure for figure in result.study.show if figure in measured]
    return [figure for figure in measured if find_figure(figure).better][:DEFAULT_FIGURES]


def describe_figure(result: StudyResult, name: str, first: bool) -> str:
    """Describe one metric. The first metric is the main one: its text also names the best cell and, with a single axis, the
    confidence intervals; those of the other metrics are in their tables."""
    figure = find_figure(name)
    values = [row.figures[name] for row in result.rows if name in row.figures]
    if len(values) == 1:
        return f"{with_unit(values[0], figure)} (one measurement, no comparison)."
    if len(set(values)) == 1:
        return f"{with_unit(values[0], figure)} in every run."
    axes = axis_labels(result)
    measured = [cell for cell in cell_labels(result) if summarise_cell(result.rows, cell, name)]
    if len(measured) == 1:
        return describe_only_cell(result, name, figure, measured[0])
    if len(axes) == 1:
        sentences = describe_only_axis(result, name, figure, next(iter(axes)), first)
    else:
        compared = compared_axes(result, name)
        sentences = " ".join(f"By {axis}: {describe_axis(result, name, figure, axis)}" for axis in compared)
    best = describe_best(result, name, figure) if first and len(measured) > 2 else ""
    return f"{sentences} {best}".strip()


def describe_only_cell(result: StudyResult, name: str, figure: Figure, cell: Labels) -> str:
    """Describe the only cell that has the metric, with several seeds."""
    summary = summarise_cell(result.rows, cell, name)
    assert summary and summary.interval
    interval = f"{number(summary.interval.low, figure)} to {number(summary.interval.high, figure)}"
    return f"{name_cell(cell)} {format_summary(summary, figure)}, 95% CI {interval}; no other cell to compare with."


def describe_only_axis(result: StudyResult, name: str, figure: Figure, axis: str, full: bool) -> str:
    """Compare every label with the reference, grouped by the finding."""
    reference = {axis: reference_labels(result)[axis]}
    summary = summarise_cell(result.rows, reference, name)
    label = reference[axis]
    begin = f"{label} {format_summary(summary, figure)}." if summary else f"{label} was not measured."
    others = [{axis: other} for other in axis_labels(result)[axis] if other != label]
    differences = [compare(result.rows, other, reference, name) for other in others]
    sentences = [begin]
    for finding in order(figure):
        group = [difference for difference in differences if difference.finding == finding]
        if group:
            found = (format_difference(result, one, name, figure, full) for one in group)
            sentences.append(f"{opening(finding, label, figure)}: {('; ' if full else ', ').join(found)}.")
    return " ".join(sentences)


def opening(finding: Finding, label: str, figure: Figure) -> str:
    if finding in ("higher", "lower"):
        return capital(f"{comparative(finding, figure)} than {label}")
    return {
        "not significant": f"Not significantly different from {label}",
        "equal": f"Equal to {label} (every seed)",
        "one seed": f"Difference from {label}, not tested",
        "missing": f"No seed in common with {label}",
    }[finding]


def comparative(finding: Finding, figure: Figure) -> str:
    if figure.better is None:
        return finding
    return "better" if finding == figure.better else "worse"


def format_summary(summary: Summary, figure: Figure) -> str:
    mean = with_unit(summary.mean, figure)
    return mean if summary.n == 1 else f"{mean} (mean of {summary.n} seeds)"


def format_difference(result: StudyResult, difference: Difference, name: str, figure: Figure, full: bool) -> str:
    label = name_cell(difference.cell)
    if (
        difference.mean is None
        or difference.finding == "equal"
        or (difference.finding == "not significant" and not full)
    ):
        return label
    summary = summarise_cell(result.rows, difference.cell, name)
    assert summary
    value = number(summary.mean, figure)
    relative = share(difference.mean, difference.base, figure) if difference.base and figure.unit != "%" else ""
    if not full:
        return f"{label} {value} ({relative or signed(difference.mean, figure)})"
    relative = f", {relative}" if relative else ""
    if difference.paired is None:
        return f"{label} {value} ({signed(difference.mean, figure)}{relative})"
    fewer = f" from {counted(difference.n, 'seed')}" if difference.n < len(result.study.seeds) else ""
    interval = reach(difference.paired.low, difference.paired.high, figure)
    return f"{label} {value} ({signed(difference.mean, figure)}{relative}; 95% CI {interval}{fewer})"


def describe_axis(result: StudyResult, name: str, figure: Figure, axis: str) -> str:
    """Compare the labels of one of several axes for every combination of the other labels. Labels with the same finding for
    all combinations share a sentence."""
    axes, label = axis_labels(result), reference_labels(result)[axis]
    others = [other for other in axes if other != axis]
    places = [dict(zip(others, labels, strict=True)) for labels in itertools.product(*(axes[one] for one in others))]
    alike: dict[Finding, list[str]] = {}
    mixed = []
    for one in axes[axis]:
        if one == label:
            continue
        found = [(place, compare(result.rows, {**place, axis: one}, {**place, axis: label}, name)) for place in places]
        findings = {difference.finding for _, difference in found}
        if len(findings) == 1:
            alike.setdefault(findings.pop(), []).append(f"{one}{range_of([each for _, each in found], figure)}")
        else:
            mixed.append(describe_mixed(one, label, found, figure, listed(others)))
    kind = "values" if len(others) == 1 else "combinations"
    number_of = "both" if len(places) == 2 else f"all {len(places)}"
    everywhere = f" for {number_of} {kind} of {listed(others)}" if len(places) > 1 else ""
    sentences = [
        f"{opening(finding, label, figure)}{everywhere}: {', '.join(alike[finding])}."
        for finding in order(figure)
        if finding in alike
    ]
    return " ".join([*sentences, *mixed])


def describe_mixed(
    one: str, label: str, found: Sequence[tuple[Labels, Difference]], figure: Figure, others: str
) -> str:
    """Describe a label whose finding depends on the other labels."""
    parts = []
    for finding in order(figure):
        group = [(place, difference) for place, difference in found if difference.finding == finding]
        if group:
            where = listed([name_cell(place) for place, _ in group])
            words = opening(finding, label, figure)
            parts.append(f"{words[0].lower()}{words[1:]} for {where}{range_of([each for _, each in group], figure)}")
    return f"The result of {one} depends on {others}: {'; '.join(parts)}."


def order(figure: Figure) -> list[Finding]:
    """Return the order of the findings, better first."""
    first: list[Finding] = ["higher", "lower"] if figure.better == "higher" else ["lower", "higher"]
    return [*first, "not significant", "equal", "one seed", "missing"]


def range_of(differences: Sequence[Difference], figure: Figure) -> str:
    """Return the range of the mean differences, or of the factors, worded so that it is not read as a confidence interval."""
    means = [difference.mean for difference in differences if difference.mean is not None]
    if not means or not any(means):
        return ""
    known = [(one.mean, one.base) for one in differences if one.mean is not None and one.base]
    if figure.factor and known:
        by_size = sorted(known, key=lambda pair: pair[0] / pair[1])
        low, high = (share(mean, base, figure) for mean, base in (by_size[0], by_size[-1]))
        return f" ({low})" if low == high else f" ({low} to {high})"
    low, high = signed(min(means), figure), signed(max(means), figure)
    return f" ({low})" if low == high else f" (mean differences {low} to {high})"


def describe_best(result: StudyResult, name: str, figure: Figure) -> str:
    """Name the best cell; return "" for one seed or a metric without a direction."""
    found = find_best(result.rows, cell_labels(result), name, figure.better)
    if found is None or len({row.seed for row in result.rows}) == 1:
        return ""
    if differing := what_differs(result, name):
        return f"No best cell is named, because {differing} differ between cells."
    best, significant = found
    if significant:
        return f"Best: {name_cell(best)}, significantly better than every other cell."
    rivals = [cell for cell in cell_labels(result) if cell != best and summarise_cell(result.rows, cell, name)]
    close = [cell for cell in rivals if compare(result.rows, best, cell, name).finding != figure.better]
    others = listed([name_cell(cell) for cell in close])
    return f"Best mean: {name_cell(best)}, not significantly better than {others}."
