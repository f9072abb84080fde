"""Decode ids one at a time.

Does not own: tokenizers (`tokenizers`).
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lilliput.data.tokenizers import Tokenizer

_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")  # a byte of a rare character in vocabularies with byte fallback


class TokenDecoder:
    """Decodes one id at a time. Text that `push` returned never changes; an incomplete character waits for its bytes.

    The returned parts together equal `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace") if tokenizer.byte_level else None
        self._ids: list[int] = []
        self._returned = ""

    def push(self, token_id: int) -> str:
        if self._utf8 is not None:
            return self._utf8.decode(self._tokenizer.token_bytes(token_id))
        piece = self._tokenizer.piece(token_id)
        if piece is None:
            return ""
        # Other tokenizers may change the end of a text when a token follows (spaces, quotes), so the last token waits
        # for the next one. A run of bytes waits for its end, because it decodes as a whole or not at all. Each call
        # decodes all ids; a text has some hundreds.
        self._ids.append(token_id)
        return "" if _BYTE_PIECE.fullmatch(piece) else self._emit(self._tokenizer.decode(self._ids[:-1]))

    def flush(self) -> str:
        if self._utf8 is not None:
            return self._utf8.decode(b"", final=True)
        return self._emit(self._tokenizer.decode(self._ids))

    def _emit(self, text: str) -> str:
        if not text.startswith(self._returned):
            return ""
        new, self._returned = text[len(self._returned) :], text
        return new
