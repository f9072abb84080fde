"""One pass over a corpus, as batches for the encoders.

Owns: dropping documents, batches by split, the ends of shards, and finding the position of an interrupted pass. Does
not own: documents (`corpora`) or encoding (`encoding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lilliput.data.corpora import Corpus, Document
from lilliput.data.progress import STEP, Report

# Characters per batch. The tokenizers library needs about 140 bytes for each; one core encodes a batch in 0.1 s.
BATCH = 1 << 18
# Characters between two marks, at which all files are flushed. A killed process loses at most this, about ten seconds.
SHARD = 1 << 26


@dataclass
class TextBatch:
    """Documents of one split, in order."""

    split: str
    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # of each document: the number of its label, by first use
    removed: list[int] = field(default_factory=list)  # of each document: bytes of the original text that it lacks
    replaced: int = 0  # line ends
    characters: int = 0

    def add(self, document: Document, label: int | None) -> None:
        self.texts.append(document.text)
        self.removed.append(document.removed)
        self.replaced += document.replaced
        self.characters += len(document.text)
        if label is not None:
            self.labels.append(label)


@dataclass(frozen=True)
class Mark:
    """A position in the pass: the first `documents` of the corpus, with `characters`, have been yielded."""

    documents: int
    characters: int
    texts: list[str] = field(default_factory=list)  # empty: a mark passes through the encoders unchanged


class OtherDocuments(Exception):
    """The corpus yields other documents than in the interrupted pass."""


class CorpusPass:
    """One pass. Its counts grow while `tasks` is consumed."""

    def __init__(self, corpus: Corpus, dropped: NDArray[np.int64]) -> None:
        self._corpus, self._dropped = corpus, dropped
        self.documents = 0  # read, dropped ones included
        self.characters = 0
        self.empty: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.labels: dict[str, int] = {}

    def tasks(self, after: Mark, report: Report) -> Iterator[TextBatch | Mark]:
        """Yield batches and marks. Documents before `after` are read again but not yielded."""
        pending = {split: TextBatch(split) for split in self._corpus.splits}
        marked = reported = 0
        for split, document, label in self.kept():
            if self.documents <= after.documents:
                marked = self.characters
                if self.documents == after.documents and self.characters != after.characters:
                    raise OtherDocuments
                if marked - reported > STEP:
                    report("skipping finished documents", marked, after.characters)
                    reported = marked
                continue
            batch = pending[split]
            batch.add(document, label)
            if batch.characters >= BATCH:
                yield batch
                pending[split] = TextBatch(split)
            if self.characters - marked >= SHARD:
                marked = self.characters
                yield from (batch for batch in pending.values() if batch.texts)
                yield Mark(self.documents, self.characters)
                pending = {split: TextBatch(split) for split in pending}
        if self.documents < after.documents:
            raise OtherDocuments
        yield from (batch for batch in pending.values() if batch.texts)

    def kept(self) -> Iterator[tuple[str, Document, int | None]]:
        """Yield split, document and number of its label for all documents that are not dropped."""
        positions = iter(self._dropped.tolist())
        skipped = next(positions, None)
        for split, document in self._corpus.stream(self._count_empty):
            position = self.documents
            self.documents += 1
            self.characters += len(document.text)
            if position == skipped:
                self.dropped[split] += 1
                skipped = next(positions, None)
                continue
            label = None if document.label is None else self.labels.setdefault(document.label, len(self.labels))
            yield split, document, label

    def _count_empty(self, split: str) -> None:
        self.empty[split] += 1


def training_texts(corpus: Corpus, dropped: NDArray[np.int64]) -> Iterator[str]:
    """Yield the texts of the training split without dropped documents."""
    if not len(dropped):
        return (document.text for document in corpus.documents("train"))
    return (document.text for split, document, _ in CorpusPass(corpus, dropped).kept() if split == "train")
