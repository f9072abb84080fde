"""What an unknown word would have cost if it had to be written out: so that not knowing words never flatters.

Owns: the model of letters that spells, and the nats of the unknown words of documents. Does not own: the nats
of the unknown token itself, which are the judged model's (`token_scores`), or how both become a figure
(`language_metrics`).

A model of words pays one cheap token for every word that it does not know, whatever that word was; a model of
BPE pays for all of its letters. The two can be compared when each unknown token also pays for spelling its
word. The speller sees the bytes of a word and an end mark, two bytes back, smoothed by Witten and Bell's rule
down to a uniform choice, and is fitted on the words of the vocabulary, each once: an unknown word is more
like a word that is rare than like one that is frequent. Its probabilities sum to one over all strings of
bytes; what it gives to words that are known, and so are never spelled, is lost: the cost is an upper bound,
which errs in favour of whoever knows more words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lilliput.data.tokenizers import Tokenizer
from lilliput.settings.tree import TokenizerSettings

END, START = 256, 257  # beside the 256 bytes; the start is never written
SYMBOLS = 257
ORDER = 2  # bytes that a byte depends on

Context = tuple[int, ...]


class Speller:
    """Probabilities of words, byte by byte."""

    def __init__(self, words: Iterable[str]) -> None:
        self.counts: dict[Context, Counter[int]] = {}
        for word in words:
            for context, symbol in steps(word.encode()):
                for length in range(ORDER + 1):
                    self.counts.setdefault(context[ORDER - length :], Counter())[symbol] += 1
        self.totals = {context: found.total() for context, found in self.counts.items()}

    def nats(self, word: str) -> float:
        return -math.fsum(math.log(self.chance(symbol, context)) for context, symbol in steps(word.encode()))

    def chance(self, symbol: int, context: Context) -> float:
        """Witten and Bell 1991, method C: a context gives its shorter form the weight of as many sights as it has had different
        continuations."""
        shorter = self.chance(symbol, context[1:]) if context else 1 / SYMBOLS
        found = self.counts.get(context)
        if found is None:
            return shorter
        return (found[symbol] + len(found) * shorter) / (self.totals[context] + len(found))


def steps(word: bytes) -> Iterator[tuple[Context, int]]:
    """Each byte of a word, and its end, with what stands before it."""
    symbols = [START] * ORDER + [*word, END]
    for at in range(ORDER, len(symbols)):
        yield tuple(symbols[at - ORDER : at]), symbols[at]


def fit_speller(tokenizer: Tokenizer) -> Speller:
    """On the words that the vocabulary has: those of the training split that were frequent enough."""
    known = (tokenizer.piece(number) for number in range(tokenizer.vocab_size) if number != tokenizer.unknown)
    return Speller(word for word in known if word)


def spell_unknown(tokenizer: Tokenizer, texts: Sequence[str], unknown: NDArray[np.int64]) -> NDArray[np.float64]:
    """(documents,) nats of spelling the unknown words of each text, as they stand there; `unknown` (documents,) says how many
    each has."""
    speller, nats = fit_speller(tokenizer), np.zeros(len(texts))
    for number in np.flatnonzero(unknown).tolist():
        words: Counter[str] = Counter()
        tokenizer.encode_arrays([texts[number]], words)
        nats[number] = math.fsum(times * speller.nats(word) for word, times in words.items())
    return nats


def list_lost(tokenizer: Tokenizer, settings: TokenizerSettings, unknown: bool) -> list[str]:
    """What of a text the tokens do not hold, and no figure over them pays for; none where they hold all of it. `unknown`: some of
    its words are."""
    if not tokenizer.lossy:
        return []
    lost = ["which words were unknown"] if unknown else []
    if tokenizer.kind == "word":
        lost += ["white space"] + (["punctuation marks"] if settings.punctuation == "strip" else [])
    elif tokenizer.kind != "character":
        return [*lost, "what its normaliser changes"]
    return lost + (["capital letters"] if settings.lowercase else [])
