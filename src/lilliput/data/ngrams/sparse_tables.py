"""Distributions over the whole vocabulary of a Kneser-Ney model, from sparse tables.

Owns: the table of each order, and the probabilities of all tokens after a context. Does not own: counts, discounts and
the recursion (`kneser_ney`), whose probabilities these are.

After a context h, most tokens have no n-gram. Their probability is the spare mass d(h) / c(h) times that of the shorter
context. So a table has the tokens that follow each context in training, with (c(hw) - d(hw)) / c(h), and the spare mass
of each context. A distribution is the one of order 1, multiplied by the spare mass of each longer context that is in
training, plus the few entries of that context. Only order 1 is a vector over the vocabulary.

B contexts, V vocabulary, N n-grams of one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lilliput.data.ngrams.kneser_ney import UNSEEN, Floats, NGrams, TokenSequence, discount_counts
from lilliput.data.packed_windows import Integers


class ContextTable(NamedTuple):
    """The tokens that follow each context of one length; those of context c are `begins[c]` to `begins[c + 1]`."""

    begins: Integers  # (contexts + 1,)
    tokens: Integers  # (N,)
    shares: Floats  # (N,) discounted count / count of the context
    spare: Floats  # (contexts,) mass left for the shorter context; 1 for a context that nothing follows


class SparseTables:
    """The model of the highest order that was counted."""

    def __init__(self, counts: NGrams) -> None:
        self.counts = counts
        last = [counts.levels[0].keys]  # the last token of each n-gram
        for level in counts.levels[1:]:
            last.append(last[-1][level.keys % level.rests])
        first, *self.tables = (build_table(counts, length, tokens) for length, tokens in enumerate(last, start=1))
        self.unigrams = np.full(counts.vocab_size, first.spare[0] / counts.vocab_size)  # (V,)
        self.unigrams[first.tokens] += first.shares

    def distributions(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Return (B, V): the probabilities of the next token of each text.

        A text begins with the start token of its document; only its last tokens are read. Each row is independent of
        the others.
        """
        found = np.tile(self.unigrams, (len(texts), 1))
        for table, context in zip(self.tables, self.find_contexts(texts), strict=True):
            rows = np.flatnonzero(context != UNSEEN)
            known = context[rows]
            found[rows] *= table.spare[known, None]
            begins, sizes = table.begins[known], table.begins[known + 1] - table.begins[known]
            places = np.arange(sizes.sum()) + np.repeat(begins - (sizes.cumsum() - sizes), sizes)
            found[np.repeat(rows, sizes), table.tokens[places]] += table.shares[places]  # a token once per row
        return found

    def find_contexts(self, texts: Sequence[Sequence[int]]) -> list[Integers]:
        """Return the numbers of the last 1, 2, ... tokens of each text, (B,) each; UNSEEN if they are not in training."""
        longest = len(self.tables)
        if not longest:
            return []
        ends = [text[-longest:] for text in texts]
        sizes = np.array([len(end) for end in ends])
        after = sizes.cumsum()
        ids = np.array([id_ for end in ends for id_ in end], np.int64)
        text = TokenSequence(ids, np.arange(len(ids)) - np.repeat(after - sizes, sizes))
        number, found = np.zeros(len(ids), np.int64), list[Integers]()
        for length in range(1, longest + 1):
            number = self.counts.find(text, number, length)
            found.append(number[after - 1])
        return found


def build_table(counts: NGrams, length: int, last: Integers) -> ContextTable:
    """Return the table of the n-grams of this length; `last` is the last token of each."""
    level = counts.levels[length - 1]
    times = level.often if length == len(counts.levels) else counts.before[length - 1]
    taken = discount_counts(times)
    # A context is an n-gram that is one token shorter, so there are as many contexts as `rests`.
    total, spare = (np.bincount(level.context, part, level.rests) for part in (times, taken))
    used = np.flatnonzero(times)
    used = used[np.argsort(level.context[used], kind="stable")]
    owner = level.context[used]
    begins = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=level.rests))])
    divisor = np.maximum(total, 1)
    shares: Floats = (times - taken)[used] / divisor[owner]
    return ContextTable(begins, last[used], shares, np.where(total > 0, spare / divisor, 1.0))
