"""Nested settings as dotted names. A separate module, because listing runs must not import pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model": {"dim": 8}} -> {"model.dim": 8}; a tuple becomes a list, as in JSON."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
