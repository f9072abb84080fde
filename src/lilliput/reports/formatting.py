"""Text form of numbers, durations, lists and settings, for all reports.

Owns: the format of one value. Does not own: sentences (`studies.study_verdict`) or tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def fixed(value: float, digits: int, sign: str = "") -> str:
    """Format with a true minus sign. A small value that would round to zero gets more digits."""
    if value != 0.0 and abs(value) < 0.5 * 10.0**-digits:
        digits = -math.floor(math.log10(abs(value)))
        if digits > 8:
            return f"{value:{sign}.1e}".replace("-", "−")
    elif abs(value) >= 1e12:
        return f"{value:{sign}.3e}".replace("-", "−")
    return f"{value:{sign},.{digits}f}".replace("-", "−")


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def format_value(value: object) -> str:
    """Format a setting as the user would type it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_value, value)) or "none"
    return str(value)


def machine_facts(machine: Mapping[str, object]) -> list[tuple[str, str]]:
    facts = []
    for name, value in machine.items():
        if name.endswith("_bytes") and isinstance(value, int):
            facts.append((name.removesuffix("_bytes"), f"{value / 1e9:.1f} GB"))
        else:
            facts.append((name.replace("_", " "), format_value(value)))
    return facts


def readable(count: float) -> str:
    """1234567 -> 1.23M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"
