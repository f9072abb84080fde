"""A row's ids as text, returned when it is certain, and the strings that end it.

Owns: `text_after`, what ids add to a prompt; `IncrementalDecoder`, one row's text up to its first stop string, and
`find_stop`, which finds it. Does not own: what a token is (`data.tokenizers`) or the loops, which check after each token
whether the text is complete.

The first stop string is the one that is complete first, of those complete at the same place the longest. So it depends
on the text alone and not on its tokens, and no further token is generated to see whether a longer string, begun earlier,
will be complete as well.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from lilliput.data.tokenizers import TokenDecoder, Tokenizer


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop string of the text begins."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def count_partial(text: str, stops: Sequence[str]) -> int:
    """Count the characters at the text's end that may be the beginning of a stop string: the most, if there are several ways."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for count in range(longest, 0, -1):
        tail = text[-count:]
        if any(stop.startswith(tail) for stop in stops):
            return count
    return 0


def build_stop_check(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> Callable[[Sequence[int], Sequence[int]], tuple[str, bool]]:
    """Return the rule for texts that are not decoded incrementally (beams). Given a prompt and the ids after it, it returns
    their text before a stop string, and whether there is one."""

    def read(prompt: Sequence[int], ids: Sequence[int]) -> tuple[str, bool]:
        text, half = decode_whole(tokenizer, ids) if tokenizer.byte_level else (text_after(tokenizer, prompt, ids), "")
        at = find_stop(text, stops)
        return (text + half)[:at], at is not None

    return read


def decode_whole(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, str]:
    """Return the text of byte-level ids, and half a character at its end, which no stop string contains."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(map(tokenizer.token_bytes, ids))), decoder.decode(b"", final=True)


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of these ids where they follow the prompt, including what separates the two."""
    return find_separator(tokenizer, prompt, ids) + tokenizer.decode(ids)


def find_separator(tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> str:
    """Return the text between a prompt and what follows: a space, where tokens are words that do not include their own."""
    if tokenizer.byte_level:  # bytes follow with nothing between
        return ""
    prompt, text, both = (tokenizer.decode(ids) for ids in (before, after, [*before, *after]))
    between = both.removeprefix(prompt).removesuffix(text)
    return between if both == prompt + between + text else ""


class IncrementalDecoder:
    """The text of one row after its prompt: `push` its ids, `take` what is certain, `flush` at the end.

    What may be the beginning of a stop string is held back until it is certain. All that was taken and flushed is the decoded
    text before its first stop string.
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
        """Return whether a stop string is complete; what is pushed after it is ignored."""
        self._ids.append(id_)
        self._read(self._decoder.push(id_))
        # Words wait in the decoder for the next one, but a stop string that the last word completes is complete.
        waits = bool(self.stops) and not self.tokenizer.byte_level and not self.stopped
        if waits and find_stop(text_after(self.tokenizer, self.prompt, self._ids), self.stops) is not None:
            self._read(self._decoder.flush())
        return self.stopped

    def take(self) -> str:
        """Return the text that has become certain since the last call."""
        taken, self._ready = self._ready, ""
        return taken

    def flush(self) -> str:
        """Return the rest of the text: nothing comes after it."""
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
