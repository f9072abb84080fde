"""The result of `Run.attention`: an interactive view of attention weights, and the weights as arrays.

Owns: `AttentionView`. Does not own: the capture, the scores and the page (`interpret`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lilliput.api.rendering import framed

if TYPE_CHECKING:
    from lilliput.decoding.writer import Writer
    from lilliput.interpret.attention_maps import AttentionMaps, Weights
    from lilliput.interpret.head_scores import HeadSummary
    from lilliput.settings.tree import GenerateSettings

HEIGHT = 720  # pixels of the view in a notebook
LONGEST_TITLE = 80  # characters of the text in the title


class AttentionView:
    """The attention weights in a text. A notebook shows the interactive page; `maps` works with `lilliput.interpret`."""

    def __init__(self, maps: AttentionMaps) -> None:
        self.maps = maps

    @property
    def tokens(self) -> list[str]:
        return list(self.maps.tokens)

    @property
    def weights(self) -> list[Weights]:
        """One array (heads, tokens, tokens) per layer; row t holds the weights with which token t reads the others."""
        return list(self.maps.weights)

    @property
    def text(self) -> str | None:
        """The text that the model generated; None without `generate`."""
        return self.maps.wrote

    def heads(self) -> list[HeadSummary]:
        """Return the scores of every head."""
        from lilliput.interpret.head_scores import summarise

        return summarise(self.maps)

    def html(self) -> str:
        """Return the page, which needs no network."""
        from lilliput.interpret.attention_page import page_of

        return page_of(self.maps)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to an .html file and return its path."""
        from lilliput.interpret.attention_page import write_page

        write_page(self.maps, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        layers, heads = len(self.weights), len(self.weights[0])
        return f"AttentionView({len(self.tokens)} tokens, {layers} layers, {heads} heads)"

    def _repr_html_(self) -> str:
        return framed(self.html(), HEIGHT, scripts=True)


def capture_view(
    writer: Writer,
    text: str,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    generate: int | None,
    seed: int,
    settings: GenerateSettings | None,
    pad: bool,
    name: str,
) -> AttentionView:
    from lilliput.interpret.attention_capture import capture_text

    words = " ".join(text.split())
    title = f"{name}: {words if len(words) <= LONGEST_TITLE else words[: LONGEST_TITLE - 1] + '…'}" if words else name
    return AttentionView(capture_text(writer, text, layers, heads, generate, seed, settings, pad, title))
