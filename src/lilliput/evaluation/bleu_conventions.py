"""BLEU as reports about small models compute it, so that a published figure is compared with its like.

Owns: the mean of sentence BLEU from 0 to 1, as NLTK's `sentence_bleu` has it, and the ways to use it, each
with its name and its sentence. Does not own: the BLEU that Lilliput reports (`bleu`), which is sacrebleu's,
of the corpus, and from 0 to 100.

A figure such as "BLEU 0.0376" without more is one of these. They differ by a factor of ten on the same texts,
which is why none of them is ever told without its sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from lilliput.evaluation.bleu import ORDERS

EPSILON = 0.1  # what method 1 of Chen and Cherry (2014) counts where nothing matched; NLTK's default


class Convention(NamedTuple):
    meaning: str
    epsilon: float = EPSILON


CONVENTIONS = {
    "words": Convention(
        "mean over samples of sentence BLEU on words as white space separates them, 0 to 1; an order without a match counts "
        "0.1 n-grams (Chen and Cherry 2014, method 1; NLTK's SmoothingFunction().method1)"
    ),
    "words_unsmoothed": Convention("as words, without smoothing: a sample that misses an order has 0", 0.0),
    "words_with_prompt": Convention("as words, with the prompt before both texts, whose words all match"),
    "tokens": Convention("as words, on the ids of the model's own tokens, where one unknown word matches another"),
    "forced": Convention(
        "as tokens, of the likeliest token at each place of the reference after all true ones before it: not of a text that "
        "the model wrote"
    ),
}

Words = Sequence[Hashable]


def sentence_bleu(hypothesis: Words, reference: Words, order: int, epsilon: float = EPSILON) -> float:
    """From 0 to 1. A hypothesis that shares no word with the reference has 0 whatever the smoothing; one that is too short for
    an order is treated as if it had one n-gram of it, which is wrong (both as NLTK does)."""
    logs = []
    for n in range(1, order + 1):
        written, given = count_ngrams(hypothesis, n), count_ngrams(reference, n)
        right: float = (written & given).total()
        if right == 0 and (n == 1 or epsilon == 0.0):
            return 0.0
        logs.append(math.log((right or epsilon) / max(1, written.total())))
    brevity = min(0.0, 1 - len(reference) / len(hypothesis))
    return math.exp(brevity + math.fsum(logs) / order)


def convention_bleu(name: str, hypotheses: Sequence[Words], references: Sequence[Words]) -> dict[str, float | str]:
    """`{"1": .., "4": .., meaning}`"""
    meaning, epsilon = CONVENTIONS[name]
    found: dict[str, float | str] = {"meaning": meaning}
    for order in ORDERS:
        scores = [sentence_bleu(*pair, order, epsilon) for pair in zip(hypotheses, references, strict=True)]
        found[str(order)] = math.fsum(scores) / len(scores)
    return found


def count_ngrams(words: Words, n: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))
