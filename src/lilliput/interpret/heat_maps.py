"""AttentionMaps as pictures for paper and slides.

Owns: the heat map of a head, the grid of a layer's heads, their colours and labels. Does not own: the page,
which has its own drawing (`attention_page`), or which heads (`attention_capture`). The colours are those of
the page: white to blue by the root of the weight, so that small weights are seen, on one scale from 0 to 1
for all heads; what may not be seen is sand, padding dark.
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
UNSEEN, PADDING, WRITING, INK, SOFT = "#e8e5dd", "#4a4f57", "#c2570c", "#22262b", "#6b7178"
FONT = "DejaVu Sans Mono"  # which comes with matplotlib, so that a picture is the same everywhere
WIDTH = 0.602  # of each of its letters, in parts of its size
LARGE, SMALL = 11.0, 7.5  # points: of the title, and of the notes
LETTERS = 12  # of a label; longer ones end in …
READABLE = 64  # tokens from which on not every one has a label
CELL, SMALLEST, LARGEST = 0.16, 2.2, 9.0  # inches: of a token with its label, and of a map
EDGE, SCALE = 0.25, 0.9  # inches: around everything, and of the scale of colours


def draw_layer(attention: AttentionMaps, layer: int) -> Figure:
    """All heads of a layer side by side, at most four in a row."""
    return draw_heads(attention, layer, attention.head_numbers(attention.layer_numbers.index(layer)))


def draw_heads(attention: AttentionMaps, layer: int, heads: Sequence[int]) -> Figure:
    """Some heads, by the numbers that they and their layer have in the model."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    place = attention.layer_numbers.index(layer)
    columns = min(4, math.ceil(math.sqrt(len(heads))))
    rows = math.ceil(len(heads) / columns)
    ticks = choose_ticks(attention.labels, LARGEST if len(heads) == 1 else LARGEST / 2)
    wide, high = ticks.side + ticks.margin + EDGE, ticks.side + ticks.margin + EDGE + 0.2
    # Laid out by hand: all sizes are known, and to let matplotlib find them takes 1.6 to 2 times as long as drawing.
    width = columns * wide + SCALE + EDGE
    lines = textwrap.wrap(notes(attention), letters_in(width - 2 * EDGE, SMALL))
    foot = 0.4 + 0.15 * len(lines)
    size = (width, rows * high + foot + 0.35)
    # "$" in a token is a dollar, not the beginning of mathematics.
    with rc_context({"text.parse_math": False, "font.family": FONT}):
        figure = Figure(figsize=size)
        title = short(attention.title, letters_in(width - 2 * EDGE, LARGE))
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
        figure.text(EDGE / size[0], 0.17 / size[1], "\n".join(lines), fontsize=SMALL, color=SOFT, va="bottom")
    return figure


class Ticks(NamedTuple):
    """Which tokens have a label, how large, and the inches of a map and of the labels beside it."""

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
    texts = [short(labels[one]) if every == 1 else f"{one} {short(labels[one])}" for one in at]
    size = min(8.0, max(4.0, 0.8 * 72 * side / count)) if every == 1 else 6.0
    return Ticks(at, texts, size, side, 0.12 + max(map(len, texts)) * WIDTH * size / 72)


def draw_map(
    axis: Axes, attention: AttentionMaps, weights: NDArray[np.floating[Any]], mask: NDArray[np.bool_], ticks: Ticks
) -> AxesImage:
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, PowerNorm

    blind = np.zeros(mask.shape)
    if attention.padding is not None:
        blind[attention.padding, :] = blind[:, attention.padding] = 1.0
    axis.imshow(blind, cmap=ListedColormap([UNSEEN, PADDING]), vmin=0, vmax=1, interpolation="nearest")
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
    """Where the model's own writing begins, and on which sides the text goes on unseen."""
    if attention.prompt is not None:
        for line in (axis.axhline, axis.axvline):
            line(attention.prompt - 0.5, color=WRITING, linewidth=0.8, linestyle=(0, (4, 3)))
    end = len(attention.tokens) - 0.5
    for unseen, border in ((attention.before, -0.5), (attention.after, end)):
        if unseen:
            axis.plot([-0.5, end], [border, border], color=WRITING, linewidth=2.0, clip_on=False)
            axis.plot([border, border], [-0.5, end], color=WRITING, linewidth=2.0, clip_on=False)


def add_scale(figure: Figure, axis: Axes, image: AxesImage) -> None:
    shares = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0]
    bar = figure.colorbar(image, cax=axis, ticks=shares)
    axis.set_yticklabels([f"{share:.0%}" for share in shares], fontsize=7, color=INK)
    axis.tick_params(length=2, color="#9a9c9f")
    bar.outline.set_visible(False)


def notes(attention: AttentionMaps) -> str:
    """In words, what there is to see besides the weights."""
    found = ["rows look, columns are looked at; sand: may not be seen"]
    if attention.padding is not None:
        found.append("dark: padding")
    if attention.prompt is not None:
        found.append("dashed: the model's own writing begins")
    for unseen, where in ((attention.before, "before"), (attention.after, "after")):
        if unseen:
            found.append(f"orange edge: cut; tokens {where} it that were not seen: {len(unseen):,}")
    return "; ".join(found)


def letters_in(inches: float, size: float) -> int:
    return int(72 * inches / (size * WIDTH))


def short(text: str, letters: int = LETTERS) -> str:
    """In letters that the font has, and no longer than that."""
    known = "".join(one if ord(one) in letters_of_font() else "□" for one in text)
    return known if len(known) <= letters else f"{known[: letters - 1]}…"


@cache
def letters_of_font() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(FONT)).get_charmap())
