"""Plots of a study: choice, alternative texts, curves against NumPy, and reproducible bytes."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Annotation, Text
from PIL import Image

from helpers.study_results import make_result, make_study, windows
from lilliput.reports.curves import Curve, clipped_note, running_mean, visible_height
from lilliput.reports.document import Picture
from lilliput.reports.plot_style import INK, PALETTE, label_points, new_drawing, overlap, spread_apart, styled
from lilliput.studies.comparison import summarise
from lilliput.studies.study_curves import distinct_cells, read_band
from lilliput.studies.study_files import Plot
from lilliput.studies.study_metrics import find_figure
from lilliput.studies.study_plots import choose_plots, depends, draw_study, ends_of, fit_groups
from lilliput.studies.study_results import Row, StudyResult


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return windows(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def pictures(result: StudyResult) -> list[Picture]:
    return draw_study(result)


def sizes() -> StudyResult:
    """A study whose loss is a power law of the parameters, for two budgets."""
    study = make_study(
        {"size": {"s": {}, "m": {}, "l": {}, "xl": {}}, "budget": {"short": {}, "long": {}}},
        show=("validation.loss",),
        plots=(Plot("fit", x="parameters", y="validation.loss"),),
    )
    millions = {"s": 0.1, "m": 0.5, "l": 2.0, "xl": 9.0}

    def values(cell: dict[str, str], seed: int) -> dict[str, float]:
        floor = 2.0 if cell["budget"] == "short" else 1.5
        parameters = millions[cell["size"]]
        return {"parameters": 1e6 * parameters, "validation.loss": floor + 0.8 * parameters**-0.3}

    return make_result(study, values)


def test_rules_choose_curves_bars_and_a_scatter_plot(result: StudyResult) -> None:
    kinds = [(plot.kind, plot.x, plot.y) for plot in choose_plots(result)]
    assert kinds == [
        ("curves", None, "validation.loss"),
        ("curves", None, "train.loss"),
        ("bars", None, "validation.perplexity"),
        ("bars", None, "validation.bits_per_byte"),
        ("bars", None, "train.seconds"),
        ("bars", None, "train.peak_memory_bytes"),
        ("scatter", "train.seconds", "validation.perplexity"),
    ]


def test_cells_that_share_runs_have_no_curves(result: StudyResult) -> None:
    rows = [Row(row.cell, row.seed, f"seed{row.seed}", row.figures) for row in result.rows]
    shared = replace(result, rows=rows)
    assert distinct_cells(shared) == [{"window": "full"}]
    assert "curves" not in {plot.kind for plot in choose_plots(shared)}


def test_every_plot_has_an_alternative_text(pictures: list[Picture], result: StudyResult) -> None:
    assert len(pictures) == 7
    assert len({picture.name for picture in pictures}) == 7
    for picture in pictures:
        for label in ("full", "4 tokens", "8 tokens", "16 tokens"):
            assert label in picture.alt
        assert picture.caption.endswith(".")
    assert "full 62.91 ± 1.37" in pictures[2].alt
    assert "The axis does not begin at zero." in pictures[2].caption
    assert "zero" not in pictures[4].caption


def test_svg_is_self_contained(pictures: list[Picture]) -> None:
    ids: list[str] = []
    for picture in pictures:
        tree = xml.fromstring(picture.svg)
        assert tree.tag == "svg", "no namespace: not needed in HTML"
        assert "http" not in picture.svg and "<metadata" not in picture.svg and "<!--" not in picture.svg
        assert not any(colour in picture.svg for colour in PALETTE), "colours are in the style sheet"
        assert "var(--c1)" in picture.svg and "var(--ink)" in picture.svg
        ids += [node.attrib["id"] for node in tree.iter() if "id" in node.attrib]
        defined = {node.attrib["id"] for node in tree.iter() if "id" in node.attrib}
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture.svg))
        assert used and used <= defined
    assert len(ids) == len(set(ids)), "ids are unique in the whole page"


def test_svg_text_is_not_converted_to_paths(pictures: list[Picture]) -> None:
    words = ["".join(node.itertext()).strip() for node in xml.fromstring(pictures[2].svg).iter("text")]
    assert {"Validation perplexity", "full", "4 tokens", "62.91"} <= set(words)


def test_png_is_not_empty(pictures: list[Picture]) -> None:
    for picture in pictures:
        image = Image.open(io.BytesIO(picture.png))
        assert image.width >= 1000
        assert len(image.convert("L").getcolors()) > 10


def test_same_result_gives_the_same_bytes(pictures: list[Picture], result: StudyResult) -> None:
    kept = replace(result, study=replace(result.study, plots=tuple(choose_plots(result)[1:3])))
    first, second = draw_study(kept), draw_study(kept)
    assert [(one.svg, one.png) for one in first] == [(one.svg, one.png) for one in second]


def test_matplotlib_settings_of_the_user_are_ignored(result: StudyResult) -> None:
    import matplotlib

    bars = replace(result, study=replace(result.study, plots=(Plot("bars", y="validation.perplexity"),)))
    before = draw_study(bars)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        assert draw_study(bars)[0].svg == before[0].svg


def test_band_is_mean_minimum_and_maximum_over_seeds(result: StudyResult) -> None:
    band = read_band(result, {"window": "full"}, training=False, unit="steps")
    assert band is not None
    runs = [result.curve(f"full-seed{seed}") for seed in (1, 2, 3)]
    losses = np.array([[event["loss"] for event in run if event["event"] == "evaluation"] for run in runs])
    assert band.x.tolist() == list(range(50, 501, 50))
    np.testing.assert_allclose(band.mean, losses.mean(0), atol=1e-12)
    np.testing.assert_allclose(band.low, losses.min(0), atol=1e-12)
    np.testing.assert_allclose(band.high, losses.max(0), atol=1e-12)
    assert read_band(result, {"window": "nothing"}, training=False, unit="steps") is None


@pytest.mark.parametrize(
    ("unit", "end"), [("steps", 500), ("tokens", 0.256), ("minutes", 500 / 12 / 60), ("flops", 0.256)]
)
def test_x_of_curves_is_the_unit_of_the_budget(result: StudyResult, unit: str, end: float) -> None:
    for training in (False, True):
        band = read_band(result, {"window": "full"}, training, unit)
        assert band is not None
        assert band.x[-1] == pytest.approx(end, abs=1e-12)


def test_running_mean() -> None:
    y = np.random.default_rng(0).normal(size=100)
    expected = [y[max(at - 2, 0) : at + 3].mean() for at in range(100)]
    np.testing.assert_allclose(running_mean(y), expected, atol=1e-12)


def test_first_values_do_not_set_the_visible_height() -> None:
    assert visible_height([Curve(np.arange(11.0), np.array([99.0, 50, 9, 8, 7, 6, 5, 4, 3, 2, 1]))]) == 9.0


def test_caption_notes_a_clipped_beginning(pictures: list[Picture], tmp_path: Path) -> None:
    rising = windows(tmp_path)
    for path in tmp_path.glob("*/metrics.jsonl"):
        path.write_text(re.sub(r'"step": (\d+), "loss": [\d.]+', r'"step": \1, "loss": \1', path.read_text()))
    for fallen, risen in zip(pictures[:2], draw_study(rising)[:2], strict=True):
        assert fallen.caption.startswith(risen.caption) and len(fallen.caption) > len(risen.caption)


def test_clipped_note_is_only_for_the_beginning() -> None:
    x, y = np.arange(11.0), np.array([1.0, 1, 1, 9, 1, 1, 1, 1, 1, 1, 1])
    assert clipped_note([Curve(x, y)], 5.0) == ""
    assert clipped_note([Curve(x, y[::-1]), Curve(x, y + x[::-1])], 10.5) != ""
    assert clipped_note([Curve(x[:1], y[:1])], 0.5) == "", "one point is an end"


def test_one_law_per_label_that_does_not_change_x() -> None:
    result = sizes()
    assert depends(result, "parameters", "size") and not depends(result, "parameters", "budget")
    short, long = fit_groups(result, "parameters", "validation.loss")
    assert (short.label, long.label) == ("short", "long")
    assert len(short.x) == 12
    for group, floor in ((short, 2.0), (long, 1.5)):
        assert group.law is not None
        assert (group.law.floor, group.law.scale, group.law.exponent) == pytest.approx((floor, 0.8, 0.3), rel=1e-5)
    (picture,) = draw_study(result)
    assert "short: 2.000 + 0.800 · x^−0.300." in picture.alt


def test_metrics_that_were_not_measured_are_not_drawn(result: StudyResult) -> None:
    plots = (
        Plot("bars", y="bleu.4"),
        Plot("scatter", x="tokens_per_second", y="bleu.4"),
        Plot("fit", x="a", y="b"),
        Plot("scatter"),
    )
    assert draw_study(replace(result, study=replace(result.study, plots=plots))) == []


def test_intervals_are_truncated_at_zero() -> None:
    axes: dict[str, dict[str, dict[str, object]]] = {"strategy": {"one": {}, "two": {"generate.top_k": 3}}}
    plots = (Plot("bars", y="tokens_per_second"), Plot("scatter", x="seconds_per_sample", y="tokens_per_second"))
    study = make_study(axes, seeds=(1, 2), show=("tokens_per_second",), plots=plots)
    result = make_result(
        study, lambda cell, seed: {"tokens_per_second": 100.0 + 50 * seed, "seconds_per_sample": 1.0 + seed}
    )
    summary = summarise([150.0, 200.0])
    assert summary is not None and summary.interval is not None and summary.interval.low < 0
    assert ends_of(summary, find_figure("tokens_per_second")) == (0.0, summary.interval.high)
    below = summarise([0.1, 1.0])  # a metric that may be negative is not truncated
    assert below is not None and ends_of(below, find_figure("validation.above_floor"))[0] < 0  # type: ignore[index]
    assert all("truncated at zero" in picture.caption for picture in draw_study(result))


def test_labels_of_close_points_do_not_overlap() -> None:
    with styled():
        drawing, (axes,) = new_drawing(3.6)
        points = [(float(x), 1.0 + 0.01 * x, f"a label of point {x}", INK) for x in range(6)]
        axes.plot([x for x, *_ in points], [y for _, y, *_ in points], "o")
        axes.set_ylim(0.5, 1.5)
        label_points(axes, points, [(0.0, 1.0, 5.0, 1.05)])
        drawing.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in axes.texts]  # an annotation's extent includes its line
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert sum(isinstance(text, Annotation) and text.arrow_patch is not None for text in axes.texts) >= 2


def test_labels_move_apart_by_the_minimum() -> None:
    assert spread_apart([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread_apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_apart([0.2, 0.21, 0.25, 0.9], 0.1) == pytest.approx([0.12, 0.22, 0.32, 0.9])
    assert overlap((0, 0, 2, 2), (1, 1, 3, 3)) == 1.0
    assert overlap((0, 0, 1, 1), (2, 0, 3, 1)) == 0.0
