"""The attention page as a file: packing of weights, escaping of tokens, no network access."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.attention_pages import draw_attention
from helpers.user_errors import refused
from lilliput.interpret import AttentionMaps, summarise, write_page
from lilliput.interpret import attention_page as page
from lilliput.interpret.attention_page import fill, page_of
from lilliput.interpret.head_scores import Tally


def block(text: str, name: str) -> bytes:
    match = re.search(rf'id="{name}">([^<]*)<', text)
    assert match
    return zlib.decompress(base64.b64decode(match[1]))


def about(text: str) -> dict[str, Any]:
    match = re.search(r'id="about">([^<]*)<', text)
    assert match
    data: dict[str, Any] = json.loads(match[1])
    return data


@pytest.mark.parametrize(("most", "levels", "tolerance"), [(10**9, 65_535, 1.6e-5), (0, 255, 4e-3)])
def test_weights_unpack_to_their_original_values(
    most: int, levels: int, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MANY_CELLS", most)
    attention = draw_attention(list("abcdefg"), window=3, padded=2)
    text = page_of(attention)
    data, mask = about(text), attention.mask(0)
    assert data["levels"] == levels
    bits = np.unpackbits(np.frombuffer(block(text, "mask-0"), np.uint8))[: mask.size]
    assert np.array_equal(bits.reshape(mask.shape).astype(bool), mask)
    for place in range(2):
        for at in range(3):
            raw = np.frombuffer(block(text, f"head-{place}-{at}"), np.uint8)
            whole = raw.astype(float) if levels == 255 else raw.reshape(2, -1).T.astype(float) @ [256, 1]
            expected = attention.weights[place][at][mask]
            assert np.allclose((whole / levels) ** 2, expected, rtol=0, atol=tolerance)


def test_layers_with_equal_masks_share_one() -> None:
    one, other = (draw_attention(list("abcd"), layers=1, window=window) for window in (None, 2))
    weights, masks = [*one.weights, *other.weights, *one.weights], [one.mask(0), other.mask(0), one.mask(0)]
    text = page_of(AttentionMaps(list("abcd"), weights, masks))
    assert about(text)["masks"] == [0, 1, 0]
    assert text.count('id="mask-') == 2


def test_tokens_are_escaped() -> None:
    evil = ["</script><script>alert(1)</script>", "<!--", "{{style}}", "&amp;", '"', "\u2028"]
    text = page_of(draw_attention(evil, title="<b>{{about}}</b>"))
    assert "alert(1)" not in text.replace("alert(1)\\u003c/script>", "")
    assert about(text)["labels"][:5] == evil[:5]
    assert "<title>&lt;b&gt;{{about}}&lt;/b&gt;</title>" in text
    assert about(text)["title"] == "<b>{{about}}</b>"


def test_page_loads_nothing() -> None:
    text = page_of(draw_attention(list("abc")))
    # The SVG namespace is a name, not an address that is loaded.
    assert set(re.findall(r"https?://[^\s\"')]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(|XMLHttp|WebSocket""", text)
    assert "default-src 'none'" in text


def test_page_has_the_scores_of_the_text_or_of_documents() -> None:
    attention = draw_attention(list("abc.abc"))
    data = about(page_of(attention))
    assert data["surveyed"] is None
    assert data["summary"] == [one.as_dict() for one in summarise(attention)]
    tally = Tally().add(draw_attention(list("aabb"), seed=5)).add(draw_attention(list("ab"), seed=6))
    data = about(page_of(attention, tally))
    assert data["surveyed"] == {"texts": 2, "tokens": 6}
    assert data["summary"] == [one.as_dict() for one in tally.heads()]


def test_page_is_reproducible_and_write_errors_name_the_file(tmp_path: Path) -> None:
    attention = draw_attention(["half \ud800 pair", "b"])
    size = write_page(attention, tmp_path / "a.html")
    assert size == (tmp_path / "a.html").stat().st_size
    write_page(attention, str(tmp_path / "b.html"))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    error = refused(lambda: write_page(attention, tmp_path / "a.html" / "c.html"))
    assert error.where == str(tmp_path / "a.html" / "c.html")


def test_inserted_parts_are_not_expanded() -> None:
    assert fill("a{{x}}b{{y}}", {"x": "{{y}}", "y": "1"}) == "a{{y}}b1"
