"""Loss curves of a study: one line per cell, the mean over seeds, with a band from the lowest to the highest seed.

Owns: reading losses from the logs of the runs, combining seeds, drawing. Does not own: which curves a study has
(`study_plots`), the style (`reports.plot_style`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lilliput.reports.curves import Curve, clipped_note, running_mean, visible_height
from lilliput.reports.document import Picture
from lilliput.reports.formatting import capital
from lilliput.reports.plot_style import PALETTE, finish, frame_upward, label_ends, new_drawing, thousands
from lilliput.storage.run_folders import RunFolder
from lilliput.studies.comparison import Labels, axis_labels, cell_labels, reference_labels
from lilliput.studies.grid import budget_of, cells
from lilliput.studies.study_metrics import UNITS_OF_METRICS
from lilliput.studies.study_results import StudyResult
from lilliput.studies.study_verdict import name_cell

PANELS = 3  # at most
POINTS = 200  # per curve
FEWEST = 3  # points of a curve that is drawn
UNITS = {
    "steps": "steps",
    "micro-batches": "micro-batches",
    "tokens": "million tokens",
    "minutes": "minutes of training",
    "epochs": "million tokens",
    "flops": "million tokens",
}
Numbers = NDArray[np.float64]


class Band(NamedTuple):
    """The mean, lowest and highest loss over the seeds of one cell."""

    cell: Labels
    x: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


def draw_curves(
    result: StudyResult, name: str, training: bool, title: str | None = None, along: str | None = None
) -> Picture | None:
    """Draw the training or validation loss against the metric `along`, by default the unit of the budget; return None if too
    little was logged."""
    unit = UNITS_OF_METRICS[along] if along else budget_of(cells(result.study)[0])[0]
    bands = [band for cell in distinct_cells(result) if (band := read_band(result, cell, training, unit))]
    if not bands:
        return None
    panels = split_panels(result, bands)
    drawing, all_axes = new_drawing(3.5, len(panels))
    colour = colours(result)
    top, bottom = (
        visible_height([Curve(band.x, band.high) for band in bands]),
        min(float(band.low.min()) for band in bands),
    )
    for axes, (heading, members) in zip(all_axes, panels, strict=True):
        ends = []
        for band, label in members:
            tint = colour[name_cell(band.cell)]
            axes.fill_between(band.x, band.low, band.high, color=tint, alpha=0.18, linewidth=0)
            axes.plot(band.x, band.mean, color=tint)
            ends.append((float(band.mean[-1]), label, tint))
        axes.set_ylim(bottom - 0.04 * (top - bottom), top)
        axes.set_xlabel(UNITS[unit])
        frame_upward(axes, heading)
        thousands(axes.xaxis)
        label_ends(axes, ends)
    loss = "training loss" if training else "validation loss"
    drawing.suptitle(title or f"{capital(loss)}, nats/token", x=0.01, horizontalalignment="left", size=11)
    listing = "; ".join(f"{name_cell(band.cell)} ends at {band.mean[-1]:.3f}" for band in bands)
    manner = "running mean over 5% of the run" if training else "on the sample evaluated during training"
    seeds = "; line: mean over seeds, band: lowest to highest seed" if len(result.study.seeds) > 1 else ""
    drawn = [Curve(band.x, band.high) for _, members in panels for band, _ in members]
    caption = f"{capital(loss)}, {manner}{seeds}.{clipped_note(drawn, top)}"
    caption += f" {len(drawn)} of {len(bands)} curves are drawn." if len(drawn) < len(bands) else ""
    return finish(drawing, name, f"Curves of the {loss} by {UNITS[unit]}: {listing}.", caption)


def colours(result: StudyResult) -> dict[str, str]:
    """Return the colour of each cell by its name: one per label of the axis with most labels, grey for the reference."""
    axes = axis_labels(result)
    if not axes:
        return {name_cell({}): PALETTE[0]}
    axis = max(axes, key=lambda one: len(axes[one]))
    origin = reference_labels(result)[axis]
    others = [label for label in axes[axis] if label != origin]
    tints = {origin: PALETTE[0]} | {label: PALETTE[1 + at % (len(PALETTE) - 1)] for at, label in enumerate(others)}
    return {name_cell(cell): tints[cell[axis]] for cell in cell_labels(result)}


def distinct_cells(result: StudyResult) -> list[Labels]:
    """Return one cell per set of runs: cells that differ only in generation or measurement share their runs."""
    seen: set[str] = set()
    found = []
    for cell in cell_labels(result):
        runs = {row.run for row in result.rows if row.cell == cell}
        if not runs <= seen:
            found.append(cell)
        seen |= runs
    return found


def split_panels(result: StudyResult, bands: Sequence[Band]) -> list[tuple[str, list[tuple[Band, str]]]]:
    """Return the bands with their labels: in one panel, or, with several axes, in one panel per label of the axis with the
    fewest labels."""
    axes = {axis: labels for axis, labels in axis_labels(result).items() if len(labels) > 1}
    if len(axes) < 2:
        return [("", [(band, name_cell(band.cell)) for band in bands])]
    apart = min(axes, key=lambda axis: len(axes[axis]))
    panels = []
    for label in axes[apart][:PANELS]:
        members = [band for band in bands if band.cell[apart] == label]
        names = [name_cell({axis: one for axis, one in band.cell.items() if axis != apart}) for band in members]
        panels.append((label, list(zip(members, names, strict=True))))
    return [panel for panel in panels if panel[1]]


def read_band(result: StudyResult, cell: Labels, training: bool, unit: str) -> Band | None:
    """Combine the curves of all seeds over their common range."""
    runs = [row.run for row in result.rows if row.cell == cell]
    curves = [curve for run in runs if (curve := read_curve(result, run, training, unit))]
    if not curves:
        return None
    start, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.linspace(start, end, POINTS) if training else np.unique(np.clip(curves[0].x, start, end))
    values = np.stack([np.interp(x, at, running_mean(y) if training else y) for at, y in curves])
    return Band(cell, x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def read_curve(result: StudyResult, run: str, training: bool, unit: str) -> Curve | None:
    """Return the loss of one run by this unit; None if there are too few points."""
    events = result.curve(run)
    steps = [event for event in events if event["event"] == "step"]
    evaluations = [event for event in events if event["event"] == "evaluation" and not event["whole"]]
    if len(steps) < FEWEST or (not training and len(evaluations) < FEWEST):
        return None
    at = np.array([event["step"] for event in steps], np.float64)
    if unit == "steps":
        passed = at
    elif unit == "micro-batches":
        passed = at * RunFolder(result.folder / run).config()["train"]["accumulate"]
    elif unit == "minutes":
        passed = np.array([event["seconds"] for event in steps]) / 60
    else:
        passed = np.array([event["tokens"] for event in steps]) / 1e6
    if training:
        return Curve(passed, np.array([event["loss"] for event in steps]))
    return Curve(
        np.interp([event["step"] for event in evaluations], at, passed),
        np.array([event["loss"] for event in evaluations]),
    )
