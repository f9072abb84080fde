"""How much a model repeats: itself within a text, and from one text to the next.

Owns: distinct-n, repetition and self-BLEU of any texts. Does not own: likeness to references (`bleu`). To be
read beside the same figures of the references: a model should neither repeat more than people do nor less.

A word is what sacrebleu's tokenizer 13a makes of a text, as for BLEU: a mark is one, and all figures count
the same things.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from lilliput.evaluation.bleu import ORDERS
from lilliput.evaluation.bleu_conventions import count_ngrams


def cut_words(texts: Sequence[str]) -> list[list[str]]:
    from sacrebleu.metrics.bleu import BLEU

    tokenizer = BLEU(tokenize="13a").tokenizer
    return [tokenizer(text.rstrip()).split() for text in texts]


def distinct(texts: Sequence[Sequence[str]], n: int) -> float | None:
    """Different n-grams / n-grams, over all texts together (Li et al. 2016); None where no text has n words. It falls as
    texts grow, whoever wrote them: to be compared only at the same number and length of texts."""
    counts = sum((count_ngrams(words, n) for words in texts), Counter())
    return len(counts) / counts.total() if counts else None


def repetition(texts: Sequence[Sequence[str]], n: int) -> float | None:
    """The share of n-grams that stood earlier in the same text, as a mean over texts (Welleck et al. 2020, seq-rep-n)."""
    counts = [count_ngrams(words, n) for words in texts]
    shares = [1 - len(count) / count.total() for count in counts if count]
    return math.fsum(shares) / len(shares) if shares else None


def self_bleu(texts: Sequence[Sequence[str]], order: int = max(ORDERS)) -> float | None:
    """The mean sentence BLEU of each text with all others as its references, 0 to 100 (Zhu et al. 2018): high where a model
    writes the same again. None for fewer than two texts. Equal to sacrebleu's with as many references, but its n-grams are
    counted once and not once for every other text."""
    from sacrebleu.metrics.bleu import BLEU

    if len(texts) < 2:
        return None
    counts = [[count_ngrams(words, n) for n in range(1, order + 1)] for words in texts]
    # How often an n-gram stands in the text that has the most of it, and in the next one: without a text, its most is
    # the first of the two, or the second if the text itself has the most.
    most: Counter[Any] = Counter()
    second: Counter[Any] = Counter()
    for orders in counts:
        for count in orders:
            for ngram, times in count.items():
                second[ngram] = max(second[ngram], min(times, most[ngram]))
                most[ngram] = max(most[ngram], times)
    lengths = np.array([len(words) for words in texts])
    scores = []
    for at, orders in enumerate(counts):
        right = [
            sum(min(times, (second if times == most[ngram] else most)[ngram]) for ngram, times in count.items())
            for count in orders
        ]
        others = np.delete(lengths, at)
        # The closest length, of two that are as close the shorter one.
        closest = int(others[np.lexsort((others, abs(others - lengths[at])))[0]])
        written = [count.total() for count in orders]
        scores.append(
            BLEU.compute_bleu(
                right, written, len(texts[at]), closest, "exp", effective_order=True, max_ngram_order=order
            ).score
        )
    return math.fsum(scores) / len(scores)


def diversity_figures(texts: Sequence[str]) -> dict[str, Any]:
    """`{distinct: {"1": ..}, repetition: {"1": ..}, self_bleu, words}`; words: the mean length."""
    cut = cut_words(texts)
    return {
        "distinct": {str(n): distinct(cut, n) for n in ORDERS},
        "repetition": {str(n): repetition(cut, n) for n in ORDERS},
        "self_bleu": self_bleu(cut),
        "words": sum(map(len, cut)) / len(cut),
    }
