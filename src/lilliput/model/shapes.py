"""Shapes that follow from the settings: the window of each layer, and the widths of a block. Needs no torch."""

from __future__ import annotations

from lilliput.settings.tree import ModelSettings


def layer_windows(window: int | tuple[int | None, ...] | None, layers: int) -> list[int | None]:
    """Return the window of each layer: one for all, or a pattern that repeats over the layers."""
    pattern = window if isinstance(window, tuple) else (window,)
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def head_width(settings: ModelSettings) -> int:
    """Return the width of a head: model.head_dim, or an equal share of model.dim."""
    return settings.dim // settings.heads if settings.head_dim is None else settings.head_dim


def gated_width(hidden: int) -> int:
    """Return 2/3 of hidden, rounded to a multiple of 8: three matrices of it have the size of two ungated ones."""
    return max(8, round(hidden * 2 / 3 / 8) * 8)
