"""The verdict of a study in sentences, made from its figures by rules.

Owns: how numbers read, and the verdict: for each figure shown, which cells are better or worse than the one
they are compared with, which tie with it, and which is the best. Does not own: what the figures carry
(`comparison`); no rule here claims more.
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

DEFAULT_FIGURES = 5  # figures that are shown of a study that does not say which


# Numbers --------------------------------------------------------------------------------------------------------------


def number(value: float, figure: Figure) -> str:
    """By the figure's own scale and digits, without its unit."""
    return fixed(value * figure.scale, figure.digits)


def with_unit(value: float, figure: Figure) -> str:
    unit = figure.unit
    return number(value, figure) + ("" if not unit else "%" if unit == "%" else f" {unit}")


def signed(value: float, figure: Figure) -> str:
    return fixed(value * figure.scale, figure.digits, "+") if value else "0"


def spread(summary: Summary, figure: Figure) -> str:
    """Mean and standard deviation; the mean alone of one value, and of values so much the same that the deviation is less
    than a tenth of the last digit shown."""
    mean = number(summary.mean, figure)
    if summary.deviation is None or summary.deviation * figure.scale < 0.1 * 10.0**-figure.digits:
        return mean
    return f"{mean} ± {number(summary.deviation, figure)}"


def reach(low: float, high: float, figure: Figure) -> str:
    return f"{signed(low, figure)} to {signed(high, figure)}"


def share(difference: float, reference: float) -> str:
    """A difference as a share of what it is compared with."""
    percent = 100 * difference / abs(reference)
    return fixed(percent, 0 if abs(percent) >= 9.95 else 1, "+") + "%"


def name_cell(cell: Labels) -> str:
    return ", ".join(cell.values()) or "the recipe"


# The verdict ----------------------------------------------------------------------------------------------------------


def verdict(result: StudyResult) -> list[tuple[str, str]]:
    """For each figure that the study shows: its title, and what the figures carry."""
    shown = shown_figures(result)
    sentences = [(figure, describe_figure(result, figure, first=figure == shown[0])) for figure in shown]
    return [(f"{capital(find_figure(figure).title)}:", words) for figure, words in sentences]


def verdict_lines(result: StudyResult) -> list[str]:
    """The same for a console, the rule first."""
    sentences = [rule_of_claims(result), *(f"{lead} {sentence}" for lead, sentence in verdict(result))]
    return [*sentences, absent] if (absent := absent_note(result)) else sentences


def absent_note(result: StudyResult) -> str:
    """The figures that the study shows and nothing has: of a language model, say, its accuracy."""
    measured = {name for row in result.rows for name in row.figures}
    absent = [find_figure(name).title for name in result.study.show if name not in measured]
    return f"Asked for and not measured: {listed(absent)}." if absent and result.rows else ""


def rule_of_claims(result: StudyResult) -> str:
    if not result.rows:
        return "Nothing was measured yet."
    seeds = len({row.seed for row in result.rows})
    if seeds == 1:
        return "One seed: no interval, no claim. What follows is what was measured, once."
    return (
        f"Differences are paired by seed ({seeds} seeds) and judged by their 95% interval; one whose interval holds zero is a "
        "tie. Each interval misses one time in twenty: of twenty comparisons, expect one that only seems to differ."
    )


def shown_figures(result: StudyResult) -> list[str]:
    """Those that the study asks for and that something has, in its order; of a study that asks for none, the first that are
    judged."""
    measured = list(dict.fromkeys(figure for row in result.rows for figure in row.figures))
    if result.study.show:
        return [figure for figure in result.study.show if figure in measured]
    return [figure for figure in measured if find_figure(figure).better][:DEFAULT_FIGURES]


def describe_figure(result: StudyResult, name: str, first: bool) -> str:
    """Of the first figure, which the study is about, also which cell is the best of all, and along a single axis every interval;
    all others stand in their tables."""
    figure = find_figure(name)
    values = [row.figures[name] for row in result.rows if name in row.figures]
    if len(values) == 1:
        return f"{with_unit(values[0], figure)}, and nothing to compare it with."
    if len(set(values)) == 1:
        return f"{with_unit(values[0], figure)} in every run."
    axes = axis_labels(result)
    measured = [cell for cell in cell_labels(result) if summarise_cell(result.rows, cell, name)]
    if len(measured) == 1:
        return describe_only_cell(result, name, figure, measured[0])
    if len(axes) == 1:
        sentences = describe_only_axis(result, name, figure, next(iter(axes)), first)
    else:
        by_axis = {axis: describe_axis(result, name, figure, axis) for axis in compared_axes(result, name)}
        sentences = " ".join(words if len(by_axis) == 1 else f"By {axis}. {words}" for axis, words in by_axis.items())
    best = describe_best(result, name, figure) if first and len(measured) > 2 else ""
    return f"{sentences} {best}".strip()


