"""Characters of tokens and tokens of words, for every kind of tokenizer, on stories and on random Unicode text."""

from __future__ import annotations

import functools
import re
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.shared_data import needs_data
from lilliput.data.corpora.conllu import Word
from lilliput.data.storybook import stories
from lilliput.data.tokenizers import Tokenizer, make_tokenizer, mend
from lilliput.interpret.word_alignment import tokens_of_words
from lilliput.settings.tree import TokenizerSettings

STORIES = list(islice(stories("train", 1), 30))
MIXED = [*STORIES, "Once — naïve “world”… 世界! 😀 1234 İstanbul ẞ ﬁ"] * 2
ALTERED = {"lowercase": True, "ascii_punctuation": True, "single_spaces": True}
KINDS: dict[str, dict[str, Any]] = {
    "bpe": {"kind": "bpe", "vocab_size": 400},
    "bpe-altered": {"kind": "bpe", "vocab_size": 400, **ALTERED},
    "byte": {"kind": "byte"},
    "byte-altered": {"kind": "byte", **ALTERED},
    "character": {"kind": "character"},
    "character-altered": {"kind": "character", "max_vocabulary": 30, **ALTERED},
    "word": {"kind": "word"},
    "word-altered": {"kind": "word", "max_vocabulary": 40, **ALTERED},
    "gpt2": {"kind": "gpt2"},
}
every = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs_data) if kind == "gpt2" else kind for kind in KINDS]
)
TEXTS = st.text(st.sampled_from(" \n\t\xa0\u3000aAé'’“”—…世😀\u0301\x00<|>.1İẞﬁ\ud800")) | st.text()


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return make_tokenizer(TokenizerSettings(**KINDS[kind]), MIXED)


def words_of(text: str) -> list[Word]:
    """Return the words of a text: letters, or single marks."""
    found = re.finditer(r"\w+|[^\w\s]", text)
    return [Word(n, one[0], "X", "_", 0, "_", None, *one.span()) for n, one in enumerate(found, start=1)]


def reference_spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    """Return the characters of each token of a byte-level tokenizer, from the bytes of its tokens alone."""
    character_of = [at for at, one in enumerate(text) for _ in one.encode()]
    spans, at = [], 0
    for id_ in tokenizer.encode(text):
        size = len(tokenizer.token_bytes(id_))
        spans.append((character_of[at], character_of[at + size - 1] + 1))
        at += size
    return spans


def check(kind: str, text: str) -> None:
    tokenizer, text = tokenizer_of(kind), mend(text)
    found = tokenizer.encode_spans(text)
    spans = [(start, end) for _, start, end in found]
    assert [id_ for id_, _, _ in found] == tokenizer.encode(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert spans == sorted(spans) and [end for _, end in spans] == sorted(end for _, end in spans)
    if not tokenizer.lossy:
        assert spans == reference_spans(tokenizer, text)
    elif tokenizer.kind in ("word", "character"):
        for id_, start, end in found:
            spelled = tokenizer.normalise(text[start:end])
            assert id_ == tokenizer.unknown or tokenizer.token(id_) in spelled
    words = words_of(text)
    for word, tokens in zip(words, tokens_of_words(spans, words), strict=True):
        expected = [n for n, (start, end) in enumerate(spans) if start < word.end and end > word.start]
        assert list(tokens) == expected
        covered = {at for token in tokens for at in range(*spans[token])}
        if not tokenizer.lossy or kind == "byte-altered" or kind == "bpe-altered":
            assert {*range(word.start, word.end)} <= covered


@every
def test_stories(kind: str) -> None:
    for text in STORIES[:10]:
        check(kind, text)
        words = words_of(text)
        spans = [(start, end) for _, start, end in tokenizer_of(kind).encode_spans(text)]
        for word, tokens in zip(words, tokens_of_words(spans, words), strict=True):
            first, last = spans[tokens[0]][0], spans[tokens[-1]][1]
            # Tokens of a word have no letters of another word; a mark may share its token with other marks.
            shared = text[first:last].strip()
            assert shared == word.form or not re.search(r"\w", shared) or re.fullmatch(r"\W?\w+\W*", shared)


@every
@given(text=TEXTS)
def test_random_texts(kind: str, text: str) -> None:
    check(kind, text)


def test_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lilliput.data.tokenizers.text_chunks.PIECE", 20)
    for kind in ("bpe", "word-altered"):
        check(kind, STORIES[0])
