"""The one pass over a corpus, as batches for the encoders.

Owns: which documents are left out, batches by split, where a shard ends, and finding the place where an
earlier pass stopped. Does not own: documents (`corpora`), or what is made of a batch (`encoding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lilliput.data.corpora import Corpus, Document
from lilliput.data.progress import STEP, Report

# Characters of a batch. The library needs about 140 bytes for each while it encodes; a batch is a tenth of a second's
# work of one core, so that a hundred more of them cost no more than a hundredth.
BATCH = 1 << 18
# Characters between two marks at which everything is flushed: what a kill can cost at most, some ten seconds of work.
SHARD = 1 << 26


@dataclass
class TextBatch:
    """Documents of one split, in order."""

    split: str
    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # the number of each label in the order of its first use
    characters: int = 0

    def add(self, text: str, label: int | None) -> None:
        self.texts.append(text)
        self.characters += len(text)
        if label is not None:
            self.labels.append(label)


@dataclass(frozen=True)
class Mark:
    """Everything before it has been given out: the first `documents` of the corpus, with `characters`."""

    documents: int
    characters: int
    texts: list[str] = field(default_factory=list)  # none: a mark goes through the encoders as it is


class OtherDocuments(Exception):
    """The corpus does not give the documents again that it gave to an earlier pass."""


class CorpusPass:
    """One pass. Its counts grow while `tasks` is drained."""

    def __init__(self, corpus: Corpus, dropped: NDArray[np.int64]) -> None:
        self._corpus, self._dropped = corpus, dropped
        self.documents = 0  # read, dropped ones included
        self.characters = 0
        self.empty: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.labels: dict[str, int] = {}

    def tasks(self, after: Mark, report: Report) -> Iterator[TextBatch | Mark]:
        """Batches and marks of everything after `after`, whose documents are read again and not given out."""
        pending = {split: TextBatch(split) for split in self._corpus.splits}
        marked = told = 0
        for split, document, label in self.kept():
            if self.documents <= after.documents:
                marked = self.characters
                if self.documents == after.documents and self.characters != after.characters:
                    raise OtherDocuments
                if marked - told > STEP:
                    report("finding the place", marked, after.characters)
                    told = marked
                continue
            batch = pending[split]
            batch.add(document.text, label)
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
        """Split, document and number of its label of all but dropped documents."""
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
    """What a tokenizer may learn from: the training split without what is dropped of it."""
    if not len(dropped):
        return (document.text for document in corpus.documents("train"))
    return (document.text for split, document, _ in CorpusPass(corpus, dropped).kept() if split == "train")
