"""Train FastText vectors on the training split, with gensim.

Owns: the sentences for the trainer, and its settings that the user cannot change. Does not own: the trainer, or the
table of vectors (`vectors`).

One thread and a fixed seed make the vectors reproducible. The words are the tokenizer's, so its normalisation (such as
lowercasing or removed punctuation) applies to the vectors too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.progress import Report
from lilliput.errors import UserError

Row = NDArray[np.float32]

WIDTH = 100  # default
# Rows for n-grams. FastText's default of two million takes 800 MB; a small corpus has 100,000 n-grams.
BUCKET = 1 << 17
SENTENCE = 1_000  # words; gensim ignores the words of a sentence after the first 10,000
SEED = 1


class TrainedVectors:
    """A gensim model with the interface of `vector_files.VectorFile`."""

    kind = "FastText, trained here"

    def __init__(self, model: Any) -> None:
        self._known: Any = model.wv
        self.width, self.rows = int(model.vector_size), len(model.wv)
        self.notes: list[str] = []

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[tuple[bytes, Callable[[], Row]]]:
        for word in self._known.index_to_key:
            if word.encode() in wanted:
                yield word.encode(), functools.partial(self._known.get_vector, word)

    def compose(self, word: str) -> Row | None:
        row: Row = self._known[word]  # no word is too short: <a> is already an n-gram
        return row


def train_vectors(
    file: TokenFile, words: list[str | None], width: int | None, epochs: int, report: Report
) -> TrainedVectors:
    """Train FastText's skip-gram model on a token file; `words[id]` is the word of a token, or None."""
    try:
        from gensim.models import FastText  # type: ignore[import-untyped]
    except ImportError as error:
        what, fix = "training word vectors requires gensim (not installed)", 'run pip install "lilliput[vectors]"'
        raise UserError(what, fix=fix, code="package.missing", setting="vectors.source") from error
    sentences = TrainingSentences(file, words, epochs + 1, report)
    with quiet("gensim"):
        model = FastText(
            vector_size=width or WIDTH,
            sg=1,  # skip-grams: better for rare words, which are most words of a small corpus, than the default (CBOW)
            min_count=1,  # the tokenizer has already chosen the words
            bucket=BUCKET,
            workers=1,  # several are not deterministic
            seed=SEED,
        )
        model.build_vocab(sentences)
        if not model.corpus_total_words:
            what, fix = "the training split contains no words", "use a tokenizer of words, or more text"
            raise UserError(what, fix=fix, code="data.empty", setting="vectors.source")
        model.train(sentences, total_words=model.corpus_total_words, epochs=epochs)
    return TrainedVectors(model)


class TrainingSentences:
    """The words of a token file in parts of at most `SENTENCE` tokens of a document. Can be iterated several times."""

    def __init__(self, file: TokenFile, words: list[str | None], passes: int, report: Report) -> None:
        self._file, self._words = file, np.array(words, dtype=object)
        self._report, self._done, self._total = report, 0, passes * len(file.tokens)

    def __iter__(self) -> Iterator[list[str]]:
        for start, end in zip(self._file.offsets[:-1].tolist(), self._file.offsets[1:].tolist(), strict=True):
            for begin in range(start, end, SENTENCE):
                ids = np.asarray(self._file.tokens[begin : min(begin + SENTENCE, end)])
                words = [word for word in self._words[ids] if word is not None]
                if words:
                    yield words
            before, self._done = self._done, self._done + end - start
            if before >> 16 != self._done >> 16:
                self._report("training vectors", self._done, self._total)
        self._report("training vectors", self._done, self._total)


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Hide a library's log below ERROR, which would break the progress bar."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
