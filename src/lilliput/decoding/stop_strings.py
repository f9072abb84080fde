"""A row's ids as text, told when it is certain, and the strings that end it.

Owns: `text_after`, what ids add to a prompt; `IncrementalDecoder`, one row's text up to its first stop
string, and `find_stop`, which one that is. Does not own: what a token is (`data.tokenizers`) or the loops,
which ask after each token whether the text is complete.

The first stop string is the one that is complete first, of those complete at the same place the longest. So
it depends on the text alone and not on how tokens cut it, and nobody writes on to see whether a longer
string, begun earlier, will be complete as well.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from lilliput.data.tokenizers import TokenDecoder, Tokenizer


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first stop string of the text begins."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def count_open(text: str, stops: Sequence[str]) -> int:
    """How many characters at the text's end may be the beginning of a stop string: the most, if there are several ways."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for count in range(longest, 0, -1):
        tail = text[-count:]
        if any(stop.startswith(tail) for stop in stops):
            return count
    return 0


def build_stops(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> Callable[[Sequence[int], Sequence[int]], tuple[str, bool]]:
    """The rule for texts that are not told as they grow (beams): what is told of what follows this prompt, and whether a
    stop string ends it."""

    def read(prompt: Sequence[int], ids: Sequence[int]) -> tuple[str, bool]:
        text, half = decode_whole(tokenizer, ids) if tokenizer.byte_level else (text_after(tokenizer, prompt, ids), "")
        at = find_stop(text, stops)
        return (text + half)[:at], at is not None

    return read


def decode_whole(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, str]:
    """The text of byte-level ids, and half a character at its end, which no stop string has: it waits for its rest."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(map(tokenizer.token_bytes, ids))), decoder.decode(b"", final=True)


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text of these ids where they follow the prompt; what joins the two is a part of it."""
    return find_joint(tokenizer, prompt, ids) + tokenizer.decode(ids)


def find_joint(tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> str:
    """What stands between a prompt and what follows: a space, where tokens are words that do not bring their own."""
    if tokenizer.byte_level:  # bytes follow with nothing between
        return ""
    prompt, text, both = (tokenizer.decode(ids) for ids in (before, after, [*before, *after]))
    between = both.removeprefix(prompt).removesuffix(text)
    return between if both == prompt + between + text else ""


class IncrementalDecoder:
    """The text of one row after its prompt: `push` its ids, `take` what is certain, `flush` at the end.

    What may be the beginning of a stop string is held back until it is one, which nobody sees, or is none. All that was taken
    and flushed is the decoded text before its first stop string.
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
        """Whether a stop string is complete; what is pushed after it is not told."""
        self._ids.append(id_)
        self._read(self._decoder.push(id_))
        # Words wait in the decoder for the next one, but a stop string that the last word completes is complete.
        waits = bool(self.stops) and not self.tokenizer.byte_level and not self.stopped
        if waits and find_stop(text_after(self.tokenizer, self.prompt, self._ids), self.stops) is not None:
            self._read(self._decoder.flush())
        return self.stopped

    def take(self) -> str:
        """The text that has become certain since the last call."""
        taken, self._ready = self._ready, ""
        return taken

    def flush(self) -> str:
        """The rest of the text: nothing comes after it."""
        self._read(self._decoder.flush())
        self._ready += self._held
        self._held = ""
        return self.take()

    def _read(self, text: str) -> None:
        if not text or self.stopped:
            return
        if not self._joined:
            self._joined = True
            text = find_joint(self.tokenizer, self.prompt, self._ids) + text
        if not self.stops:
            self._ready += text
            return
        text = self._held + text
        at = find_stop(text, self.stops)
        self.stopped = at is not None
        certain = len(text) - count_open(text, self.stops) if at is None else at
        self._ready += text[:certain]
        self._held = "" if self.stopped else text[certain:]
