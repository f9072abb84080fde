"""Diversity of texts: repetition within a text and between texts.

Owns: distinct-n, repetition and self-BLEU. Does not own: similarity to references (`bleu`). Compare the values with
those of the references: generated text should repeat neither more nor less than human text.

Words are the tokens of sacrebleu's 13a tokenizer, as for BLEU; a punctuation mark is one word.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from lilliput.evaluation.bleu import ORDERS
from lilliput.evaluation.bleu_conventions import count_ngrams


def split_words(texts: Sequence[str]) -> list[list[str]]:
    from sacrebleu.metrics.bleu import BLEU

    tokenizer = BLEU(tokenize="13a").tokenizer
    return [tokenizer(text.rstrip()).split() for text in texts]


def distinct(texts: Sequence[Sequence[str]], n: int) -> float | None:
    """Return distinct n-grams / all n-grams over all texts together (Li et al. 2016); None if no text has n words.

    The value falls with the amount of text: compare it only for the same number and length of texts.
    """
    counts = sum((count_ngrams(words, n) for words in texts), Counter())
    return len(counts) / counts.total() if counts else None


def repetition(texts: Sequence[Sequence[str]], n: int) -> float | None:
    """Return the share of n-grams that occur earlier in the same text, averaged over texts (Welleck et al. 2020,
    seq-rep-n).
    """
    counts = [count_ngrams(words, n) for words in texts]
    shares = [1 - len(count) / count.total() for count in counts if count]
    return math.fsum(shares) / len(shares) if shares else None


def self_bleu(texts: Sequence[Sequence[str]], order: int = max(ORDERS)) -> float | None:
    """Return the mean sentence BLEU of each text with all others as references, 0 to 100 (Zhu et al. 2018).

    A high value means that the texts are similar. None for fewer than two texts. Equal to sacrebleu's with the same
    references, but n-grams are counted once instead of once per other text.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(texts) < 2:
        return None
    counts = [[count_ngrams(words, n) for n in range(1, order + 1)] for words in texts]
    # The two highest counts of each n-gram in one text. The highest count among all other texts is the first of
    # them, or the second if this text has the highest.
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
        # The closest length; the shorter of two equally close ones.
        closest = int(others[np.lexsort((others, abs(others - lengths[at])))[0]])
        totals = [count.total() for count in orders]
        scores.append(
            BLEU.compute_bleu(
                right, totals, len(texts[at]), closest, "exp", effective_order=True, max_ngram_order=order
            ).score
        )
    return math.fsum(scores) / len(scores)


def diversity_figures(texts: Sequence[str]) -> dict[str, Any]:
    """`{distinct: {"1": ..}, repetition: {"1": ..}, self_bleu, words}`; words: the mean length."""
    split = split_words(texts)
    return {
        "distinct": {str(n): distinct(split, n) for n in ORDERS},
        "repetition": {str(n): repetition(split, n) for n in ORDERS},
        "self_bleu": self_bleu(split),
        "words": sum(map(len, split)) / len(split),
    }
