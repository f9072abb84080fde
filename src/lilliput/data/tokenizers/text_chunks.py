"""Long texts in pieces, so that the tokenizers library never holds a whole document of any size.

Owns: where a text may be cut without changing its tokens. Does not own: the tokens (`tokenizers`), nor what a
document is (`corpora`). The library needs about 140 bytes for a byte of text; pieces bound that, and share a
long document over cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PIECE = 1 << 16
LONGEST_PIECE = 1 << 20
LONGEST_WORD = 256

# No kind of ours holds white space after anything else inside one token: GPT-2's pattern and the words of `words` begin
# anew there, and a character is a token wherever it stands. So the place before such white space is always a border.
_BORDER = re.compile(r"(?<=\S)[ \n]")
_WORD = re.compile(rf"\s*\S{{1,{LONGEST_WORD}}}|\s+")


def cut_text(text: str) -> Iterator[str]:
    """A long text in pieces whose tokens, one after another, are the tokens of the whole.

    A run of a million characters without a border is cut where it is: other tokens than the library's own, but (for
    exact kinds) the same text.
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
    """Documents in pieces, for a learner to which the borders of documents mean nothing."""
    for document in documents:
        yield from cut_text(document)


def cut_endless_words(documents: Iterable[str]) -> Iterator[str]:
    """Documents whose endless words are cut: learning BPE costs (length of a word) x (merges in it) for each word."""
    for piece in cut_texts(documents):
        if len(piece) > LONGEST_WORD and max(map(len, piece.split()), default=0) > LONGEST_WORD:
            yield from (found[0] for found in _WORD.finditer(piece))
        else:
            yield piece
