"""The views of a notebook in a real browser: framed pages work, and cannot reach the notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Frame, sync_playwright

import lilliput
from helpers.attention_pages import launch_browser, watched_page
from helpers.small_runs import trained

REACH = "() => { try { return parent.document.title } catch (error) { return error.name } }"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as player:
        opened = launch_browser(player)
        yield opened
        opened.close()


def test_views_in_a_notebook(browser: Browser, tmp_path: Path) -> None:
    run = lilliput.load(trained() / "runs" / "mine", device="cpu")
    view = run.attention("The cat </script><b>sat</b>.")
    host = tmp_path / "notebook.html"
    body = view._repr_html_() + run.report()._repr_html_() + run.evaluate(progress=False)._repr_html_()
    host.write_text(f"<!DOCTYPE html><title>the notebook</title>{body}", "utf-8")
    with watched_page(browser) as page:
        page.goto(host.as_uri())
        attention, report = (frame_of(page.locator("iframe").nth(number).element_handle()) for number in (0, 1))
        attention.wait_for_selector("body[data-shown]")
        assert attention.locator("#title").inner_text() == "mine: The cat </script><b>sat</b>."
        assert attention.evaluate(REACH) == "SecurityError"
        attention.locator("#title").click()  # the frame has the keyboard only after a click
        page.keyboard.press("ArrowRight")
        attention.wait_for_selector('body[data-shown="0.1"]')
        report.wait_for_selector("h1")
        assert report.locator("h1").inner_text() == "mine" and report.locator("h2").count() >= 5
        rows = page.locator("div.lilliput table tr").all_inner_texts()
        assert any(row.split()[:2] == ["perplexity", f"{run.evaluate(progress=False).perplexity:,.2f}"] for row in rows)


def frame_of(handle: object) -> Frame:
    found = handle.content_frame()  # type: ignore[attr-defined]
    assert isinstance(found, Frame)
    return found
