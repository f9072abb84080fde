"""Statistics of any text: sentences, endings, names and repetitions.

Owns: the statistics and their definitions, made for stories in languages that capitalise names. Does not own: the
validity of a story (`generated_stories`), or n-grams (`diversity`). No value is good or bad in itself: compare it with
that of human texts, truncated to the same length.

- *Word*: letters and digits, including an apostrophe or hyphen between them.
- *Sentence*: ends with . ! ? or … and any closing quotation marks or brackets, if white space follows and then no
  lower-case letter (`"Hi!" said Tom.` is one sentence), or at the end of the text. In a text without capitals, a
  lower-case letter may follow.
- *Unfinished*: the text does not end with such punctuation.
- *Name*: a capitalised word that occurs at least once inside a sentence and not directly after a quotation mark. "I"
  and words in all capitals are excluded; Tom's counts as Tom. A name is *kept* if it occurs again. Names that occur
  only at the start of sentences are missed, and days of the week are counted.
- *Repeated sentence*: occurs earlier in the same text, ignoring case and white space.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

QUOTES = "\"'“”‘’«»"
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_END = re.compile(r"[.!?…][\"'”’»)\]]*(?=\s|\Z)")
_SEEN = re.compile(r"\S")
_SHORT_VERB = re.compile(r"['’](?:s|d|m|ll|re|ve)\Z")


@dataclass(frozen=True)
class TextStatistics:
    """Shares are between 0 and 1, and None if the denominator is 0."""

    texts: int
    words: float  # per text
    sentences: float  # per text
    sentence_words: float | None  # mean length of a sentence
    unfinished: float  # share of texts
    names: float  # distinct names per text
    names_kept: float | None  # share of names
    repeated_sentences: float | None  # share of sentences


def measure_texts(texts: Sequence[str]) -> TextStatistics:
    """Return statistics of all texts together."""
    count = len(texts)
    assert count > 0
    split = [split_sentences(text) for text in texts]
    sentences = sum(map(len, split))
    words = sum(len(_WORD.findall(text)) for text in texts)
    named = [count_names(own) for own in split]
    names = sum(map(len, named))
    kept = sum(times > 1 for own in named for times in own.values())
    repeated = sentences - sum(len({" ".join(one.casefold().split()) for one in own}) for own in split)
    return TextStatistics(
        texts=count,
        words=words / count,
        sentences=sentences / count,
        sentence_words=words / sentences if sentences else None,
        unfinished=sum(not is_finished(text) for text in texts) / count,
        names=names / count,
        names_kept=kept / names if names else None,
        repeated_sentences=repeated / sentences if sentences else None,
    )


def split_sentences(text: str) -> list[str]:
    """Return the sentences that contain a word."""
    found, begin, small = [], 0, text.islower()
    for end in _END.finditer(text):
        following = _SEEN.search(text, end.end())
        if small or following is None or not following[0].islower():
            found.append(text[begin : end.end()])
            begin = end.end()
    return [sentence.strip() for sentence in [*found, text[begin:]] if _WORD.search(sentence)]


def is_finished(text: str) -> bool:
    """Return whether the text ends like a sentence; False for an empty text."""
    text = text.rstrip()
    return any(end.end() == len(text) for end in _END.finditer(text))


def count_names(sentences: Sequence[str]) -> Counter[str]:
    """Count each name, including at the start of sentences."""
    inside: set[str] = set()
    times: Counter[str] = Counter()
    for sentence in sentences:
        for at, word in enumerate(_WORD.finditer(sentence)):
            name = _SHORT_VERB.sub("", word[0])
            if not name[:1].isupper() or name.isupper():  # I, and words in all capitals
                continue
            times[name] += 1
            if at > 0 and sentence[word.start() - 1] not in QUOTES:
                inside.add(name)
    return Counter({name: times[name] for name in inside})
