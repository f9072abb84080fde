"""Split long texts into pieces without changing their tokens.

Does not own: the tokens (`tokenizers`) or documents (`corpora`). The tokenizers library needs about 140 bytes per byte
of text; pieces bound its memory and let several cores work on one long document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PIECE = 1 << 16
LONGEST_PIECE = 1 << 20
LONGEST_WORD = 256

# In no kind of tokenizer here does a token contain white space after another character: GPT-2's pattern and the words of
# `word_level` start a new token there. So the position before such white space is always a border of tokens.
_BORDER = re.compile(r"(?<=\S)[ \n]")
_WORD = re.compile(rf"\s*\S{{1,{LONGEST_WORD}}}|\s+")


def cut_text(text: str) -> Iterator[str]:
    """Yield pieces of a long text. Their tokens in sequence are the tokens of the whole text.

    A run of a million characters without a border is split anyway: the tokens then differ from those of the library,
    but (for kinds that are not lossy) decode to the same text.
    """
    start = 0
    while len(text) - start > PIECE:
        found = _BORDER.search(text, start + PIECE, start + LONGEST_PIECE)
        end = found.start() if found else start + LONGEST_PIECE
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def cut_texts(documents: Iterable[str]) -> Iterator[str]:
    """Yield the pieces of all documents, for fitting, which ignores the borders of documents."""
    for document in documents:
        yield from cut_text(document)


def cut_endless_words(documents: Iterable[str]) -> Iterator[str]:
    """Yield pieces with very long words split: training BPE costs (length of a word) x (its merges) for each word."""
    for piece in cut_texts(documents):
        if len(piece) > LONGEST_WORD and max(map(len, piece.split()), default=0) > LONGEST_WORD:
            yield from (found[0] for found in _WORD.finditer(piece))
        else:
            yield piece
