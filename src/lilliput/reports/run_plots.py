"""Plots of one run from its log: loss, perplexity, accuracy, learning rate, gradient norm and speed.

Owns: the content of each plot. Does not own: the style (`plot_style`), or the place of plots (`run_report`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.reports.curves import Curve, clipped_note, running_mean, visible_height
from lilliput.reports.document import Picture
from lilliput.reports.plot_style import (
    INK,
    PALETTE,
    SOFT,
    finish,
    frame_upward,
    label_ends,
    new_drawing,
    styled,
    thousands,
)
from lilliput.reports.run_history import run_history
from lilliput.storage.run_folders import best_validation

Events = Sequence[dict[str, Any]]
FEWEST = 3  # points in a curve


def draw_run(events: Events) -> list[Picture]:
    """Return the plots that the log has enough values for; an empty list for a run that has just started."""
    steps = [event for event in events if event["event"] == "step"]
    if len(steps) < FEWEST:
        return []
    with styled():
        found = [
            draw_loss(events, steps),
            draw_history(events, "perplexity", "Perplexity", "Perplexity"),
            draw_history(events, "accuracy", "Accuracy, %", "Accuracy", scale=100),
            draw_single(steps, "lr", "Learning rate", "learning-rate", "Learning rate of each logged step."),
            draw_single(
                steps,
                "gradient_norm",
                "Gradient norm",
                "gradient",
                "Gradient norm before clipping (thin line: logged steps; thick line: running mean).",
                smooth=True,
            ),
            draw_single(
                steps,
                "tokens_per_second",
                "Training speed, tokens/s",
                "speed",
                "Training speed on this machine (thin line: logged steps; thick line: running mean).",
                smooth=True,
            ),
        ]
    return [picture for picture in found if picture]


def draw_loss(events: Events, steps: Events) -> Picture:
    """Plot training and validation loss, and the floor if it is known."""
    drawing, (axes,) = new_drawing(3.0)
    at, loss = column(steps, "step"), column(steps, "loss")
    smooth = running_mean(loss)
    axes.plot(at, loss, color=PALETTE[1], alpha=0.25, linewidth=1.0)
    axes.plot(at, smooth, color=PALETTE[1])
    ends = [(float(smooth[-1]), "training", PALETTE[1])]
    drawn, seen = [Curve(at, loss)], [Curve(at, smooth)]
    description = f"training loss falls from {loss[0]:.3f} to {smooth[-1]:.3f}"
    evaluations = [event for event in events if event["event"] == "evaluation" and not event["whole"]]
    if evaluations:
        where, values = column(evaluations, "step"), column(evaluations, "loss")
        axes.plot(where, values, color=PALETTE[2], marker="o", markersize=4, markeredgewidth=0)
        ends.append((float(values[-1]), "validation", PALETTE[2]))
        description += f", validation loss from {values[0]:.3f} to {values[-1]:.3f}"
        drawn.append(Curve(where, values))
        seen += [Curve(where, values)] if len(evaluations) >= FEWEST else []
    floor = floor_in_nats(events)
    if floor is not None:
        axes.axhline(floor, color=SOFT, linewidth=1.2, linestyle=(0, (4, 3)))
        ends.append((floor, "floor", SOFT))
        description += f"; the floor is {floor:.3f}"
    lowest = min(value for value, _, _ in ends)
    top = visible_height(seen)
    edge = top + 0.02 * (top - lowest)
    axes.set_ylim(min(lowest, float(smooth.min())) - 0.06 * (top - lowest), edge)
    axes.set_xlabel("steps")
    frame_upward(axes, "Loss, nats/token" if predicts_tokens(events) else "Loss, nats/document")
    thousands(axes.xaxis)
    label_ends(axes, ends)
    caption = "Training loss (thin line: logged batches; thick line: running mean over 5% of the steps)"
    caption += " and loss on the fixed validation sample" if evaluations else ""
    caption += ". The floor is the loss of a perfect model of this corpus" if floor is not None else ""
    return finish(drawing, "loss", f"The {description}.", f"{caption}.{clipped_note(drawn, edge)}")


def draw_history(events: Events, metric: str, title: str, name: str, scale: float = 1.0) -> Picture | None:
    """Plot a metric of validation, and of the training sample and test sets if they were evaluated, against steps and epochs."""
    rows = run_history(events)
    curves = {
        key.removesuffix(f".{metric}"): [(row["step"], row[key]) for row in rows if row[key] is not None]
        for key in (rows[0] if rows else {})
        if key.endswith(f".{metric}")
    }
    curves = {split: points for split, points in curves.items() if len(points) >= FEWEST}
    if not curves:
        return None
    drawing, (axes,) = new_drawing(3.2)
    ends, described, drawn = [], [], []
    for colour, (split, points) in zip(PALETTE[1:], curves.items(), strict=False):
        at, values = np.array(points, np.float64).T
        axes.plot(at, scale * values, color=colour, marker="o", markersize=3.5, markeredgewidth=0)
        ends.append((scale * float(values[-1]), split, colour))
        drawn.append(Curve(at, scale * values))
        described.append(f"{split} from {scale * values[0]:.4g} to {scale * values[-1]:.4g}")
    edge = np.inf
    if metric == "perplexity":  # of a new model it is far above all later values
        edge = 1.3 * max(float(curve.y[len(curve.y) // 2 :].max()) for curve in drawn)
        axes.set_ylim(0, edge)
    axes.set_xlabel("steps")
    frame_upward(axes, title)
    thousands(axes.xaxis)
    thousands(axes.yaxis)
    add_epochs(axes, rows)
    label_ends(axes, ends)
    sample = "; validation: the fixed validation sample" if "validation" in curves else ""
    caption = f"{name} at the evaluations during training{sample}.{clipped_note(drawn, edge)}"
    return finish(drawing, metric, f"{name}: {', '.join(described)}.", caption)


def add_epochs(axes: Any, rows: Sequence[dict[str, float | None]]) -> None:
    """Add an axis of epochs above the plot, if the log has them."""
    last = rows[-1]
    if not last.get("epoch") or not last["step"]:
        return
    per_step = (last["epoch"] or 0.0) / last["step"]
    above = axes.secondary_xaxis("top", functions=(lambda step: step * per_step, lambda epoch: epoch / per_step))
    above.set_xlabel("epochs")
    thousands(above.xaxis)


def draw_single(
    steps: Events, name: str, title: str, picture: str, caption: str, smooth: bool = False
) -> Picture | None:
    """Plot one metric of the logged steps."""
    known = [event for event in steps if event.get(name) is not None]
    if len(known) < FEWEST:
        return None
    drawing, (axes,) = new_drawing(3.0)
    at, values = column(known, "step"), column(known, name)
    if smooth:
        axes.plot(at, values, color=INK, alpha=0.2, linewidth=1.0)
    axes.plot(at, running_mean(values) if smooth else values, color=INK, linewidth=1.5)
    axes.set_ylim(0, float(np.quantile(values, 0.98)) * 1.15 or 1.0)  # ignores single spikes
    axes.set_xlabel("steps")
    frame_upward(axes, title)
    thousands(axes.xaxis)
    thousands(axes.yaxis)
    alt = f"{title}: from {values[0]:.4g} to {values[-1]:.4g}, at most {values.max():.4g}."
    return finish(drawing, picture, alt, caption)


def floor_in_nats(events: Events) -> float | None:
    """Return the floor, which is logged in bits per byte, in the unit of the loss."""
    found = best_validation(list(events))
    if not found or not found["floor"] or not found["bits_per_byte"]:
        return None
    return float(found["floor"] / found["bits_per_byte"] * found["loss"])


def predicts_tokens(events: Events) -> bool:
    """Return whether the loss is per token; the loss of a classifier has no perplexity."""
    return any(event.get("perplexity") is not None for event in events if event["event"] == "evaluation")


def column(events: Events, name: str) -> NDArray[np.float64]:
    return np.array([event[name] for event in events], np.float64)
