"""Tokens of words: which tokens of a text belong to which annotated word.

Owns: the alignment by characters. Does not own: the characters of tokens (`data.tokenizers`) or of words (`data.corpora.conllu`).

A token belongs to every word with which it shares a character. So a word has one or more tokens; a token may belong to several
words (a quotation mark after a full stop may be one token), or to none (white space, the start token).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lilliput.data.corpora.conllu import Word


def tokens_of_words(spans: Sequence[tuple[int, int]], words: Sequence[Word]) -> list[range]:
    """Return the tokens of each word, as indices of `spans`: the characters [start, end) of each token, in order."""
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.searchsorted(ends, [word.start for word in words], side="right")
    last = np.searchsorted(starts, [word.end for word in words], side="left")
    return [range(int(a), int(b)) for a, b in zip(first, last, strict=True)]
