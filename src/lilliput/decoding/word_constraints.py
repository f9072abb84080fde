"""Bad words, which a text must not contain, and forced words, which it must contain.

Owns: the spelling of tokens, and the rules about words. Does not own: stop strings (`stop_strings`).

A word is a string, whatever its tokens are: "cat" at the start of a text, " cat" after a space and "c" "at" in two tokens
are the same word. It must not touch a letter, digit or underscore: "cat" is neither in "concatenate" nor in "cats". Case
matters. A phrase is a word that contains spaces.

The spelling of a token is its bytes or, for tokenizers that are not byte-level, the text that it adds after a letter, so
tokens that are words include the space before them. A word that the tokenizer cannot encode may still be part of a token
("cats" in "cats."): as a bad word it is forbidden there, as a forced word it is an error.
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
    """The text that each token adds, in UTF-8; empty for special tokens and unused ids."""

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
        self.by_id = dict(enumerate(spelled))  # a dict: a model may have more ids than its tokenizer
        self.ordered = sorted((own, id_) for id_, own in self.by_id.items() if own)

    def spell(self, ids: Sequence[int]) -> bytes:
        return b"".join([self.by_id.get(id_, b"") for id_ in ids])

    def spell_end(self, ids: Sequence[int], length: int) -> bytes:
        """Return the last bytes of a text: `length` or more, unless the text is shorter."""
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
        """Return the ids of the word in the middle of a text; None if the tokenizer cannot encode it."""
        unknown = self.tokenizer.unknown
        spaced = word if word[:1].isspace() else f" {word}"
        for text in (spaced, word):  # a character vocabulary may not contain the space
            ids = self.tokenizer.encode(text)
            if ids and unknown not in ids:
                return ids
        return None

    def spell_word(self, word: str) -> bytes:
        """Return the word as the tokenizer normalises it (in lower case, for example), without the space before it."""
        ids = self.encode_word(word)
        if ids is None:
            return self.tokenizer.normalise(word).encode()
        return self.spell(ids) if word[:1].isspace() else self.spell(ids).removeprefix(b" ")


@lru_cache(maxsize=2)  # needed for every strategy that is built
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
    """Words that are never generated, whatever their tokens are.

    A token is forbidden if the text with it would contain the word or end with it, because the next letter is not known yet.
    A word that the prompt begins is not completed.
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
        """(the generated part of a word, whether a letter must not precede it) -> the tokens that complete the word."""
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
    """Words that the generated text must contain; words of the prompt do not count.

    End-of-text is forbidden while a word is missing. When the remaining tokens are just enough for the missing words, these
    are generated in order: a word that has begun is completed first, and no letter is appended to a word at the end of
    the text. A text that ends with a stop string may lack words.
    """

    words: tuple[str, ...]
    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        forbidden: list[Sequence[int] | Ids] = []
        demanded: dict[int, int] = {}
        for row, text in enumerate(texts):
            missing, last = self.state(text)
            # Words that have begun count in full, and so do words at the end of the text: the next token may undo both.
            needed = sum(len(ids) for ids in missing + last)
            tight = text.left <= needed
            if tight and missing:
                next_id, begun = following(text.ids[text.prompt :], missing)
                # "the cat" must not become "the cats" if too few tokens are left to generate "cat" again.
                undone = bool(last) and text.left < needed - begun
                demanded[row] = missing[0][0] if undone else next_id
            forbidden.append([self.tokenizer.end] if missing else self.continuing if tight and last else [])
        return require(forbid(logits, forbidden), demanded)

    def state(self, text: RowHistory) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of the missing words, and of the words that occur only at the very end of the text."""
        spellings = spellings_of(self.tokenizer)
        before = spellings.spell_end(text.ids[: text.prompt], LONGEST_CHARACTER)[-LONGEST_CHARACTER:]
        before_characters = before.decode(errors="replace")
        # The bytes of an incomplete character are left out: it may become a letter.
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
        """For each word: its ids, its regular expression, and whether a letter after it would make it another word."""
        spellings, found = spellings_of(self.tokenizer), []
        for word in self.words:
            ids, spelled = spellings.encode_word(word), spellings.spell_word(word)
            if ids is None or not spelled:
                raise UserError(
                    f"the tokenizer cannot encode the forced word {word!r}",
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
        """Tokens that append a letter to a word, or may do so (they begin with an incomplete character)."""
        ordered = spellings_of(self.tokenizer).ordered
        return np.array([id_ for own, id_ in ordered if own[0] >= 0x80 or begins_in_word(own)], np.int64)

    @property
    def tokens(self) -> int:
        """The number of tokens of all words."""
        return sum(len(ids) for ids, _, _ in self.patterns)


def following(generated: Sequence[int], words: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the next id of the word of which most has been generated (of the first word if none), and its length so far."""
    best, next_id = 0, words[0][0]
    for ids in words:
        for begun in range(min(len(ids) - 1, len(generated)), best, -1):
            if list(generated[-begun:]) == list(ids[:begun]):
                best, next_id = begun, ids[begun]
                break
    return next_id, best
