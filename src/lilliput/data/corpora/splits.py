"""One source as two splits: which document is kept for validation, or where a lone document is cut.

Owns: membership as a pure function of (seed, share, position), and the border at which one document becomes
two. Does not own: reading documents (`documents`), nor sources that bring splits of their own (`sources`).
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable
from fractions import Fraction

from lilliput.errors import UserError

BORDERS = (("a paragraph", r"\n[^\S\n]*\n\s*"), ("a line", r"\n\s*"), ("white space", r"\s+"))


def block_length(share: float) -> int:
    """Documents that must be seen before both splits are sure to have one; see `member_of_validation`."""
    exact = Fraction(repr(share))
    return max(2, math.ceil(1 / min(exact, 1 - exact)))


def member_of_validation(seed: int, share: float, total: int) -> Callable[[int], bool]:
    """Whether document `index` is kept for validation: a pure function, so that splits stream and never meet.

    Documents fall into blocks of 1 / share; one of each block is drawn by a hash of (seed, block). The share is thus
    exact to one document everywhere in the file, and appending documents moves none. `total` matters only where there
    is less than one block: then the draw is among what there is. Shares over a half draw the training document instead.
    """
    exact = Fraction(repr(share))
    flipped = exact > Fraction(1, 2)
    rare = 1 - exact if flipped else exact

    @functools.lru_cache(maxsize=1)
    def chosen(block: int) -> int:
        first, after = math.ceil(block / rare), math.ceil((block + 1) / rare)
        if block == 0:
            after = min(after, total)
        digest = hashlib.blake2b(f"{seed} {block}".encode(), digest_size=8, person=b"validation").digest()
        return first + int.from_bytes(digest, "little") % (after - first)

    def member(index: int) -> bool:
        return (index == chosen(index * rare.numerator // rare.denominator)) != flipped

    return member


def cut_document(text: str, share: float, where: str = "") -> tuple[str, str, str]:
    """A lone document, stripped, as (training part, validation part, name of the border): cut near `1 - share` of it.

    The nearest border of the best kind wins that lies within half a share, so the share stays between 1/2 and 3/2 of
    what was asked for.
    """
    if len(text) < 2:
        what, fix = (
            "the only document has one character, none is left for validation",
            "add text, or set data.validation_source",
        )
        raise UserError(what, where, fix=fix, code="data.no-validation", setting="data.source")
    target = min(max(round(len(text) * (1 - share)), 1), len(text) - 1)
    reach = max(1, round(len(text) * min(share, 1 - share) / 2))
    low, high = max(1, target - reach), min(len(text), target + reach)
    for border, pattern in BORDERS:
        ends = (found.end() for found in re.compile(pattern).finditer(text, low, high))
        cut = min((end for end in ends if end < len(text)), key=lambda end: abs(end - target), default=None)
        if cut is not None:
            return *_halves(text, cut), border
    return *_halves(text, target), "a character"


def _halves(text: str, cut: int) -> tuple[str, str]:
    """What stands before and after, without white space at the cut: each copied once, as it may be most of memory."""
    end = start = cut
    while end > 0 and text[end - 1].isspace():
        end -= 1
    while start < len(text) and text[start].isspace():
        start += 1
    return text[:end], text[start:]
