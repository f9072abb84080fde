"""What a model does inside: attention weights, scores of heads, predictions of layers, ablation of heads.

Attention pages work for any model that returns its attention weights as arrays or tensors:

    from lilliput.interpret import attention_of, write_page
    outputs = model(ids, output_attentions=True)
    write_page(attention_of(tokens, outputs.attentions, causal=True), "attention.html")

Names are imported at first use: scores need no matplotlib, and heat maps no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilliput.interpret.attention_capture import capture_text as capture_text
    from lilliput.interpret.attention_maps import AttentionMaps as AttentionMaps
    from lilliput.interpret.attention_maps import attention_of as attention_of
    from lilliput.interpret.attention_page import write_page as write_page
    from lilliput.interpret.head_ablation import ablate as ablate
    from lilliput.interpret.head_ablation import ablate_documents as ablate_documents
    from lilliput.interpret.head_ablation import ablate_each as ablate_each
    from lilliput.interpret.head_functions import measure_functions as measure_functions
    from lilliput.interpret.head_scores import HeadSummary as HeadSummary
    from lilliput.interpret.head_scores import summarise as summarise
    from lilliput.interpret.head_scores import summarise_documents as summarise_documents
    from lilliput.interpret.heat_maps import draw_heads as draw_heads
    from lilliput.interpret.heat_maps import draw_layer as draw_layer
    from lilliput.interpret.logit_lens import lens as lens

_PLACES = {
    "AttentionMaps": "attention_maps",
    "HeadSummary": "head_scores",
    "ablate": "head_ablation",
    "ablate_documents": "head_ablation",
    "ablate_each": "head_ablation",
    "attention_of": "attention_maps",
    "capture_text": "attention_capture",
    "draw_heads": "heat_maps",
    "draw_layer": "heat_maps",
    "lens": "logit_lens",
    "measure_functions": "head_functions",
    "summarise": "head_scores",
    "summarise_documents": "head_scores",
    "write_page": "attention_page",
}

__all__ = [
    "AttentionMaps",
    "HeadSummary",
    "ablate",
    "ablate_documents",
    "ablate_each",
    "attention_of",
    "capture_text",
    "draw_heads",
    "draw_layer",
    "lens",
    "measure_functions",
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
