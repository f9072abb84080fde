"""Incremental decoding of a row's ids to text, and the stop strings that end it.

Owns: `text_after`, the text that ids add to a prompt; `IncrementalDecoder`, one row's text up to its first stop string;
`find_stop`. Does not own: tokens (`data.tokenizers`) or the loops, which check after each token whether the text is
complete.

The first stop string is the one that ends first; of those that end at the same place, the longest. So it depends on the
text and not on its tokens, and no further token is generated to see whether a longer one follows.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from lilliput.data.tokenizers import TokenDecoder, Tokenizer


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the index at which the first stop string begins, or None."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def count_partial(text: str, stops: Sequence[str]) -> int:
    """Return the largest number of characters at the end of the text that may begin a stop string."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for count in range(longest, 0, -1):
        tail = text[-count:]
        if any(stop.startswith(tail) for stop in stops):
            return count
    return 0


def build_stop_check(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> Callable[[Sequence[int], Sequence[int]], tuple[str, bool]]:
    """Return the stop check of beam search, which does not decode incrementally (`beam_hypotheses.StopCheck`)."""

    def read(prompt: Sequence[int], ids: Sequence[int]) -> tuple[str, bool]:
        text, half = decode_whole(tokenizer, ids) if tokenizer.byte_level else (text_after(tokenizer, prompt, ids), "")
        at = find_stop(text, stops)
        return (text + half)[:at], at is not None

    return read


def decode_whole(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, str]:
    """Return the text of byte-level ids, and separately an incomplete character at its end, which no stop string contains."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(map(tokenizer.token_bytes, ids))), decoder.decode(b"", final=True)


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text that these ids add after the prompt, including the separator."""
    return find_separator(tokenizer, prompt, ids) + tokenizer.decode(ids)


def find_separator(tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> str:
    """Return the text between a prompt and the ids after it: a space if tokens are words without their own space."""
    if tokenizer.byte_level:
        return ""
    prompt, text, both = (tokenizer.decode(ids) for ids in (before, after, [*before, *after]))
    between = both.removeprefix(prompt).removesuffix(text)
    return between if both == prompt + between + text else ""


class IncrementalDecoder:
    """The text of one row after its prompt: `push` its ids, `take` the text that is certain, `flush` at the end.

    Text that may begin a stop string is held back until the next token decides. The texts of all `take` and `flush` calls
    are together the decoded text before its first stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        assert all(stops), "an empty string would end every text"
        self.tokenizer, self.prompt, self.stops = tokenizer, prompt, tuple(stops)
        self.stopped = False
        self._decoder = TokenDecoder(tokenizer)
        self._ids: list[int] = []
        self._joined = False
        self._held = self._ready = ""

    def push(self, id_: int) -> bool:
        """Return whether a stop string is complete; later ids are ignored."""
        self._ids.append(id_)
        self._read(self._decoder.push(id_))
        # The decoder holds back the last word, but it may complete a stop string.
        held_back = bool(self.stops) and not self.tokenizer.byte_level and not self.stopped
        if held_back and find_stop(text_after(self.tokenizer, self.prompt, self._ids), self.stops) is not None:
            self._read(self._decoder.flush())
        return self.stopped

    def take(self) -> str:
        """Return the text that has become certain since the last call."""
        taken, self._ready = self._ready, ""
        return taken

    def flush(self) -> str:
        """Return the rest of the text, including text that was held back."""
        self._read(self._decoder.flush())
        self._ready += self._held
        self._held = ""
        return self.take()

    def _read(self, text: str) -> None:
        if not text or self.stopped:
            return
        if not self._joined:
            self._joined = True
            text = find_separator(self.tokenizer, self.prompt, self._ids) + text
        if not self.stops:
            self._ready += text
            return
        text = self._held + text
        at = find_stop(text, self.stops)
        self.stopped = at is not None
        certain = len(text) - count_partial(text, self.stops) if at is None else at
        self._ready += text[:certain]
        self._held = "" if self.stopped else text[certain:]
