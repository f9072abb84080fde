"""The plot style of all reports, and conversion of drawings to SVG and PNG.

Owns: colours, fonts, the frame of a drawing, direct labels, and SVG and PNG output. Does not own: what is drawn
(`studies.study_plots`, `run_plots`).

In the SVG, colours are variables (`var(--c1)`) that the page's style sheet sets for light mode, dark mode and print.
Text stays text: it can be searched, copied and read aloud, and uses the page's font. Matplotlib lays out with DejaVu
Sans, which is wider than page fonts, so labels do not overlap. The PNG has its own font and colours. Both are
deterministic.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lilliput.reports.document import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, LINE = "#1f2328", "#57606a", "#d8dee4"
# In this order, distinguishable with all three kinds of colour blindness, and dark enough for text on white. The first, a
# grey, is for the reference.
PALETTE = (SOFT, "#0068a5", "#c04a00", "#007a58", "#a0408a", "#8a6100", "#3a7fb0", "#7a4b2a")
NAMES = {colour: f"--c{n}" for n, colour in enumerate(PALETTE)} | {INK: "--ink", SOFT: "--soft", LINE: "--line"}
WIDTH = 6.0  # inches: at a page width of 35rem, text is about as large as captions
LETTER = 0.56  # average letter width of DejaVu Sans, relative to the font size
Box = tuple[float, ...]  # x0, y0, x1, y1
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "lilliput",
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style to everything drawn inside, independently of the user's matplotlibrc."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_drawing(height: float, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return axes side by side with a shared y axis. Without pyplot: no global state, no window, no backend."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = drawing.subplots(1, columns, sharey=True, squeeze=False)
    return drawing, list(axes[0])


def finish(drawing: Figure, name: str, alt: str, caption: str, paper: bool = False) -> Picture:
    """Convert a drawing to a `Picture`. `paper`: keep a white background in dark mode too, for colours of another
    style.
    """
    if drawing.get_layout_engine():  # once for both formats: layout takes longer than drawing
        drawing.draw_without_rendering()
        drawing.set_layout_engine("none")
    return Picture(name, svg_of(drawing, name, paper), png_of(drawing), alt, caption)


def png_of(drawing: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    drawing.set_dpi(180)
    # `savefig` would draw everything twice.
    FigureCanvasAgg(drawing).print_png(buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def svg_of(drawing: Figure, name: str, paper: bool) -> str:
    """Return SVG to embed in HTML: no declaration, metadata or namespaces, and ids that are unique to this picture."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    drawing.patch.set_visible(paper)
    canvas = FigureCanvasSVG(drawing)
    canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    drawing.patch.set_visible(True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text))
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\1{name}-", text)
    for colour, variable in NAMES.items():
        text = text.replace(colour, f"var({variable})")
    return text.strip()


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], size: float = 9.5) -> None:
    """Draw labels (y, text, colour) to the right of the axes, moved apart if they would overlap."""
    low, high = axes.get_ylim()
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    height = drawing.get_size_inches()[1] * 72 * 0.75  # approximate height of the axes
    step = 1.25 * size / height
    wanted = sorted(((min(max((y - low) / (high - low), 0.0), 1.0), text, colour) for y, text, colour in ends))
    places = spread_apart([place for place, _, _ in wanted], step)
    for place, (_, text, colour) in zip(places, wanted, strict=True):
        axes.text(1.015, place, text, transform=axes.transAxes, color=colour, size=size, va="center", clip_on=False)


def spread_apart(places: Sequence[float], step: float) -> list[float]:
    """Move ascending positions at least a step apart; each touching group is centred on the mean of its members."""
    groups: list[tuple[float, int]] = []  # middle, members
    for place in places:
        middle, count = place, 1
        while groups and groups[-1][0] + step * groups[-1][1] / 2 > middle - step * count / 2:
            before, members = groups.pop()
            middle, count = (before * members + middle * count) / (members + count), members + count
        groups.append((middle, count))
    return [middle + step * (at - (count - 1) / 2) for middle, count in groups for at in range(count)]


def label_points(
    axes: Axes, points: Sequence[tuple[float, float, str, str]], lines: Sequence[Box] = (), size: float = 9.5
) -> None:
    """Label points (x, y, text, colour) where the labels cover the least of points, lines and earlier labels.

    A label is at a corner of its point or, connected by a thin line, a few label heights above or below. `lines` are
    boxes (x0, y0, x1, y1).
    """
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    drawing.draw_without_rendering()  # computes the layout

    def to_points(x: float, y: float) -> tuple[float, float]:
        across, upward = axes.transData.transform((x, y))
        return float(across) * 72 / drawing.dpi, float(upward) * 72 / drawing.dpi

    at = [to_points(x, y) for x, y, _, _ in points]
    frame = axes.get_window_extent()
    borders = tuple(float(value) * 72 / drawing.dpi for value in (frame.x0, frame.y0, frame.x1, frame.y1))
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    for x0, y0, x1, y1 in lines:
        (left, low), (right, high) = to_points(x0, y0), to_points(x1, y1)
        taken.append((left - 1, low - 1, right + 1, high + 1))
    for (x, y), point in zip(at, points, strict=True):
        _, _, text, colour = point
        width, gap = LETTER * size * len(text), 5.0
        sides = [
            (right * gap, up * rise, "left" if right > 0 else "right", "bottom" if up > 0 else "top", box)
            for rise in (gap, *(gap + 1.4 * size * farther for farther in range(1, 6)))
            for right, up in ((1, 1), (1, -1), (-1, 1), (-1, -1))
            for box in [corner_box(x + right * gap, y + up * rise, right * width, up * size)]
        ]
        best = min(sides, key=lambda side: sum(overlap(side[4], other) for other in taken) + outside(side[4], borders))
        taken.append(best[4])
        corner = (0.0 if best[0] > 0 else 1.0, 0.0 if best[1] > 0 else 1.0)  # of the label, next to its point
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            text,
            point[:2],
            xytext=best[:2],
            textcoords="offset points",
            ha=best[2],
            va=best[3],
            color=colour,
            size=size,
            annotation_clip=False,
            arrowprops=line | {"relpos": corner} if abs(best[1]) > gap else None,
        )


def corner_box(x: float, y: float, width: float, height: float) -> Box:
    """Return a box from a corner; width and height may be negative."""
    return min(x, x + width), min(y, y + height), max(x, x + width), max(y, y + height)


def overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def outside(box: Box, frame: Box) -> float:
    """Return the area of a box that is outside the frame."""
    return (box[2] - box[0]) * (box[3] - box[1]) - overlap(box, frame)


def frame_upward(axes: Axes, title: str) -> None:
    """Put the name of the y axis above the plot, with horizontal grid lines only."""
    axes.set_title(title)
    axes.grid(axis="x", visible=False)
    axes.spines["left"].set_visible(False)


def thousands(axis: Any) -> None:
    """Format ticks as 1,000 instead of 1000, with few digits."""
    from matplotlib.ticker import FuncFormatter

    def format_tick(value: float, place: object) -> str:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return text.replace("-", "−")

    axis.set_major_formatter(FuncFormatter(format_tick))
