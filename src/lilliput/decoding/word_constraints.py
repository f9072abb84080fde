"""Words that a text must not have, and words that it must.

Owns: what tokens spell together, and the rules about it. Does not own: stop strings, which end a text
(`stop_strings`).

A word is a stretch of text, whatever tokens spell it: "cat" at the start of a text, " cat" after a space and
"c" "at" in two tokens are one word. It stands by itself: where a letter, digit or underscore comes right
before or after it, it is a part of another word ("cat" is in neither "concatenate" nor "cats"). A capital is
another letter. A phrase is a word with spaces in it.

What a token spells is known for byte-level tokenizers; for others it is what the token adds to a text that
ends in a letter, so that tokens that are words bring the space before them. A word that the tokenizer does
not know may still stand within a token ("cats" in "cats."): it is forbidden there, and refused where it is
forced.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.row_history import RowHistory, forbid, require
from lilliput.errors import UserError
from lilliput.kernels.logit_statistics import Ids

LONGEST_CHARACTER = 4  # bytes in UTF-8
NOTHING: Ids = np.zeros(0, np.int64)


class Spellings:
    """What each token of a vocabulary adds to a text, in UTF-8; nothing for special tokens and unused ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        numbers = range(tokenizer.vocab_size)
        if tokenizer.byte_level:
            spelled = [tokenizer.token_bytes(id_) for id_ in numbers]
        else:
            letter = tokenizer.encode("a")
            before = tokenizer.decode(letter)
            spelled = [
                b"" if tokenizer.piece(id_) is None else tokenizer.decode([*letter, id_]).removeprefix(before).encode()
                for id_ in numbers
            ]
        self.by_id = dict(enumerate(spelled))  # a model may have more ids than its tokenizer
        self.ordered = sorted((own, id_) for id_, own in self.by_id.items() if own)

    def spell(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.by_id.get(id_, b"") for id_ in ids])

    def spell_end(self, ids: Sequence[int], length: int) -> bytes:
        """The last bytes of a text: at least `length`, if it has them."""
        spelled = b""
        for id_ in reversed(ids):
            spelled = self.by_id.get(id_, b"") + spelled
            if len(spelled) >= length:
                break
        return spelled

    def beginning_with(self, start: bytes) -> Iterator[tuple[bytes, int]]:
        for place in range(bisect_left(self.ordered, (start, -1)), len(self.ordered)):
            if not self.ordered[place][0].startswith(start):
                return
            yield self.ordered[place]

    def encode_word(self, word: str) -> list[int] | None:
        """As it comes in the middle of a text; None where the tokenizer does not know it."""
        unknown = self.tokenizer.unknown
        spaced = word if word[:1].isspace() else f" {word}"
        for text in (spaced, word):  # a vocabulary of characters may lack the space
            ids = self.tokenizer.encode(text)
            if ids and unknown not in ids:
                return ids
        return None

    def spell_word(self, word: str) -> bytes:
        """As the tokenizer writes it (in small letters, say), without the space that comes before it in a text."""
        ids = self.encode_word(word)
        if ids is None:
            return self.tokenizer.normalise(word).encode()
        return self.spell(ids) if word[:1].isspace() else self.spell(ids).removeprefix(b" ")


@lru_cache(maxsize=2)  # a sampler and a server ask for every strategy that they make
def spellings_of(tokenizer: Tokenizer) -> Spellings:
    return Spellings(tokenizer)


def in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def ends_in_word(spelled: bytes) -> bool:
    return in_word(spelled[-LONGEST_CHARACTER:].decode(errors="replace")[-1:])


def begins_in_word(spelled: bytes) -> bool:
    return in_word(spelled[:LONGEST_CHARACTER].decode(errors="replace")[:1])


