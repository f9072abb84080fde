"""Split one source into training and validation documents.

Owns: the assignment as a pure function of (seed, share, position), and where a single document is split. Does not own:
reading documents (`documents`), or sources with their own splits (`sources`).
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
    """Return the number of documents after which both splits have at least one; see `member_of_validation`."""
    exact = Fraction(repr(share))
    return max(2, math.ceil(1 / min(exact, 1 - exact)))


def member_of_validation(seed: int, share: float, total: int) -> Callable[[int], bool]:
    """Return a pure function that decides whether document `index` is used for validation.

    Documents form blocks of 1 / share; a hash of (seed, block) selects one document of each block. So the share is exact
    to one document in every prefix of the source, and appended documents move none. `total` matters only if there is
    less than one block. For shares above 1/2 the training document is selected instead.
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
    """Split a single stripped document near `1 - share`; return training part, validation part and kind of border.

    Uses the best kind of border within half a share, and of this kind the nearest. So the actual share is between 1/2
    and 3/2 of the requested share.
    """
    if len(text) < 2:
        what = "the only document must have at least 2 characters to be split (got 1)"
        fix = "add text, or set data.validation_source"
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
    """Return the parts before and after the cut without white space there. Each is copied once to save memory."""
    end = start = cut
    while end > 0 and text[end - 1].isspace():
        end -= 1
    while start < len(text) and text[start].isspace():
        start += 1
    return text[:end], text[start:]
