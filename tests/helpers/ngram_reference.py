"""A dictionary implementation of Kneser-Ney n-grams, one token at a time, and token files to count."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import numpy as np

from helpers.labelled_corpora import token_file
from lilliput.data.ngrams.kneser_ney import estimate_discounts
from lilliput.data.prepare.token_files import TokenFile

VOCAB, START = 18, 16
Gram = tuple[int, ...]


def make_file(seed: int, ends: bool = True, below: int = 6) -> TokenFile:
    """Documents of different lengths, one empty; few ids, so that long n-grams repeat."""
    return token_file([3, 40, 1, 0, 25, 60, 2], below=below, seed=seed, ends=ends)


def documents(file: TokenFile, start: int) -> list[Gram]:
    omitted = 0 if file.ends else 1
    pairs = zip(file.offsets[:-1].tolist(), file.offsets[1:].tolist(), strict=True)
    return [(start, *file.tokens[first : after - omitted].tolist()) for first, after in pairs]


class ByDefinition:
    """The recursion in the docstring of `kneser_ney`, one token at a time."""

    def __init__(self, train: list[Gram], order: int, discount: float | None) -> None:
        self.order, self.discount = order, discount
        self.counts: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
        for length in range(1, order + 1):
            before: dict[Gram, set[int]] = defaultdict(set)
            for document in train:
                for end in range(max(2, length), len(document) + 1):
                    gram = document[end - length : end]
                    if length == order:
                        self.counts[length][gram] += 1
                    elif end == length:
                        self.counts[length][gram] += 1  # at the start of the document
                    else:
                        before[gram].add(document[end - length - 1])
            for gram, tokens in before.items():
                self.counts[length][gram] += len(tokens)

    def taken(self, length: int, count: int) -> float:
        if self.discount is not None:
            return self.discount
        return estimate_discounts(np.array(list(self.counts[length].values())))[min(count, 3) - 1]

    def probability(self, token: int, context: Gram) -> float:
        if len(context) == self.order:
            context = context[1:]
        below = self.probability(token, context[1:]) if context else 1 / VOCAB
        length = len(context) + 1
        follow = {gram[-1]: count for gram, count in self.counts[length].items() if gram[:-1] == context}
        if not follow:
            return below
        total = sum(follow.values())
        spare = sum(self.taken(length, count) for count in follow.values())
        own = follow[token] - self.taken(length, follow[token]) if token in follow else 0.0
        return own / total + spare / total * below

    def nats(self, evaluated: list[Gram]) -> list[float]:
        return [
            -math.log(self.probability(document[at], document[max(0, at - self.order + 1) : at]))
            for document in evaluated
            for at in range(1, len(document))
        ]