@dataclass(frozen=True)
class BadWords:
    """Words that are never written, however they are spelled.

    A token is forbidden if the text with it would have the word, or would end in it: whether a letter were to follow is not
    known in time. A word that the prompt has begun is not completed.
    """

    words: tuple[str, ...]
    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        return forbid(logits, [self.completing(text.ids) for text in texts])

    def completing(self, ids: Sequence[int]) -> Ids:
        tail = spellings_of(self.tokenizer).spell_end(ids, self.longest + LONGEST_CHARACTER)
        found = [NOTHING]
        for length in range(min(self.longest, len(tail) + 1)):
            before, begun = tail[: len(tail) - length], tail[len(tail) - length :]
            found.append(self.endings.get((begun, False), NOTHING))
            if (begun, True) in self.endings and not ends_in_word(before):
                found.append(self.endings[begun, True])
        return np.concatenate(found)

    @cached_property
    def spelled(self) -> list[bytes]:
        return [own for own in map(spellings_of(self.tokenizer).spell_word, self.words) if own]

    @cached_property
    def longest(self) -> int:
        return max(map(len, self.spelled), default=0)

    @cached_property
    def endings(self) -> dict[tuple[bytes, bool], Ids]:
        """(what is written of a word, whether that must not stand after a letter) -> the tokens that complete it."""
        spellings, found = spellings_of(self.tokenizer), defaultdict[tuple[bytes, bool], set[int]](set)
        for word in self.spelled:
            begins, ends = begins_in_word(word), ends_in_word(word)
            for spelled, id_ in spellings.ordered:
                at = spelled.find(word)
                while at >= 0:
                    inside = ends and begins_in_word(spelled[at + len(word) :])
                    if not inside and not (begins and ends_in_word(spelled[:at])):
                        found[b"", begins and at == 0].add(id_)
                    at = spelled.find(word, at + 1)
            for cut in range(1, len(word)):
                for spelled, id_ in spellings.beginning_with(word[cut:]):
                    if not (ends and begins_in_word(spelled[len(word) - cut :])):
                        found[word[:cut], begins].add(id_)
        return {key: np.array(sorted(ids), np.int64) for key, ids in found.items()}


@dataclass(frozen=True)
class ForcedWords:
    """Words that are written before the text ends; those of the prompt do not count.

    End-of-text is forbidden while one is missing. When there is just room to write out what is missing, it is written out,
    in the order of the words: a word that was begun is finished first, and no letter is put to one that ends the text.
    A text that a stop string ends may still lack some.
    """

    words: tuple[str, ...]
    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        forbidden: list[Sequence[int] | Ids] = []
        demanded: dict[int, int] = {}
        for row, text in enumerate(texts):
            missing, last = self.state(text)
            # Counted without what is begun or could still become another word: a free token may undo both.
            room = sum(len(ids) for ids in missing + last)
            tight = text.left <= room
            if tight and missing:
                next_id, begun = following(text.ids[text.prompt :], missing)
                # "cats" is not made of "the cat" where there is no room to write that again.
                undone = bool(last) and text.left < room - begun
                demanded[row] = missing[0][0] if undone else next_id
            forbidden.append([self.tokenizer.end] if missing else self.continuing if tight and last else [])
        return require(forbid(logits, forbidden), demanded)

    def state(self, text: RowHistory) -> tuple[list[list[int]], list[list[int]]]:
        """Ids of the words that are missing, and of those that the text has only at its very end."""
        spellings = spellings_of(self.tokenizer)
        before = spellings.spell_end(text.ids[: text.prompt], LONGEST_CHARACTER)[-LONGEST_CHARACTER:]
        before_characters = before.decode(errors="replace")
        # The bytes of half a character are left out: it may become a letter.
        half_way = codecs.getincrementaldecoder("utf-8")("replace")
        whole = before_characters + half_way.decode(spellings.spell(text.ids[text.prompt :]))
        missing, last = [], []
        for ids, pattern, ends in self.patterns:
            places = [found.end() for found in pattern.finditer(whole, len(before_characters))]
            if not places:
                missing.append(ids)
            elif ends and places[0] == len(whole):
                last.append(ids)
        return missing, last

    @cached_property
    def patterns(self) -> list[tuple[list[int], re.Pattern[str], bool]]:
        """Of each word: its ids, what finds it, and whether a letter that follows would make another word of it."""
        spellings, found = spellings_of(self.tokenizer), []
        for word in self.words:
            ids, spelled = spellings.encode_word(word), spellings.spell_word(word)
            if ids is None or not spelled:
                raise UserError(
                    f"the tokenizer cannot encode all of the forced word {word!r}",
                    "generate.forced_words",
                    fix="use a word of the text that the tokenizer was trained on",
                    code="setting.value",
                    setting="generate.forced_words",
                )
            begins, ends = begins_in_word(spelled), ends_in_word(spelled)
            pattern = r"(?<!\w)" * begins + re.escape(spelled.decode(errors="replace")) + r"(?!\w)" * ends
            found.append((ids, re.compile(pattern), ends))
        return found

    @cached_property
    def continuing(self) -> Ids:
        """Tokens that put a letter to a word, or may: half a character is not known."""
        ordered = spellings_of(self.tokenizer).ordered
        return np.array([id_ for own, id_ in ordered if own[0] >= 0x80 or begins_in_word(own)], np.int64)

    @property
    def tokens(self) -> int:
        """The room that all of them take."""
        return sum(len(ids) for ids, _, _ in self.patterns)


def following(written: Sequence[int], words: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The next id of the word of which the most is written, of the first one if none is begun; and how much of it is."""
    best, next_id = 0, words[0][0]
    for ids in words:
        for begun in range(min(len(ids) - 1, len(written)), best, -1):
            if list(written[-begun:]) == list(ids[:begun]):
                best, next_id = begun, ids[begun]
                break
    return next_id, best
