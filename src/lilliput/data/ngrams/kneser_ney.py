"""Interpolated Kneser-Ney n-grams over token ids, exact and normalised.

Owns: the counts of all n-grams up to an order, the discounts, the nats of each prediction under each order, and the
choice of an order on held-out training text. Does not own: metrics (`evaluation.baselines`), the distribution over the
whole vocabulary (`sparse_tables`), files of counts (`count_files`), or mixing with a model (`decoding.ngram_mixture`).

For a token w, its context h of n - 1 tokens, and h', which is h without its first token,

    p(w | h) = (c(hw) - d(hw)) / c(h) + d(h) / c(h) * p(w | h')

c(h) and d(h) are the sums of c(hv) and d(hv) over all v. The recursion ends at 1 / vocab_size below the unigrams. A
context that is not in training leaves p(w | h'). In the model of order n, c of an n-gram is its number of occurrences.
c of a shorter one is the number of different tokens before it, plus the number of documents that begin with it. d is
the discount of a count of 1, 2, and 3 or more (modified Kneser-Ney: Chen and Goodman 1999, section 3.1), and 0 for an
n-gram that is not in training.

A document begins with the start token as context, and no n-gram crosses a document border: the first token has a
context of one token in every order. An n-gram is identified by its number: its index among the sorted pairs (first
token, number of the rest). 64 bits suffice for any order, and each order costs one sort of the text.
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
UNSEEN = -1  # the number of an n-gram that is not in training: index -1 of a table holds its value
HELD_OUT = 10  # 1/10 of the training text chooses the order
MOST_TOKENS = 10_000_000  # of a text that is counted: about 1.5 GB and a minute


@dataclass(frozen=True)
class TokenSequence:
    """Documents in sequence, each with a start token before it that is never predicted."""

    ids: Integers
    place: Integers  # number of context tokens: 0 is the start token

    @property
    def predicted(self) -> NDArray[np.bool_]:
        return self.place > 0

    def before(self, index: int) -> TokenSequence:
        return TokenSequence(self.ids[:index], self.place[:index])

    def after(self, index: int) -> TokenSequence:
        """Return the rest from `index`. A document that is split there has no context from before `index`."""
        return TokenSequence(self.ids[index:], np.minimum(self.place[index:], np.arange(len(self.ids) - index)))


def lay_out(file: TokenFile, start: int, most: int | None = None) -> TokenSequence:
    """Return all documents, or their first `most` tokens, start tokens included."""
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
    """The discounts of a count of 1, of 2, and of 3 or more. All are positive, so that no probability is 0."""

    one: float
    two: float
    more: float


def estimate_discounts(counts: Integers) -> Discounts:
    """Return Chen and Goodman's discounts from the number of n-grams that occur 1, 2, 3 and 4 times.

    Small or regular texts can lack one of these, or give a negative discount. Then one discount is used for all: Ney's
    n1 / (n1 + 2 n2), or 0.5 if no n-gram occurs once.
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
    rests: int  # number of n-grams that are one token shorter
    context: Integers  # the number of the n-gram without its last token
    often: Integers  # occurrences as a prediction


class NGrams:
    """The n-gram counts of a text. They do not depend on the discount."""

    def __init__(self, text: TokenSequence, vocab_size: int, order: int) -> None:
        self.vocab_size, self.levels = vocab_size, list[Level]()
        self.before: list[Integers] = []  # counts of each level's n-grams in models of higher orders
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

    @classmethod
    def from_levels(cls, levels: list[Level], before: list[Integers], vocab_size: int) -> NGrams:
        """Return counts that were made earlier."""
        counts = cls.__new__(cls)
        counts.vocab_size, counts.levels, counts.before = vocab_size, levels, before
        return counts

    def nats(self, text: TokenSequence, discount: float | None = None) -> Iterator[Floats]:
        """Yield the nats of each prediction in `text` for order 1, then 2, and so on.

        `discount` is subtracted from every count; None estimates the discounts of each order.
        """
        assert discount is None or 0 < discount <= 1
        at = np.flatnonzero(text.predicted)
        lower = np.full(len(at), 1 / self.vocab_size)
        rest = np.zeros(len(text.ids), np.int64)
        for length, level in enumerate(self.levels, start=1):
            number = self.find(text, rest, length)
            numbers = number[at], rest[at - 1]
            yield -np.log(_interpolate(level, level.often, discount, *numbers, lower))
            if length < len(self.levels):
                lower = _interpolate(level, self.before[length - 1], discount, *numbers, lower)
            rest = number

    def find(self, text: TokenSequence, rest: Integers, length: int) -> Integers:
        """Return the number of the n-gram of this length that ends at each token, from those one token shorter
        (`rest`).
        """
        level = self.levels[length - 1]
        at = np.flatnonzero((text.place >= length - 1) & (rest != UNSEEN))
        key = text.ids[at - length + 1] * level.rests + rest[at]
        number = np.searchsorted(level.keys, key)
        found = number < len(level.keys)
        found[found] = level.keys[number[found]] == key[found]
        return _spread(np.where(found, number, UNSEEN), at, len(text.ids))


def _spread(number: Integers, at: Integers, size: int) -> Integers:
    found = np.full(size, UNSEEN, np.int64)
    found[at] = number
    return found


def _interpolate(
    level: Level, counts: Integers, discount: float | None, number: Integers, context: Integers, lower: Floats
) -> Floats:
    """Return p(w | h) for n-grams of these numbers and contexts, from p(w | h')."""
    taken = discount_counts(counts, discount)
    kept = np.append(counts - taken, 0.0)[number]
    total, spare = (np.append(np.bincount(level.context, part, level.rests), 0.0)[context] for part in (counts, taken))
    return np.where(total > 0, (kept + spare * lower) / np.maximum(total, 1), lower)


def discount_counts(counts: Integers, discount: float | None = None) -> Floats:
    """Return what is subtracted from each count: `discount`, or (None) the estimated discounts; 0 from a count of 0."""
    discounts = estimate_discounts(counts) if discount is None else Discounts(discount, discount, discount)
    taken: Floats = np.array((0.0, *discounts))[np.minimum(counts, 3)]
    return taken


def choose_order(text: TokenSequence, vocab_size: int, orders: tuple[int, ...], discount: float | None = None) -> int:
    """Return the order that predicts the last tenth of a text best after counting the rest."""
    border, reach = len(text.ids) - len(text.ids) // HELD_OUT, max(orders)
    counts = NGrams(text.before(border), vocab_size, reach)
    held = int(text.predicted[border:].sum())
    # Start earlier by the longest context, so that the first scored tokens have their full context.
    found = counts.nats(text.after(max(0, border - reach + 1)), discount)
    nats = [float(one[len(one) - held :].sum()) for one in found]
    return min(orders, key=lambda order: nats[order - 1])
