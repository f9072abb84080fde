"""BLEU as other reports on small models compute it, for comparison with published values.

Owns: the mean of sentence BLEU from 0 to 1, as in NLTK's `sentence_bleu`, and its variants, each with a name and a
definition. Does not own: the BLEU that Lilliput reports (`bleu`), which is sacrebleu's corpus BLEU from 0 to 100.

A published "BLEU 0.0376" without a definition is one of these. They differ by a factor of ten on the same texts, so
every value is reported with its definition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from lilliput.evaluation.bleu import ORDERS

EPSILON = 0.1  # matches counted by method 1 of Chen and Cherry (2014) if there are none; NLTK's default


class Convention(NamedTuple):
    meaning: str
    epsilon: float = EPSILON


CONVENTIONS = {
    "words": Convention(
        "mean over samples of sentence BLEU on words split at white space, 0 to 1; an order without a match counts "
        "0.1 n-grams (Chen and Cherry 2014, method 1; NLTK's SmoothingFunction().method1)"
    ),
    "words_unsmoothed": Convention("as words, without smoothing: a sample with no match in an order scores 0", 0.0),
    "words_with_prompt": Convention("as words, with the prompt prepended to both texts; all of its words match"),
    "tokens": Convention("as words, on token ids; unknown words match each other"),
    "forced": Convention(
        "as tokens, with teacher forcing: the most likely token at each position of the reference, given all true tokens "
        "before it; not a generated text"
    ),
}

Words = Sequence[Hashable]


def sentence_bleu(hypothesis: Words, reference: Words, order: int, epsilon: float = EPSILON) -> float:
    """Return sentence BLEU from 0 to 1, with two properties of NLTK.

    A hypothesis that shares no word with the reference scores 0 with any smoothing. One that is too short for an order
    counts as having one n-gram of that order, although it has none.
    """
    logs = []
    for n in range(1, order + 1):
        generated, expected = count_ngrams(hypothesis, n), count_ngrams(reference, n)
        right: float = (generated & expected).total()
        if right == 0 and (n == 1 or epsilon == 0.0):
            return 0.0
        logs.append(math.log((right or epsilon) / max(1, generated.total())))
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
