"""Small attention maps, writers of any model, and pages in a real browser."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, Playwright, expect

from helpers.small_runs import trained
from lilliput.decoding.writer import Writer, load
from lilliput.interpret import AttentionMaps
from lilliput.model.transformer import build_model


def draw_attention(
    tokens: list[str],
    layers: int = 2,
    heads: int = 3,
    causal: bool = True,
    window: int | None = None,
    padded: int = 0,
    seed: int = 0,
    **more: Any,
) -> AttentionMaps:
    """Return random attention weights within the mask; the last `padded` tokens are padding."""
    generator, count = np.random.default_rng(seed), len(tokens)
    distance = np.arange(count)[:, None] - np.arange(count)[None, :]
    mask = np.ones((count, count), np.bool_)
    if causal:
        mask &= distance >= 0
    if window is not None:
        mask &= np.abs(distance) < window
    padding = np.arange(count) >= count - padded
    mask &= ~padding[:, None] & ~padding[None, :]
    weights = []
    for _ in range(layers):
        scores = np.exp(2.0 * generator.normal(size=(heads, count, count))) * mask
        sums = scores.sum(axis=-1, keepdims=True)
        weights.append(scores / np.where(sums == 0, 1.0, sums))
    return AttentionMaps(tokens, weights, [mask], padding=padding if padded else None, **more)


@functools.cache
def load_small() -> Writer:
    return load(trained() / "runs" / "mine", "cpu")


def small_writer(**changes: Any) -> Writer:
    """Return a writer of the small run (bytes, context 32, float64) with a new model of these settings."""
    writer = load_small()
    if not changes:
        return writer
    config = dataclasses.replace(writer.config, model=dataclasses.replace(writer.config.model, **changes))
    model = build_model(config.model, config.vectors, seed=1).double().eval()
    return dataclasses.replace(writer, config=config, model=model)


def launch_browser(player: Playwright) -> Browser:
    place = os.environ.get("LILLIPUT_BROWSER") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    assert place, "the page is tested in a real browser: install chromium, or set LILLIPUT_BROWSER"
    return player.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-gpu"])


@contextmanager
def watched_page(browser: Browser, width: int = 1200, height: int = 1000) -> Iterator[Page]:
    """Open a page without network access; any error in it fails the test."""
    troubles: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(120_000)
    expect.set_options(timeout=120_000)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.on("request", lambda request: troubles.append(request.url) if request.url[:5] != "file:" else None)
    try:
        yield page
    finally:
        page.close()
    assert not troubles, troubles
