"""Cost of spelling unknown words, so that a small vocabulary does not improve the metrics.

Owns: the byte model that spells words, and the nats of the unknown words of documents. Does not own: the nats of the
unknown token itself (`decoding.token_scores`), or the metrics (`language_metrics`).

A word model pays one cheap token for every unknown word, whereas a BPE model pays for all of its letters. The two are
comparable if each unknown token also pays for spelling its word. The speller predicts each byte and an end symbol from
two bytes of context, with Witten-Bell smoothing down to a uniform distribution. It is fitted on the words of the
vocabulary, each once, because an unknown word resembles rare words more than frequent ones. Its probabilities sum to
one over all byte strings. The probability of known words, which are never spelled, is lost, so the cost is an upper
bound that favours large vocabularies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lilliput.data.tokenizers import Tokenizer
from lilliput.settings.tree import TokenizerSettings

END, START = 256, 257  # after the 256 bytes; the start is never predicted
SYMBOLS = 257
ORDER = 2  # bytes of context
# What a normaliser loses, with a text that it then changes.
NORMALISED = {"white space": "a\n\nb", "typographic punctuation": "“a”", "capital letters": "A"}

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
        """Return p(symbol | context) by Witten and Bell 1991, method C.

        The shorter context is weighted by the number of distinct continuations of this one.
        """
        shorter = self.chance(symbol, context[1:]) if context else 1 / SYMBOLS
        found = self.counts.get(context)
        if found is None:
            return shorter
        return (found[symbol] + len(found) * shorter) / (self.totals[context] + len(found))


def steps(word: bytes) -> Iterator[tuple[Context, int]]:
    """Yield each byte of a word, and its end, with the context before it."""
    symbols = [START] * ORDER + [*word, END]
    for at in range(ORDER, len(symbols)):
        yield tuple(symbols[at - ORDER : at]), symbols[at]


def fit_speller(tokenizer: Tokenizer) -> Speller:
    """Fit a speller on the words of the vocabulary."""
    known = (tokenizer.piece(number) for number in range(tokenizer.vocab_size) if number != tokenizer.unknown)
    return Speller(word for word in known if word)


def spell_unknown(tokenizer: Tokenizer, texts: Sequence[str], unknown: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (documents,) nats of spelling the unknown words of each text; `unknown` (documents,) is their number."""
    speller, nats = fit_speller(tokenizer), np.zeros(len(texts))
    for number in np.flatnonzero(unknown).tolist():
        words: Counter[str] = Counter()
        tokenizer.encode_arrays([texts[number]], words)
        nats[number] = math.fsum(times * speller.nats(word) for word, times in words.items())
    return nats


LOST_LINE_ENDS = "which line ends were CRLF or CR"


def list_lost(tokenizer: Tokenizer, settings: TokenizerSettings, unknown: bool) -> list[str]:
    """Return what the tokens of a text do not contain, and no metric measures; empty if nothing is lost.

    `unknown`: some words are unknown.
    """
    if not tokenizer.lossy:
        return []
    lost = ["which words were unknown"] if unknown else []
    if tokenizer.kind == "word":
        lost += ["white space"] + (["punctuation marks"] if settings.punctuation == "strip" else [])
    changed = [name for name, sample in NORMALISED.items() if tokenizer.normalise(sample) != sample]
    if tokenizer.kind in ("word", "character") or (tokenizer.byte_level and changed):
        return lost + [name for name in changed if name not in lost]
    return [*lost, "changes by the normaliser"]
