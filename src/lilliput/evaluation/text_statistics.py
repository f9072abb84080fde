"""What can be told of any text without knowing its grammar: sentences, how it ends, who is named in it, what comes
twice.


Owns: the measures and their definitions, made for stories in languages that write names with a capital. Does
not own: whether a story is right, which only the storybook can tell (`generated_stories`), or n-grams
(`diversity`). None of them is good or bad by itself: they are read beside the same figures of texts by
people, cut to the same length.

- *Word*: letters and digits; an apostrophe or hyphen between them belongs to it.
- *Sentence*: up to . ! ? or … with the marks that close a quotation or bracket, where white space and no small letter
follows (so
  that `"Hi!" said Tom.` is one), or up to the end of the text. In a text without any capital, small letters are no
hint.
- *Unfinished*: the text does not end with such a mark.
- *Name*: a capitalised word that stands at least once inside a sentence and not right after a quotation mark. "I" is
none, nor is
  a word all in capitals; Tom's is Tom. A name is *kept* if it comes again, wherever. A name that stands at the
beginning of
  sentences only is not seen, and a day of the week is.
- *Repeated sentence*: one that stood earlier in the same text, capitals and white space aside.
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
    """Shares are between 0 and 1, and None where there is nothing that they could be a share of."""

    texts: int
    words: float  # a text
    sentences: float  # a text
    sentence_words: float | None  # mean length of a sentence
    unfinished: float  # share of texts
    names: float  # different ones a text
    names_kept: float | None  # share of names
    repeated_sentences: float | None  # share of sentences


def measure_texts(texts: Sequence[str]) -> TextStatistics:
    """Sums over all texts, divided once."""
    count = len(texts)
    assert count > 0
    cut = [cut_sentences(text) for text in texts]
    sentences = sum(map(len, cut))
    words = sum(len(_WORD.findall(text)) for text in texts)
    named = [count_names(own) for own in cut]
    names = sum(map(len, named))
    kept = sum(times > 1 for own in named for times in own.values())
    repeated = sentences - sum(len({" ".join(one.casefold().split()) for one in own}) for own in cut)
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


def cut_sentences(text: str) -> list[str]:
    """Those that have a word; all of them together are the text but for white space and stray marks."""
    found, begin, small = [], 0, text.islower()
    for end in _END.finditer(text):
        following = _SEEN.search(text, end.end())
        if small or following is None or not following[0].islower():
            found.append(text[begin : end.end()])
            begin = end.end()
    return [sentence.strip() for sentence in [*found, text[begin:]] if _WORD.search(sentence)]


def is_finished(text: str) -> bool:
    """Does it end as a sentence does? A text of nothing does not."""
    text = text.rstrip()
    return any(end.end() == len(text) for end in _END.finditer(text))


def count_names(sentences: Sequence[str]) -> Counter[str]:
    """How often each name of a text comes, at the beginning of sentences, too."""
    inside: set[str] = set()
    times: Counter[str] = Counter()
    for sentence in sentences:
        for at, word in enumerate(_WORD.finditer(sentence)):
            name = _SHORT_VERB.sub("", word[0])
            if not name[:1].isupper() or name.isupper():  # I, and what is shouted
                continue
            times[name] += 1
            if at > 0 and sentence[word.start() - 1] not in QUOTES:
                inside.add(name)
    return Counter({name: times[name] for name in inside})
