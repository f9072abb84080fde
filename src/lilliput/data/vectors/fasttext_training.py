"""Word vectors of the training split itself, for those who have none: FastText, by gensim.

Owns: what the trainer is fed, and the settings of it that are not the user's. Does not own: the trainer, nor
which vectors become rows of a table (`vectors`).

The same token file gives the same vectors: one thread, one seed. The words are the tokenizer's own, so that
whatever it did to a text (small letters, marks left out) is done to the vectors, too.
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

WIDTH = 100  # where nothing else is asked for
BUCKET = (
    1 << 17
)  # rows that n-grams share; FastText's own two million would take 800 MB, and a small corpus has 100,000
SENTENCE = 1_000  # words; gensim drops what is beyond 10,000 of a document
SEED = 1


class TrainedVectors:
    """A model of gensim, as a file of vectors is seen (`files.VectorFile`)."""

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
        row: Row = self._known[word]  # <a> is an n-gram already: no word is too short
        return row


def train_vectors(
    file: TokenFile, words: list[str | None], width: int | None, epochs: int, report: Report
) -> TrainedVectors:
    """FastText's skip-grams on the documents of a token file; `words` is the word of each token id, None for no word."""
    try:
        from gensim.models import FastText  # type: ignore[import-untyped]
    except ImportError as error:
        what, fix = "training word vectors needs gensim, which is not installed", 'run pip install "lilliput[vectors]"'
        raise UserError(what, fix=fix, code="package.missing", setting="vectors.source") from error
    sentences = TrainingSentences(file, words, epochs + 1, report)
    with quiet("gensim"):
        model = FastText(
            vector_size=width or WIDTH,
            sg=1,  # rare words come out better than with the default bag of words, and small corpora are full of them
            min_count=1,  # which words count is the tokenizer's decision
            bucket=BUCKET,
            workers=1,  # more than one take turns as they please
            seed=SEED,
        )
        model.build_vocab(sentences)
        if not model.corpus_total_words:
            what, fix = "the training split has no words to train vectors on", "use a tokenizer of words, or more text"
            raise UserError(what, fix=fix, code="data.empty", setting="vectors.source")
        model.train(sentences, total_words=model.corpus_total_words, epochs=epochs)
    return TrainedVectors(model)


class TrainingSentences:
    """The words of a token file, document by document, as often as they are asked for."""

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
    """A library's log would stand in the middle of a bar; what matters in it is raised, too."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
