"""Text form of metrics (perplexity, bits per byte, accuracy) and of the end of a run by its time limit.

Owns: the format of these wherever they are printed. Does not own: computing them (`likelihood`,
`classification`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_DECIMALS = 9


class NumberForm(NamedTuple):
    """The text form of a metric: `decimals` at least, `scale` and `unit` (100 and "%" for shares), `sign` "+" for differences."""

    decimals: int = 4
    scale: float = 1.0
    unit: str = ""
    sign: str = ""

    def text(self, value: float, interval: Sequence[float] | None = None) -> str:
        """Return the value, with the decimals of its interval if there is one. Large values have the exponent form: the
        perplexity of a diverged model has hundreds of digits."""
        shown = value * self.scale
        if abs(shown) >= 1e6:
            return f"{shown:{self.sign}.1e}{self.unit}"
        return f"{shown:{self.sign},.{self.decimals_for(interval)}f}{self.unit}"

    def interval_text(self, interval: Sequence[float] | None) -> str:
        return "" if interval is None else " to ".join(self.text(end, interval) for end in interval)

    def decimals_for(self, interval: Sequence[float] | None) -> int:
        """Return enough decimals for two significant digits of the width of the interval, so that its ends differ."""
        width = 0.0 if interval is None else abs(interval[1] - interval[0]) * self.scale
        if not 0.0 < width < math.inf:
            return self.decimals
        return min(MOST_DECIMALS, max(self.decimals, 1 - math.floor(math.log10(width))))


PLAIN, PERPLEXITY, SHARE = NumberForm(), NumberForm(2), NumberForm(1, 100.0, "%")


def format_figures(found: Mapping[str, Any]) -> list[str]:
    """Return the metrics to print next to a loss: perplexity and bits per byte, or the accuracy of a classifier."""
    forms = {"bits_per_byte": "{:.4f} bits/byte", "accuracy": "accuracy {:.1%}"}
    texts = [form.format(found[key]) for key, form in forms.items() if found.get(key) is not None]
    if found.get("perplexity") is None:
        return texts
    return [f"perplexity {format_perplexity(found['perplexity'])}", *texts]


def format_perplexity(perplexity: float) -> str:
    return PERPLEXITY.text(perplexity)


def format_part(share: float, decimals: int = 1) -> str:
    """Return a share in percent, with enough decimals that a part is shown neither as nothing nor as the whole."""
    while decimals < MOST_DECIMALS and 0.0 < share < 1.0 and float(f"{100 * share:.{decimals}f}") in (0.0, 100.0):
        decimals += 1
    return f"{share:.{decimals}%}"


def format_limit(share: float) -> str:
    """`share`: the part of the budget that was used."""
    return f"ended by the time limit (train.max_minutes) at {share:.0%} of its budget"
