"""The attention page in a real browser: pointer, keys and slider show the weights of the model."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page, expect, sync_playwright

from helpers.attention_pages import draw_attention, launch_browser, small_writer, watched_page
from lilliput.interpret import AttentionMaps, attention_of, capture_text, write_page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as player:
        opened = launch_browser(player)
        yield opened
        opened.close()


def open_page(page: Page, attention: AttentionMaps, folder: Path) -> int:
    """Write and open the page; return the bytes of the file."""
    size = write_page(attention, folder / "page.html")
    page.goto((folder / "page.html").as_uri())
    page.wait_for_selector("body[data-shown]")
    return size


def place_of(page: Page, row: int, column: int) -> list[float]:
    """Return the centre of a cell of the map on the screen."""
    point: list[float] = page.evaluate(
        """([row, column]) => {
            const box = map.canvas.getBoundingClientRect();
            const along = (at, first) => (at - first + 0.5) * map.cell;
            return [box.left + map.left + along(column, map.x), box.top + map.top + along(row, map.y)];
        }""",
        [row, column],
    )
    return point


def hover(page: Page, row: int, column: int) -> str:
    """Point at a cell; return the text of the tooltip."""
    page.mouse.move(*place_of(page, row, column))
    return page.locator("#tip").inner_text()


def test_map_text_lines_and_table(browser: Browser, tmp_path: Path) -> None:
    tokens = ["<s>", "The", " cat", "\n", " saw", " the", "</script>", " cat", ".", "<pad>"]
    attention = draw_attention(tokens, layers=2, heads=3, padded=1, before=["x", "y"], after=["z"], title="<b>one</b>")
    with watched_page(browser) as page:
        open_page(page, attention, tmp_path)
        assert page.locator("#title").inner_text() == "<b>one</b>"
        assert page.locator("#notes li").count() == 3
        # The map: a weight, a masked cell, padding.
        weight = attention.weights[0][0, 5, 2]
        assert hover(page, 5, 2) == f"·the (5) attends to ·cat (2): {100 * weight:.2f}%"
        assert hover(page, 2, 5) == "·cat (2) cannot attend to ·the (5): masked"
        assert hover(page, 9, 1).startswith("padding")
        # The keyboard changes head and layer, and wraps around.
        for key, shown in (("ArrowRight", "0.1"), ("ArrowDown", "1.1"), ("ArrowLeft", "1.0"), ("ArrowLeft", "1.2")):
            page.keyboard.press(key)
            page.wait_for_selector(f'body[data-shown="{shown}"]')
        assert page.locator("#tip").inner_text().startswith("padding"), "the same cell of another head"
        assert hover(page, 7, 7).endswith(f"{100 * attention.weights[1][2, 7, 7]:.2f}%")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#tip")).to_contain_text(f"{100 * attention.weights[1][1, 7, 7]:.2f}%")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector('body[data-shown="1.2"]')
        # A click selects the row, and the text is shaded by it.
        page.mouse.click(*place_of(page, 4, 0))
        expect(page.locator("#text .from")).to_have_text("·saw")
        best = int(attention.weights[1][2, 4].argmax())
        assert (
            f"{attention.labels[best]} {100 * attention.weights[1][2, 4, best]:.2f}%"
            in page.locator("#step-text").inner_text()
        )
        assert page.locator("#text .unseen").all_inner_texts() == ["x", "y", "z"]
        assert page.locator("#text .padding").all_inner_texts() == ["<pad>"]
        page.keyboard.press("k")
        expect(page.locator("#text .from")).to_have_text("↵")
        # Lines of one token, of one head and of all.
        page.keyboard.press("l")
        page.hover("#lines-left li >> nth=7")
        wanted = (attention.weights[1][2, 7] >= 0.01).sum()
        expect(page.locator("#lines-svg path")).to_have_count(int(wanted))
        page.get_by_role("button", name="all heads", exact=True).click()
        page.hover("#lines-right li >> nth=1")
        expect(page.locator("#lines-svg path")).to_have_count(int((attention.weights[1][:, :, 1] >= 0.01).sum()))
        # A click on a title sorts the table, a click on a row selects its head.
        page.get_by_role("button", name="previous token").last.click()
        first = page.locator("#table tbody tr").first
        scores = [one["previous"] for one in page.evaluate("about.summary")]
        assert first.locator("td").nth(4).inner_text() == f"{max(scores):.3f}"
        first.click()
        place = np.argmax(scores)
        page.wait_for_selector(f'body[data-shown="{place // 3}.{place % 3}"]')
        # Every head has a thumbnail.
        assert page.locator("#overview canvas").count() == 6


def test_slider_steps_through_generated_tokens(browser: Browser, tmp_path: Path) -> None:
    writer = small_writer()
    attention = capture_text(writer, "A bee", generate=40, seed=2)  # beyond the context of 32
    assert attention.prompt == 6 and attention.last is not None
    with watched_page(browser) as page:
        open_page(page, attention, tmp_path)
        step = page.locator("#step-text")
        labels, count = attention.labels[6:], len(attention.written)
        assert step.inner_text().startswith(f"Generated token 1 of {count}: after e the model chose {labels[0]}")
        expect(page.locator("#text .next")).to_have_text(labels[0])
        page.locator("#step").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#text .from")).to_have_text(labels[0])
        page.keyboard.press("End")
        assert step.inner_text().startswith(f"Generated token {count} of {count}: ")
        row = len(attention.tokens) - 1
        assert hover(page, row, 0).endswith("cannot attend to <|endoftext|> (0): masked"), "it is outside the context"
        weight = attention.weights[0][0, row, row]
        assert hover(page, row, row).endswith(f"{100 * weight:.2f}%")


def test_generated_text_whose_last_token_was_read(browser: Browser, tmp_path: Path) -> None:
    """Other models may have read all generated tokens."""
    with watched_page(browser) as page:
        open_page(page, draw_attention(list("abcde"), prompt=3), tmp_path)
        step = page.locator("#step-text")
        assert step.inner_text().startswith("Generated token 1 of 2: after c the model chose d")
        page.keyboard.press("j")
        assert step.inner_text().startswith("Generated token 2 of 2: after d the model chose e")
        page.keyboard.press("j")
        assert step.inner_text().startswith("Token 4: e attends to")
        page.locator("#stretch").check()
        page.keyboard.press("ArrowRight")  # arrow keys work while a check box has the focus
        page.wait_for_selector('body[data-shown="0.1"]')


def test_tokens_without_spaces_are_separated(browser: Browser, tmp_path: Path) -> None:
    """Also in the part that was not read; the symbol of a space is then not explained."""
    words = ["the", "old", "bear", "saw"]
    with watched_page(browser) as page:
        open_page(page, draw_attention(words, before=["a", "bee"], after=["the", "sea"], prompt=2, last="."), tmp_path)
        text, facts = page.locator("#text"), page.locator("#facts")
        assert text.inner_text().split("✂")[0].split() == ["a", "bee"]
        assert "the old bear saw ." in text.inner_text()
        assert text.inner_text().endswith("not read: 2 tokens the sea")
        gap = page.evaluate(
            """() => {
            const [one, two] = [...document.querySelectorAll("#text [data-at]")].map((item) => item.getBoundingClientRect());
            return two.left - one.right;
        }"""
        )
        assert gap >= 4
        assert facts.inner_text() == "2 layers, 3 heads each, 4 tokens."
        open_page(page, draw_attention(["The", " cat", " sat", "\n"]), tmp_path)
        assert text.inner_text().strip() == "The·cat·sat↵"
        assert facts.inner_text() == "2 layers, 3 heads each, 4 tokens. · is a space. ↵ is a line end."


def test_footer_has_the_file_size(browser: Browser, tmp_path: Path) -> None:
    with watched_page(browser) as page:
        size = open_page(page, draw_attention(list("abcd")), tmp_path)
        match = re.search(r"File size: (\d+) kB", page.locator("#foot").inner_text())
        assert match and int(match[1]) == pytest.approx(size / 1e3, rel=0.05)
        assert [page.evaluate(f"readable({size})") for size in (740_000, 16.24e6)] == ["740 kB", "16.2 MB"]


def test_twelve_layers_of_twelve_heads_and_512_tokens(browser: Browser, tmp_path: Path) -> None:
    layer = draw_attention([f" w{n % 97}" for n in range(512)], layers=1, heads=12, seed=1)
    attention = AttentionMaps(layer.tokens, [one.astype(np.float32) for one in layer.weights] * 12, layer.visible)
    with watched_page(browser) as page:
        size = open_page(page, attention, tmp_path)
        assert size < 25e6
        began = time.monotonic()
        page.reload()
        page.wait_for_selector("body[data-shown]")
        opened = time.monotonic() - began
        weight = attention.weights[0][0, 400, 17]
        began = time.monotonic()
        tip = hover(page, 400, 17)
        answered = time.monotonic() - began
        assert tip.startswith("·w12 (400) attends to ·w17 (17): ")
        assert abs(float(tip.split(": ")[1].rstrip("%")) / 100 - weight) <= 0.005
        page.keyboard.press("ArrowDown")
        page.wait_for_selector('body[data-shown="1.0"]')
        page.keyboard.press("l")
        page.hover("#lines-left li >> nth=300")
        expect(page.locator("#lines-left li.on")).to_have_count(1)
        assert page.locator("#lines-svg path").count() == (attention.weights[1][0, 300] >= 0.01).sum()
        # Generous limits in seconds, for a busy machine.
        assert opened < 60 and answered < 30, (opened, answered)


def test_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    with watched_page(browser, 390, 800) as page:
        open_page(page, draw_attention([" word"] * 40), tmp_path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert hover(page, 30, 3).startswith("·word (30) attends to ·word (3)")


def test_model_of_transformers(browser: Browser, tmp_path: Path) -> None:
    """GPT-2 of transformers, with random weights, its own tensors and tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=24, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(50, (1, 20))
    with torch.no_grad():
        outputs = model(ids, output_attentions=True)
    attention = attention_of([f"t{number}" for number in ids[0].tolist()], outputs.attentions, causal=True)
    assert np.allclose((attention.weights[0] * attention.mask(0)).sum(axis=-1), 1.0, atol=1e-6)
    with watched_page(browser) as page:
        open_page(page, attention, tmp_path)
        page.keyboard.press("ArrowUp")
        page.wait_for_selector('body[data-shown="2.0"]')
        expected = outputs.attentions[2][0, 0, 12, 7].item()
        assert hover(page, 12, 7).endswith(f"t{ids[0, 7]} (7): {100 * expected:.2f}%")
