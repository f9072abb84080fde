"""Plots of a study: loss curves, bars with confidence intervals, scatter plots, fitted power laws.

Owns: the plots of a study (requested in its file, or chosen by rules), their captions and alternative texts. Does not
own: the style (`reports.plot_style`), statistics (`comparison`), the fit (`power_laws`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lilliput.reports.document import Picture
from lilliput.reports.formatting import fixed
from lilliput.reports.plot_style import (
    INK,
    PALETTE,
    finish,
    label_ends,
    label_points,
    new_drawing,
    styled,
    thousands,
)
from lilliput.studies.comparison import (
    Summary,
    axis_labels,
    cell_labels,
    find_values,
    summarise_cell,
)
from lilliput.studies.power_laws import Law, fit_law
from lilliput.studies.study_curves import POINTS, colours, draw_curves
from lilliput.studies.study_files import Plot
from lilliput.studies.study_metrics import Figure, find_figure
from lilliput.studies.study_results import StudyResult
from lilliput.studies.study_tables import column_title
from lilliput.studies.study_verdict import name_cell, number, shown_figures, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

BARS = 4  # plots that rules choose, at most
FLAT = 0.8  # if all values are above this share of the largest, bars (which must begin at zero) are left out
COSTS = ("s", "tokens/s", "MB", "TFLOP")  # units of costs, for the scatter plot
TRUNCATED = " Confidence intervals are truncated at zero, because the metric cannot be negative."


class Fitted(NamedTuple):
    """A law and the points it was fitted to, in the units shown."""

    label: str
    x: list[float]
    y: list[float]
    law: Law | None


def draw_study(result: StudyResult) -> list[Picture]:
    """Draw the requested plots, or those that rules choose; plots of metrics that were not measured are left out."""
    drawers: dict[str, Callable[[StudyResult, Plot, str], Picture | None]] = {
        "curves": draw_losses,
        "bars": draw_bars,
        "scatter": draw_scatter,
        "fit": draw_fit,
    }
    found = []
    with styled():
        for at, plot in enumerate(result.study.plots or choose_plots(result), start=1):
            picture = drawers[plot.kind](result, plot, f"figure-{at}-{plot.kind}")
            found += [picture] if picture else []
    return found


def choose_plots(result: StudyResult) -> list[Plot]:
    """Choose curves if cells differ in training, bars of metrics that differ, and the first metric against its cost."""
    shown = shown_figures(result)
    varied = [name for name in shown if len({row.figures.get(name) for row in result.rows}) > 1]
    plots = []
    if len({row.run for row in result.rows}) > len({row.seed for row in result.rows}):
        plots = [Plot("curves", y="validation.loss"), Plot("curves", y="train.loss")]
    plots += [Plot("bars", y=name) for name in varied[:BARS]]
    costs = [name for name in varied[1:] if find_figure(name).unit in COSTS]
    if costs and find_figure(varied[0]).unit not in COSTS:
        plots.append(Plot("scatter", x=costs[0], y=varied[0]))
    return plots


def draw_losses(result: StudyResult, plot: Plot, name: str) -> Picture | None:
    training = bool(plot.y and plot.y.startswith("train"))
    return draw_curves(result, name, training, plot.title, plot.x)


# Bars -----------------------------------------------------------------------------------------------------------------


def draw_bars(result: StudyResult, plot: Plot, name: str) -> Picture | None:
    """Draw the mean of each cell with its confidence interval, and every seed as a dot."""
    y_name = plot.y or next(iter(shown_figures(result)), "")
    figure = find_figure(y_name)
    found = [(cell, summary) for cell in cell_labels(result) if (summary := summarise_cell(result.rows, cell, y_name))]
    if not found:
        return None
    drawing, (axes,) = new_drawing(0.95 + 0.36 * len(found))
    values = [value * figure.scale for _, summary in found for value in summary.values]
    flat = min(values) > FLAT * max(values) > 0
    for at, (cell, summary) in enumerate(found):
        draw_bar(axes, at, summary, figure, colours(result)[name_cell(cell)], flat)
    axes.set_yticks(range(len(found)), [name_cell(cell) for cell, _ in found])
    axes.tick_params(axis="y", colors=INK)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(not flat)
    axes.spines["bottom"].set_visible(False)
    low, high = axes.get_xlim()
    axes.set_xlim(low if flat else min(0.0, low), high)
    axes.set_title(plot.title or column_title(figure, heading=True))
    thousands(axes.xaxis)
    for at, (_, summary) in enumerate(found):
        axes.text(
            1.02, at, number(summary.mean, figure), transform=axes.get_yaxis_transform(), va="center", clip_on=False
        )
    listing = "; ".join(f"{name_cell(cell)} {spread(summary, figure)}" for cell, summary in found)
    several = any(summary.interval for _, summary in found)
    caption = (
        f"{figure.heading}: {'mean with 95% confidence interval; dots are single seeds' if several else 'one seed'}."
    )
    if several:
        caption += (
            " Significance is tested on differences paired by seed, so cells can differ although intervals overlap."
        )
    caption += " The axis does not begin at zero." if flat else ""
    caption += TRUNCATED if any(is_truncated(summary, figure) for _, summary in found) else ""
    return finish(drawing, name, f"{figure.heading} of each cell: {listing}.", caption)


def ends_of(summary: Summary, figure: Figure) -> tuple[float, float] | None:
    """Return the ends of the drawn interval, truncated at zero for metrics that cannot be negative."""
    if summary.interval is None:
        return None
    low, high = (end * figure.scale for end in summary.interval)
    return 0.0 if is_truncated(summary, figure) else low, high


def is_truncated(summary: Summary, figure: Figure) -> bool:
    return not figure.signed and summary.interval is not None and summary.interval.low < 0.0


def draw_bar(axes: Axes, at: int, summary: Summary, figure: Figure, colour: str, flat: bool) -> None:
    mean = summary.mean * figure.scale
    if not flat:
        axes.barh(at, mean, height=0.62, color=colour, alpha=0.3, linewidth=0)
    if ends := ends_of(summary, figure):
        axes.plot(ends, [at, at], color=colour, linewidth=2.2, alpha=0.55)
    axes.plot([mean], [at], marker="|", markersize=13, markeredgewidth=2.4, color=colour)
    if summary.n > 1:
        axes.plot(
            [value * figure.scale for value in summary.values],
            [at] * summary.n,
            "o",
            markersize=3.6,
            color=INK,
            alpha=0.7,
            markeredgewidth=0,
        )


# Scatter plots --------------------------------------------------------------------------------------------------------


def draw_scatter(result: StudyResult, plot: Plot, name: str) -> Picture | None:
    """Draw one metric against another: the mean of each cell with both confidence intervals."""
    if plot.x is None or plot.y is None:
        return None
    across, upward = find_figure(plot.x), find_figure(plot.y)
    found = []
    for cell in cell_labels(result):
        x, y = summarise_cell(result.rows, cell, plot.x), summarise_cell(result.rows, cell, plot.y)
        if x and y:
            found.append((cell, x, y))
    if not found:
        return None
    drawing, (axes,) = new_drawing(3.6)
    colour = colours(result)
    points, lines = [], []
    for cell, x, y in found:
        tint, place = colour[name_cell(cell)], (x.mean * across.scale, y.mean * upward.scale)
        points.append((*place, name_cell(cell), tint))
        wide, high = ends_of(x, across), ends_of(y, upward)
        if wide and high:
            lines += [(wide[0], place[1], wide[1], place[1]), (place[0], high[0], place[0], high[1])]
            axes.plot(wide, [place[1]] * 2, color=tint, alpha=0.45, linewidth=1.4)
            axes.plot([place[0]] * 2, high, color=tint, alpha=0.45, linewidth=1.4)
        axes.plot(*place, "o", markersize=7, color=tint, markeredgewidth=0)
    axes.margins(0.12)
    scale_axis(axes, "x", [x for x, *_ in points])
    scale_axis(axes, "y", [y for _, y, *_ in points])
    axes.set_title(plot.title or column_title(upward, heading=True))
    axes.set_xlabel(column_title(across))
    label_points(axes, points, lines)
    listing = "; ".join(
        f"{name_cell(cell)} {number(y.mean, upward)} at {number(x.mean, across)}" for cell, x, y in found
    )
    wanted = [
        corner
        for corner, better in (("right", across.better == "higher"), ("left", across.better == "lower"))
        if better
    ]
    wanted = [{"higher": "upper", "lower": "lower"}[upward.better], *wanted] if upward.better and wanted else []
    several = any(x.interval for _, x, _ in found)
    caption = (
        f"{upward.heading} against {across.title}: {'means with 95% confidence intervals' if several else 'one seed'}."
    )
    caption += f" Best: {' '.join(wanted)}." if wanted else ""
    caption += TRUNCATED if any(is_truncated(x, across) or is_truncated(y, upward) for _, x, y in found) else ""
    return finish(drawing, name, f"{upward.heading} against {across.title}: {listing}.", caption)


# Power laws -----------------------------------------------------------------------------------------------------------


def fit_groups(result: StudyResult, x: str, y: str) -> list[Fitted]:
    """Fit one law per combination of labels of the axes on which x does not depend, through the points of all seeds."""
    across, upward = find_figure(x), find_figure(y)
    apart = [axis for axis in axis_labels(result) if not depends(result, x, axis)]
    groups: dict[str, list[tuple[float, float]]] = {}
    for cell in cell_labels(result):
        xs, ys = find_values(result.rows, cell, x), find_values(result.rows, cell, y)
        label = ", ".join(cell[axis] for axis in apart)
        points = [(xs[seed] * across.scale, ys[seed] * upward.scale) for seed in sorted(xs.keys() & ys.keys())]
        groups.setdefault(label, []).extend(points)
    fitted = []
    for label, points in groups.items():
        if points:
            xs_, ys_ = [a for a, _ in points], [b for _, b in points]
            fitted.append(Fitted(label, xs_, ys_, fit_law(xs_, ys_)))
    return fitted


def depends(result: StudyResult, figure: str, axis: str) -> bool:
    """Return whether the metric changes along the axis with all other labels fixed."""
    found: dict[tuple[str, ...], set[float]] = {}
    for row in result.rows:
        if figure in row.figures:
            key = (*(label for name, label in row.cell.items() if name != axis), str(row.seed))
            found.setdefault(key, set()).add(row.figures[figure])
    return any(len(values) > 1 for values in found.values())


def draw_fit(result: StudyResult, plot: Plot, name: str) -> Picture | None:
    """Draw every seed as a dot, and the fitted law."""
    if plot.x is None or plot.y is None or not (groups := fit_groups(result, plot.x, plot.y)):
        return None
    across, upward = find_figure(plot.x), find_figure(plot.y)
    drawing, (axes,) = new_drawing(3.6)
    axes.set_xscale("log")
    ends = []
    for at, group in enumerate(groups):
        tint = PALETTE[1 + at % (len(PALETTE) - 1)]
        axes.plot(group.x, group.y, "o", markersize=5, color=tint, alpha=0.75, markeredgewidth=0)
        last = group.y[-1]
        if group.law:
            x = np.geomspace(min(group.x), max(group.x), POINTS)
            axes.plot(x, group.law(x), color=tint)
            last = float(group.law(x)[-1])
        ends.append((last, group.label, tint))
    axes.set_title(plot.title or column_title(upward, heading=True))
    axes.set_xlabel(column_title(across))
    axes.grid(axis="x", visible=False)
    axes.spines["left"].set_visible(False)
    spread_ticks(axes.xaxis, [value for group in groups for value in group.x])
    if len(groups) > 1:
        label_ends(axes, ends)
    listing = " ".join(describe_law(group, upward.title, across.title) for group in groups)
    caption = f"{upward.heading} against {across.title}: one dot per seed, and the power law fitted by least squares."
    return finish(drawing, name, f"{upward.heading} against {across.title}. {listing}", caption)


def scale_axis(axes: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """Use a logarithmic scale if the largest value is more than ten times the smallest."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if min(values) > 0 and max(values) / min(values) > 10:
        axes.set(**{f"{which}scale": "log"})
        spread_ticks(axis, values)
    else:
        thousands(axis)


def spread_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Set ticks at 1, 2 and 5 of each power of ten: with powers of ten only, a short logarithmic axis has too few."""
    from matplotlib.ticker import NullFormatter

    low, high = min(values) / 1.1, max(values) * 1.1
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    axis.set_ticks([step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high])
    axis.set_minor_formatter(NullFormatter())
    thousands(axis)


def describe_law(group: Fitted, upward: str, across: str) -> str:
    begin = f"{group.label}: " if group.label else ""
    if group.law is None:
        return f"{begin}no law: {upward} must fall over at least three different values of {across}."
    law = group.law
    return f"{begin}{fixed(law.floor, 3)} + {fixed(law.scale, 3)} · x^−{fixed(law.exponent, 3)}."