def describe_only_cell(result: StudyResult, name: str, figure: Figure, cell: Labels) -> str:
    """The only cell that has the figure, with several seeds."""
    summary = summarise_cell(result.rows, cell, name)
    assert summary and summary.interval
    interval = f"{number(summary.interval.low, figure)} to {number(summary.interval.high, figure)}"
    return (
        f"{name_cell(cell)} has {format_summary(summary, figure)}, interval {interval}, and nothing to compare it with."
    )


def describe_only_axis(result: StudyResult, name: str, figure: Figure, axis: str, full: bool) -> str:
    """Every label against the one they are compared with, grouped by what was found."""
    reference = {axis: reference_labels(result)[axis]}
    summary = summarise_cell(result.rows, reference, name)
    label = reference[axis]
    begin = f"{label} has {format_summary(summary, figure)}." if summary else f"{label} has none."
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
        "tie": f"Ties with {label}",
        "equal": f"Equal to {label} with every seed",
        "one seed": "One seed, no claim",
        "missing": f"Not to be compared with {label}",
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
    if difference.mean is None:
        return f"{label} (no seed in common)"
    summary = summarise_cell(result.rows, difference.cell, name)
    assert summary
    value = number(summary.mean, figure)
    if difference.finding == "equal" or (difference.finding == "tie" and not full):
        return label
    relative = share(difference.mean, difference.base) if difference.base and figure.unit != "%" else ""
    if not full:
        return f"{label} {value} ({relative or signed(difference.mean, figure)})"
    relative = f", {relative}" if relative else ""
    if difference.paired is None:
        return f"{label} {value} ({signed(difference.mean, figure)}{relative})"
    fewer = f", {counted(difference.n, 'seed')} only" if difference.n < len(result.study.seeds) else ""
    interval = reach(difference.paired.low, difference.paired.high, figure)
    return f"{label} {value} ({signed(difference.mean, figure)}{relative}; interval {interval}{fewer})"


def describe_axis(result: StudyResult, name: str, figure: Figure, axis: str) -> str:
    """Of one axis among several: what each label does at every place of the others. Those that do the same at all of them are
    told together."""
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
            mixed.append(describe_mixed(one, label, found, figure))
    everywhere = f" at each of {len(places)} choices of {listed(others)}"
    sentences = [
        f"{opening(finding, label, figure)}{everywhere}: {', '.join(alike[finding])}."
        for finding in order(figure)
        if finding in alike
    ]
    return " ".join([*sentences, *mixed])


def describe_mixed(one: str, label: str, found: Sequence[tuple[Labels, Difference]], figure: Figure) -> str:
    """Of a label that does not do the same everywhere: where it does what."""
    parts = []
    for finding in order(figure):
        group = [(place, difference) for place, difference in found if difference.finding == finding]
        if group:
            where = listed([name_cell(place) for place, _ in group])
            words = opening(finding, label, figure)
            parts.append(f"{words[0].lower()}{words[1:]} at {where}{range_of([each for _, each in group], figure)}")
    return f"It depends for {one}: {'; '.join(parts)}."


def order(figure: Figure) -> list[Finding]:
    """What is better is told first."""
    first: list[Finding] = ["higher", "lower"] if figure.better == "higher" else ["lower", "higher"]
    return [*first, "tie", "equal", "one seed", "missing"]


def range_of(differences: Sequence[Difference], figure: Figure) -> str:
    """From the least to the largest mean difference, which is no interval and must not read as one."""
    means = [difference.mean for difference in differences if difference.mean is not None]
    if not means or not any(means):
        return ""
    low, high = signed(min(means), figure), signed(max(means), figure)
    return f" ({low})" if low == high else f" (means {low} to {high})"


def describe_best(result: StudyResult, name: str, figure: Figure) -> str:
    """Whether one cell is ahead of all others; nothing where no direction is better, or where one seed carries no claim."""
    found = find_best(result.rows, cell_labels(result), name, figure.better)
    if found is None or len({row.seed for row in result.rows}) == 1:
        return ""
    if differing := what_differs(result, name):
        return f"{capital(differing)} differ, so that no cell is called the best of all."
    best, surely = found
    if surely:
        return f"The best is {name_cell(best)}, ahead of every other."
    rivals = [cell for cell in cell_labels(result) if cell != best and summarise_cell(result.rows, cell, name)]
    level = [cell for cell in rivals if compare(result.rows, best, cell, name).finding != figure.better]
    others = listed([name_cell(cell) for cell in level])
    return f"The best mean is that of {name_cell(best)}, but {others} cannot be told from it."
