"""What counting alone knows of the next token: interpolated Kneser-Ney n-grams over token ids, exact and normalised.

Owns: the counts of all n-grams up to an order, the discounts, the nats of each prediction of a text under the
models of all these orders, and the choice of an order without the judged text. Does not own: the figures made
of the nats (`baselines`), or mixing them with those of a net (`mixture`).

For a token w, its context h of n - 1 tokens and h', the same without its first token,

    p(w | h) = (c(hw) - d(hw)) / c(h) + d(h) / c(h) * p(w | h')         c(h), d(h): the sums of c(hv) and d(hv) over
all v

down to 1 / vocab_size below the single tokens; a context that training does not have leaves p(w | h'). In the model
of order n,
c of an n-gram is how often it occurs, and c of a shorter one is how many different tokens stand before it, to which
is added
how often it begins a document, where nothing can stand before it. d is what is taken from a count: of 1, of 2, and of
3 or more
(modified Kneser-Ney: Chen and Goodman 1999, section 3.1), and nothing from an n-gram that training does not have.

A document begins with the start token as context, and nothing is counted over its border: its first token has
a context of one token, whatever the order. An n-gram is known by its number, its place among the sorted pairs
(first token, number of the rest): 64 bits are enough for any order, and each order costs one sort of the
text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lilliput.data.packed_windows import Integers, predictions_of
from lilliput.data.prepare.token_files import TokenFile

Floats = NDArray[np.float64]
UNSEEN = -1  # the number of an n-gram that training does not have; it takes the last entry of a table, which says so
HELD_OUT = 10  # one part in so many of the training text chooses the order


@dataclass(frozen=True)
class TokenSequence:
    """Documents one after the other, each with the start token before it, which is never predicted."""

    ids: Integers
    place: Integers  # tokens of context that a token has: 0 is the start token

    @property
    def predicted(self) -> NDArray[np.bool_]:
        return self.place > 0

    def before(self, index: int) -> TokenSequence:
        return TokenSequence(self.ids[:index], self.place[:index])

    def after(self, index: int) -> TokenSequence:
        """A document that is cut there goes on without the context that was cut off."""
        return TokenSequence(self.ids[index:], np.minimum(self.place[index:], np.arange(len(self.ids) - index)))


def lay_out(file: TokenFile, start: int, most: int | None = None) -> TokenSequence:
    """All documents, or the first `most` tokens of them, start tokens included."""
    offsets = np.asarray(file.offsets)
    sizes = predictions_of(offsets, file.ends) + 1
    after = np.cumsum(sizes)
    if most is not None and most < after[-1]:
        whole = int(np.searchsorted(after, most))
        sizes = np.append(sizes[:whole], most - (after[whole] - sizes[whole]))
        after = np.cumsum(sizes)
    place = np.arange(after[-1]) - np.repeat(after - sizes, sizes)
    ids = np.asarray(file.tokens)[np.repeat(offsets[: len(sizes)] - 1, sizes) + place].astype(np.int64)
    ids[place == 0] = start
    return TokenSequence(ids, place)


class Discounts(NamedTuple):
    """What is taken from a count of 1, of 2, and of 3 or more. All are positive, so that no token is impossible."""

    one: float
    two: float
    more: float


def estimate_discounts(counts: Integers) -> Discounts:
    """Chen and Goodman's, from how many n-grams count 1, 2, 3 and 4.

    Small or regular texts lack one of these, or have them out of proportion: then one discount for all, Ney's
    n1 / (n1 + 2 n2), or a half where no n-gram counts 1.
    """
    n1, n2, n3, n4 = (int((counts == number).sum()) for number in (1, 2, 3, 4))
    share = n1 / (n1 + 2 * n2) if n1 else 0.5
    if n1 and n2 and n3:
        two, more = 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3
        if n4 and two > 0 and more > 0:
            return Discounts(share, two, more)  # 1 - 2 share n2 / n1 is share itself
    return Discounts(share, share, share)


class Level(NamedTuple):
    """All n-grams of one length, in the order of their numbers."""

    keys: Integers  # sorted: first token * rests + number of the rest
    rests: int  # n-grams that are one token shorter
    context: Integers  # the number of all its tokens but the last
    often: Integers  # how often it occurs as something to predict


class NGrams:
    """The counts of a text. They hold for any discount, so that another costs no counting."""

    def __init__(self, text: TokenSequence, vocab_size: int, order: int) -> None:
        self.vocab_size, self.levels = vocab_size, list[Level]()
        self.before: list[Integers] = []  # what the n-grams of a level count in models of higher orders
        rest, rests = np.zeros(len(text.ids), np.int64), 1  # the number of the shorter n-gram that ends at each token
        for length in range(1, order + 1):
            at = np.flatnonzero(text.place >= length - 1)
            key = text.ids[at - length + 1] * rests + rest[at]
            keys, first, number = np.unique(key, return_index=True, return_inverse=True)
            if self.levels:
                begins = rest[text.predicted & (text.place == length - 2)]
                self.before.append(np.bincount(keys % rests, minlength=rests) + np.bincount(begins, minlength=rests))
            often = np.bincount(number[text.predicted[at]], minlength=len(keys))
            self.levels.append(Level(keys, rests, rest[at[first] - 1], often))
            rest, rests = _spread(number, at, len(text.ids)), len(keys)

    def nats(self, text: TokenSequence, discount: float | None = None) -> Iterator[Floats]:
        """Of each prediction of a text, in its order: under the model of order 1, then 2, and so on.

        `discount` is taken from every count; None estimates the discounts of each order.
        """
        assert discount is None or 0 < discount <= 1
        at = np.flatnonzero(text.predicted)
        lower = np.full(len(at), 1 / self.vocab_size)
        rest = np.zeros(len(text.ids), np.int64)
        for length, level in enumerate(self.levels, start=1):
            number = self._find(text, rest, length)
            numbers = number[at], rest[at - 1]
            yield -np.log(_interpolate(level, level.often, discount, *numbers, lower))
            if length < len(self.levels):
                lower = _interpolate(level, self.before[length - 1], discount, *numbers, lower)
            rest = number

    def _find(self, text: TokenSequence, rest: Integers, length: int) -> Integers:
        """The number of the n-gram of this length that ends at each token, given those that are one shorter."""
        level = self.levels[length - 1]
        at = np.flatnonzero((text.place >= length - 1) & (rest != UNSEEN))
        key = text.ids[at - length + 1] * level.rests + rest[at]
        number = np.searchsorted(level.keys, key)
        number[np.append(level.keys, UNSEEN)[number] != key] = UNSEEN
        return _spread(number, at, len(text.ids))


def _spread(number: Integers, at: Integers, size: int) -> Integers:
    found = np.full(size, UNSEEN, np.int64)
    found[at] = number
    return found


def _interpolate(
    level: Level, counts: Integers, discount: float | None, number: Integers, context: Integers, lower: Floats
) -> Floats:
    """p(w | h) for n-grams of these numbers and contexts, from p(w | h')."""
    discounts = estimate_discounts(counts) if discount is None else Discounts(discount, discount, discount)
    taken = np.array((0.0, *discounts))[np.minimum(counts, 3)]
    kept = np.append(counts - taken, 0.0)[number]
    total, spare = (np.append(np.bincount(level.context, part, level.rests), 0.0)[context] for part in (counts, taken))
    return np.where(total > 0, (kept + spare * lower) / np.maximum(total, 1), lower)


def choose_order(text: TokenSequence, vocab_size: int, orders: tuple[int, ...], discount: float | None = None) -> int:
    """The order that predicts the last tenth of a text best when it has counted the rest."""
    border, reach = len(text.ids) - len(text.ids) // HELD_OUT, max(orders)
    counts = NGrams(text.before(border), vocab_size, reach)
    held = int(text.predicted[border:].sum())
    # Begun earlier by the longest context, so that the first tokens have theirs, and scored from the border on.
    found = counts.nats(text.after(max(0, border - reach + 1)), discount)
    nats = [float(one[len(one) - held :].sum()) for one in found]
    return min(orders, key=lambda order: nats[order - 1])
