"""What a head looks at: attention weights captured, summed up in numbers, and shown in pictures and on one page.

Works for any model whose weights can be had as arrays, from Python:

    from lilliput.attention_view import attention_of, write_page
    outputs = model(ids, output_attentions=True)
    write_page(attention_of(tokens, outputs.attentions, causal=True), "attention.html")

The names are imported when they are first used: numbers need no matplotlib, and pictures no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilliput.attention_view.capture import capture_text as capture_text
    from lilliput.attention_view.contract import Attention as Attention
    from lilliput.attention_view.contract import attention_of as attention_of
    from lilliput.attention_view.heat_maps import draw_heads as draw_heads
    from lilliput.attention_view.heat_maps import draw_layer as draw_layer
    from lilliput.attention_view.page import write_page as write_page
    from lilliput.attention_view.summary import HeadSummary as HeadSummary
    from lilliput.attention_view.summary import summarise as summarise
    from lilliput.attention_view.survey import summarise_documents as summarise_documents

_PLACES = {
    "Attention": "contract",
    "HeadSummary": "summary",
    "attention_of": "contract",
    "capture_text": "capture",
    "draw_heads": "heat_maps",
    "draw_layer": "heat_maps",
    "summarise": "summary",
    "summarise_documents": "survey",
    "write_page": "page",
}

__all__ = [
    "Attention",
    "HeadSummary",
    "attention_of",
    "capture_text",
    "draw_heads",
    "draw_layer",
    "summarise",
    "summarise_documents",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
