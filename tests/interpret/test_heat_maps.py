"""Heat maps: labels, layout, and the colours of weights, masked cells and padding."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from helpers.attention_pages import draw_attention
from lilliput.interpret import AttentionMaps, draw_heads, draw_layer
from lilliput.interpret.heat_maps import PADDING, UNSEEN, missing_characters

TOKENS = ["<|endoftext|>", "Once", " upon", " a", "\n", "$x$", " 日", "averyveryverylongword", "<pad>"]


def pixels(figure: Figure) -> np.ndarray:
    """Return the drawn figure as (height, width, 3); a warning of matplotlib fails the test."""
    out = io.BytesIO()
    figure.savefig(out, format="rgba", dpi=60)
    width, height = (int(inches * 60) for inches in figure.get_size_inches())
    return np.frombuffer(out.getvalue(), np.uint8).reshape(height, width, 4)[..., :3] / 255


def cell(figure: Figure, image: np.ndarray, row: int, column: int, map_: int = 0) -> tuple[float, ...]:
    """Return the colour at the centre of a cell."""
    x, y = figure.axes[map_].transData.transform((column, row)) * 60 / figure.dpi
    return tuple(image[image.shape[0] - 1 - int(y), int(x)].tolist())


def near(colour: tuple[float, ...], name: str) -> bool:
    return np.allclose(colour, to_rgb(name), atol=0.01)


@pytest.mark.parametrize("causal", [True, False])
def test_colours_of_masked_cells_and_padding(causal: bool) -> None:
    attention = draw_attention(TOKENS, causal=causal, padded=1)
    attention.weights[0][0, 3, :] = np.eye(9)[1]  # all weight on one token
    figure = draw_heads(attention, 0, [0])
    image = pixels(figure)
    assert near(cell(figure, image, 3, 1), "#08285e")
    assert near(cell(figure, image, 3, 2), "#ffffff"), "a weight of 0 is white"
    assert near(cell(figure, image, 2, 6), UNSEEN) == causal
    assert near(cell(figure, image, 2, 8), PADDING)
    assert near(cell(figure, image, 8, 2), PADDING)


def test_labels() -> None:
    figure = draw_heads(draw_attention(TOKENS, padded=1), 1, [2])
    pixels(figure)
    shown = ["<|endoftext…", "Once", "·upon", "·a", "↵", "$x$", "·□", "averyveryve…", "<pad>"]
    for axis in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [text.get_text() for text in axis] == shown
    assert {text.get_text() for text in figure.texts} >= {"layer 1, head 2"}


@pytest.mark.parametrize(("heads", "rows"), [(1, 1), (2, 1), (5, 2), (12, 3)])
def test_heads_of_a_layer_form_a_grid(heads: int, rows: int) -> None:
    attention = draw_attention(list("abcd"), heads=heads, layers=1, title="all heads")
    figure = draw_layer(attention, 0)
    maps = figure.axes[:-1]  # the last is the scale
    assert len(maps) == heads
    assert len({round(axis.get_position().y0, 6) for axis in maps}) == rows
    pixels(figure)
    boxes = [axis.get_tightbbox() for axis in maps]
    for number, one in enumerate(boxes):
        assert figure.bbox.contains(one.x0, one.y0) and figure.bbox.contains(one.x1, one.y1)
        assert not any(one.overlaps(other) for other in boxes[number + 1 :])


def test_long_text_labels_every_tenth_token() -> None:
    figure = draw_heads(draw_attention([f"w{n}" for n in range(200)], layers=1, heads=1), 0, [0])
    pixels(figure)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()][:2] == ["0 w0", "10 w10"]


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("count", [3, 12, 40])
def test_text_stays_inside_the_figure(count: int, heads: int) -> None:
    tokens, before = [f"w{n}" for n in range(count)], ["x"] * 1200
    attention = draw_attention(tokens, 1, heads, before=before, prompt=2, last="d", title="a long title " * 20)
    figure = draw_layer(attention, 0)
    pixels(figure)
    boxes = [text.get_window_extent() for text in figure.texts]
    assert all(figure.bbox.contains(*corner) for box in boxes for corner in (box.min, box.max))
    assert not any(boxes[-1].overlaps(axis.get_tightbbox()) for axis in figure.axes), "the notes are below the maps"


def test_notes_state_truncation_and_generation() -> None:
    def notes(attention: AttentionMaps) -> str:
        return " ".join(" ".join(text.get_text().split()) for text in draw_layer(attention, 0).texts)

    plain = notes(draw_attention(list("abc")))
    assert "truncated" not in plain and "dashed" not in plain
    text = notes(draw_attention(list("abc"), before=["x"] * 1200, after=["y"], prompt=2, last="d", padded=0))
    assert "1,200 tokens before" in text and "1 tokens after" in text
    assert "dashed: generated text begins" in text


def test_characters_that_the_font_lacks_are_named() -> None:
    assert missing_characters(["Once", "·a", "é", "↵"]) == ""
    assert missing_characters(["我", "·们", "我a"]) == "我们"
