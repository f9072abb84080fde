"""Text form of metrics (perplexity, bits per byte, accuracy) and of the end of a run by its time limit.

Owns: the format of these wherever they are printed. Does not own: computing them (`likelihood`,
`classification`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def format_figures(found: Mapping[str, Any]) -> list[str]:
    """Return the metrics to print next to a loss: perplexity and bits per byte, or the accuracy of a classifier."""
    forms = {"bits_per_byte": "{:.4f} bits/byte", "accuracy": "accuracy {:.1%}"}
    texts = [form.format(found[key]) for key, form in forms.items() if found.get(key) is not None]
    if found.get("perplexity") is None:
        return texts
    return [f"perplexity {format_perplexity(found['perplexity'])}", *texts]


def format_perplexity(perplexity: float) -> str:
    """Use the exponent form for large values: the perplexity of a diverged model has hundreds of digits."""
    return f"{perplexity:,.2f}" if perplexity < 1e6 else f"{perplexity:.1e}"


def format_limit(share: float) -> str:
    """`share`: the part of the budget that was used."""
    return f"ended by the time limit (train.max_minutes) at {share:.0%} of its budget"
