"""Tokens of annotated words, and the examples of relations between words in a text.

Owns: the alignment of tokens and words by characters, and the relations of `FUNCTIONS`. Does not own: the characters of tokens
(`data.tokenizers`) or of words (`data.corpora.conllu`), or the scores (`head_functions`).

A token belongs to every word with which it shares a character. So a word has one or more tokens; a token may belong to several
words (a full stop and a quotation mark may be one token), or to none (white space, the start token).

A relation has a later and an earlier word. Its query is the last token of the later word, its keys are the tokens of the earlier
word: a causal model sees only earlier words, and an encoder is measured in the same way. The query of `recall` is the token
before the word, which predicts it. Relations whose query is not after all keys (the words share a token) do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lilliput.data.corpora.conllu import AnnotatedDocument, Word
from lilliput.decoding.writer import Writer

NOUNS = ("NOUN", "PROPN")

# Whether a word (first) and its syntactic head (second) are an example of the function.
RELATIONS: dict[str, Callable[[Word, Word], bool]] = {
    "subject-verb": lambda word, head: word.basic_relation == "nsubj" and head.upos in ("VERB", "AUX"),
    "article-noun": lambda word, head: word.basic_relation == "det" and head.upos in NOUNS and is_article(word),
    "adjective-noun": lambda word, head: word.basic_relation == "amod" and word.upos == "ADJ" and head.upos in NOUNS,
    "preposition-object": lambda word, head: (
        word.basic_relation == "case" and word.upos == "ADP" and head.upos in (*NOUNS, "PRON")
    ),
    "verb-object": lambda word, head: word.basic_relation == "obj" and head.upos == "VERB",
}


Examples = dict[str, list[tuple[int, range]]]


@dataclass(frozen=True, eq=False)
class AlignedText:
    """The tokens of a part of a document, and the examples of relations in it as (query, keys) by name."""

    document: int
    ids: list[int]
    examples: Examples


def tokens_of_words(spans: Sequence[tuple[int, int]], words: Sequence[Word]) -> list[range]:
    """Return the tokens of each word, as indices of `spans`: the characters [start, end) of each token, in order."""
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    first = np.searchsorted(ends, [word.start for word in words], side="right")
    last = np.searchsorted(starts, [word.end for word in words], side="left")
    return [range(int(a), int(b)) for a, b in zip(first, last, strict=True)]


def align(writer: Writer, document: AnnotatedDocument, number: int) -> Iterator[AlignedText]:
    """Yield the parts of a document that fit into the context: cut between sentences, a longer sentence truncated."""
    before = [] if writer.config.model.task == "classifier" else [writer.tokenizer.start]
    room = writer.config.model.context - len(before)
    spans = [one[1:] for one in writer.tokenizer.encode_spans(document.text)]
    ends = [max(own.stop for own in tokens_of_words(spans, sentence)) for sentence in document.sentences]
    first = done = 0
    while first < len(ends):
        last = max(first + 1, sum(end - done <= room for end in ends))
        part = document.cut(first, last)
        # Encoded again: the first word of a part has no space before it.
        tokens = writer.tokenizer.encode_spans(part.text)
        own = tokens_of_words([one[1:] for one in tokens], [word for words in part.sentences for word in words])
        read = [range(one.start + len(before), one.stop + len(before)) if one.stop <= room else range(0) for one in own]
        yield AlignedText(number, [*before, *(one[0] for one in tokens[:room])], examples_of(part, read))
        first, done = last, ends[last - 1]


def examples_of(document: AnnotatedDocument, tokens: Sequence[range]) -> Examples:
    """Return the examples of each relation; `tokens` are those of each word of the document, in order."""
    own: dict[tuple[int, int], range] = {}
    for number, sentence in enumerate(document.sentences, start=1):
        own |= {(number, word.id): tokens[len(own) + place] for place, word in enumerate(sentence)}
    found: Examples = {name: [] for name in (*RELATIONS, "pronoun-antecedent", "recall")}

    def add(name: str, query: int, keys: range) -> None:
        if keys and keys.stop <= query:
            found[name].append((query, keys))

    for number, sentence in enumerate(document.sentences, start=1):
        for word in sentence:
            at = own[number, word.id]
            if word.head and at:
                head, there = sentence[word.head - 1], own[number, word.head]
                later, earlier = (at, there) if at.start > there.start else (there, at)
                for name, holds in RELATIONS.items():
                    if later and holds(word, head):
                        add(name, later[-1], earlier)
            if word.antecedent is not None and at:
                if word.upos == "PRON":
                    add("pronoun-antecedent", at[-1], own[word.antecedent])
                else:
                    add("recall", at[0] - 1, own[word.antecedent])
    return found


def is_article(word: Word) -> bool:
    return word.upos == "DET" and (word.features == "_" or "PronType=Art" in word.features.split("|"))
