"""Heat maps of attention weights as figures.

Owns: the heat map of a head, the grid of a layer's heads, their colours and labels. Does not own: the page, which draws its
own (`attention_page`), or the selection of heads (`attention_capture`). The colours are those of the page: white to blue by
the square root of the weight, so that small weights are visible, from 0 to 1 for all heads; masked cells are beige, padding
is dark.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lilliput.interpret.attention_maps import AttentionMaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

STOPS = ("#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08285e")
UNSEEN, PADDING, ACCENT, INK, GREY = "#e8e5dd", "#4a4f57", "#c2570c", "#22262b", "#6b7178"
FONT = "DejaVu Sans Mono"  # included in matplotlib, so that a figure is the same on every machine
WIDTH = 0.602  # of each character, relative to the font size
LARGE, SMALL = 11.0, 7.5  # points: title, notes
LABEL_LENGTH = 12  # characters; longer labels end in …
READABLE = 64  # above this number of tokens only some have a label
CELL, SMALLEST, LARGEST = 0.16, 2.2, 9.0  # inches: a token with its label, and the limits of a map
EDGE, SCALE = 0.25, 0.9  # inches: the margin, and the colour scale


def draw_layer(attention: AttentionMaps, layer: int) -> Figure:
    """Draw all heads of a layer, at most four per row."""
    return draw_heads(attention, layer, attention.head_numbers(attention.layer_numbers.index(layer)))


def draw_heads(attention: AttentionMaps, layer: int, heads: Sequence[int]) -> Figure:
    """Draw some heads of a layer; both are numbered as in the model."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    place = attention.layer_numbers.index(layer)
    columns = min(4, math.ceil(math.sqrt(len(heads))))
    rows = math.ceil(len(heads) / columns)
    ticks = choose_ticks(attention.labels, LARGEST if len(heads) == 1 else LARGEST / 2)
    wide, high = ticks.side + ticks.margin + EDGE, ticks.side + ticks.margin + EDGE + 0.2
    # Explicit layout: all sizes are known, and matplotlib's automatic layout takes 1.6 to 2 times as long as drawing.
    width = columns * wide + SCALE + EDGE
    lines = textwrap.wrap(notes(attention), characters_in(width - 2 * EDGE, SMALL))
    foot = 0.4 + 0.15 * len(lines)
    size = (width, rows * high + foot + 0.35)
    # "$" in a token must not start a formula.
    with rc_context({"text.parse_math": False, "font.family": FONT}):
        figure = Figure(figsize=size)
        title = shorten(attention.title, characters_in(width - 2 * EDGE, LARGE))
        figure.text(EDGE / size[0], 1 - 0.35 / size[1], title, fontsize=LARGE, color=INK)
        for number, head in enumerate(heads):
            left = EDGE + number % columns * wide + ticks.margin
            bottom = foot + (rows - 1 - number // columns) * high
            box = (left / size[0], bottom / size[1], ticks.side / size[0], ticks.side / size[1])
            axis = figure.add_axes(box)
            weights = attention.weights[place][attention.head_numbers(place).index(head)]
            image = draw_map(axis, attention, weights, attention.mask(place), ticks)
            above = bottom + ticks.side + ticks.margin - 0.02
            figure.text(left / size[0], above / size[1], f"layer {layer}, head {head}", fontsize=9, color=INK)
        tall = min(3.0, ticks.side)
        top = foot + (rows - 1) * high + ticks.side - tall
        box = ((size[0] - SCALE + 0.05) / size[0], top / size[1], 0.14 / size[0], tall / size[1])
        add_scale(figure, figure.add_axes(box), image)
        figure.text(EDGE / size[0], 0.17 / size[1], "\n".join(lines), fontsize=SMALL, color=GREY, va="bottom")
    return figure


class Ticks(NamedTuple):
    """The labelled tokens, the font size, and the inches of a map and of its labels."""

    at: list[int]
    texts: list[str]
    size: float
    side: float
    margin: float


def choose_ticks(labels: Sequence[str], largest: float) -> Ticks:
    count = len(labels)
    every = 1 if count <= READABLE else 10 * math.ceil(count / 200)
    at = list(range(0, count, every))
    side = min(largest, max(SMALLEST, CELL * count))
    texts = [shorten(labels[one]) if every == 1 else f"{one} {shorten(labels[one])}" for one in at]
    size = min(8.0, max(4.0, 0.8 * 72 * side / count)) if every == 1 else 6.0
    return Ticks(at, texts, size, side, 0.12 + max(map(len, texts)) * WIDTH * size / 72)


def draw_map(
    axis: Axes, attention: AttentionMaps, weights: NDArray[np.floating[Any]], mask: NDArray[np.bool_], ticks: Ticks
) -> AxesImage:
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm

    background = np.zeros(mask.shape)
    if attention.padding is not None:
        background[attention.padding, :] = background[:, attention.padding] = 1.0
    axis.imshow(background, cmap=ListedColormap([UNSEEN, PADDING]), vmin=0, vmax=1, interpolation="nearest")
    shown = np.ma.masked_array(weights, ~mask)
    colours = LinearSegmentedColormap.from_list("attention", STOPS)
    image = axis.imshow(shown, cmap=colours, norm=PowerNorm(0.5, 0.0, 1.0), interpolation="nearest")
    axis.set_xticks(ticks.at, ticks.texts, rotation=90, fontsize=ticks.size)
    axis.set_yticks(ticks.at, ticks.texts, fontsize=ticks.size)
    axis.xaxis.tick_top()
    axis.tick_params(length=0 if len(ticks.at) == len(mask) else 2, pad=2, color="#9a9c9f", labelcolor=INK)
    axis.spines[:].set_visible(False)
    mark_borders(axis, attention)
    return image


def mark_borders(axis: Axes, attention: AttentionMaps) -> None:
    """Draw where generated text begins, and the sides on which the text is truncated."""
    if attention.prompt is not None:
        for line in (axis.axhline, axis.axvline):
            line(attention.prompt - 0.5, color=ACCENT, linewidth=0.8, linestyle=(0, (4, 3)))
    end = len(attention.tokens) - 0.5
    for unread, border in ((attention.before, -0.5), (attention.after, end)):
        if unread:
            axis.plot([-0.5, end], [border, border], color=ACCENT, linewidth=2.0, clip_on=False)
            axis.plot([border, border], [-0.5, end], color=ACCENT, linewidth=2.0, clip_on=False)


def add_scale(figure: Figure, axis: Axes, image: AxesImage) -> None:
    shares = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0]
    bar = figure.colorbar(image, cax=axis, ticks=shares)
    axis.set_yticklabels([f"{share:.0%}" for share in shares], fontsize=7, color=INK)
    axis.tick_params(length=2, color="#9a9c9f")
    bar.outline.set_visible(False)


def notes(attention: AttentionMaps) -> str:
    """Return the legend: everything in the figure except the weights."""
    parts = ["rows: queries; columns: keys; beige: masked"]
    if attention.padding is not None:
        parts.append("dark: padding")
    if attention.prompt is not None:
        parts.append("dashed: generated text begins")
    for unread, where in ((attention.before, "before"), (attention.after, "after")):
        if unread:
            parts.append(f"orange edge: truncated, {len(unread):,} tokens {where} it were not read")
    return "; ".join(parts)


def characters_in(inches: float, size: float) -> int:
    return int(72 * inches / (size * WIDTH))


def shorten(text: str, length: int = LABEL_LENGTH) -> str:
    """Truncate a text, and replace characters that the font does not have by □."""
    known = "".join(one if ord(one) in characters_of_font() else "□" for one in text)
    return known if len(known) <= length else f"{known[: length - 1]}…"


def missing_characters(labels: Sequence[str]) -> str:
    """Return the first characters of labels that the font does not have; empty if it has all."""
    text = "".join(labels)
    return "".join(dict.fromkeys(one for one in text if ord(one) not in characters_of_font()))[:LABEL_LENGTH]


@cache
def characters_of_font() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(FONT)).get_charmap())
