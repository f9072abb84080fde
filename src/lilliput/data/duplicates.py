"""Exact and near duplicates within a split and across splits.

Owns: counting exact duplicates from hashes, finding near duplicates, and choosing the training documents to drop.
Does not own: the hashes on disk (`prepare`), the compiled search (`kernels.minhash`).

Two documents are near duplicates if their sets of five-word shingles have a Jaccard similarity of at least the
threshold. The corpus is read twice. The first pass keeps a signature of 224 bytes per document and selects candidate
pairs; the second pass writes the shingles of the candidates to a file and compares them exactly. So no pair below the
threshold is reported; about one pair in 170 is missed at the threshold, one in 7,000 at 0.85. Memory: about 250 bytes
per document, plus 40 MB, plus seven times the longest document.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lilliput.data.progress import Report, silent
from lilliput.errors import UserError
from lilliput.storage.atomic_files import cannot_write

if TYPE_CHECKING:
    from lilliput.data.corpora import Corpus

TRAIN = "train"
PART = 1 << 22  # hashes sorted at once: 32 MB
BATCH = 1 << 20  # characters per batch
CLOSEST = 10  # pairs shown
OPENING = 60  # characters shown of a document

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]


def hash_text(text: bytes) -> bytes:
    """Return a 64-bit hash. Two million different documents collide with a probability of one in ten million."""
    return hashlib.blake2b(text, digest_size=8).digest()


# Exact duplicates --------------------------------------------------------------------------------------------------


def count_exact(hashes: Mapping[str, Hashes]) -> dict[str, dict[str, int]]:
    """Count the documents that repeat an earlier one of their split (`within`) or a training document (`across`).

    The arrays may be memory maps of any length: one range of hashes is processed at a time, in about 200 MB.
    """
    parts = -(-sum(map(len, hashes.values())) // PART)
    within = dict.fromkeys(hashes, 0)
    across = {split: 0 for split in hashes if split != TRAIN}
    borders = [(1 << 64) * part // parts for part in range(parts)] + [1 << 64]
    for low, high in pairwise(borders):
        trained = _distinct(_select(hashes[TRAIN], low, high))
        for split, values in hashes.items():
            distinct = trained if split == TRAIN else _distinct(_select(values, low, high))
            for chunk in _select(values, low, high):
                within[split] += len(chunk)
                if split != TRAIN:
                    across[split] += int(np.isin(chunk, trained).sum())
            within[split] -= len(distinct)
    return {"within": within, "across": across}


def _select(values: Hashes, low: int, high: int) -> Iterator[Hashes]:
    """Yield the values from `low` up to but not including `high`, chunk by chunk."""
    for begin in range(0, len(values), PART):
        chunk = np.asarray(values[begin : begin + PART])
        yield chunk[(chunk >= np.uint64(low)) & (chunk <= np.uint64(high - 1))]


def _distinct(chunks: Iterator[Hashes]) -> Hashes:
    """Return the distinct values, sorted. Chunks are merged early, so many equal values take no more memory."""
    held, size = [np.empty(0, dtype=np.uint64)], 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > PART:
            held = [np.unique(np.concatenate(held))]
            size = 0
    return np.unique(np.concatenate(held))


# One pass over a corpus --------------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    position: int  # of its first document in the stream
    splits: list[int]
    texts: list[str]


def _read(corpus: Corpus, phase: str, report: Report) -> Iterator[_Batch]:
    number = {split: index for index, split in enumerate(corpus.splits)}
    batch, held, done, position = _Batch(0, [], []), 0, 0, 0
    for split, document in corpus.stream():
        batch.splits.append(number[split])
        batch.texts.append(document.text)
        held += len(document.text)  # characters approximate bytes well enough for a progress bar
        if held >= BATCH:
            yield batch
            done, held, position = done + held, 0, position + len(batch.texts)
            report(phase, done, corpus.size or None)
            batch = _Batch(position, [], [])
    if batch.texts:
        yield batch
    report(phase, done + held, done + held)


def _first_equal(hashes: Hashes, splits: NDArray[np.uint16]) -> Positions:
    """Return for each document the first one of its split with the same text (itself if there is no earlier one)."""
    order = np.lexsort((hashes, splits))  # stable: equal documents keep the order of the stream
    hashes, splits = hashes[order], splits[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (hashes[1:] != hashes[:-1]) | (splits[1:] != splits[:-1])
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def find_dropped(
    corpus: Corpus, kind: Literal["exact", "near"], report: Report = silent, folder: Path | None = None
) -> Positions:
    """Return the sorted positions in `corpus.stream()` of the training documents to drop.

    These are the duplicates (near duplicates) of documents of another split, and all but the first of each group of
    duplicates (of documents connected by near duplicates).
    """
    if kind == "near":
        return find_near(corpus, report=report, folder=folder).dropped
    hashes, splits = bytearray(), array("H")
    for batch in _read(corpus, "looking for duplicates", report):
        hashes += b"".join(hash_text(text.encode()) for text in batch.texts)
        splits.extend(batch.splits)
    documents = _Documents.of(corpus, hashes, splits)
    return np.flatnonzero(documents.train & (documents.shared | documents.again))


@dataclass(frozen=True)
class _Documents:
    """Arrays over all documents, indexed by the position in the stream."""

    hashes: Hashes
    splits: NDArray[np.uint16]  # index into the splits of the corpus
    train: Mask
    first: Positions  # the first document of the split with this text
    shared: Mask  # in train: the text is also in another split; in another split: it is also in train

    @staticmethod
    def of(corpus: Corpus, digests: bytearray, numbers: array[int]) -> _Documents:
        hashes, splits = np.frombuffer(digests, dtype="<u8"), np.frombuffer(numbers, dtype=np.uint16)
        train = splits == corpus.splits.index(TRAIN)
        shared = np.empty(len(hashes), dtype=bool)
        shared[train] = np.isin(hashes[train], hashes[~train])
        shared[~train] = np.isin(hashes[~train], hashes[train])
        return _Documents(hashes, splits, train, _first_equal(hashes, splits), shared)

    @property
    def again(self) -> Mask:
        """Whether each document equals an earlier one of its split."""
        return np.not_equal(self.first, np.arange(len(self.first)))


# Near duplicates ---------------------------------------------------------------------------------------------------


class SimilarPair(NamedTuple):
    """A pair of near duplicates that are not equal: their numbers in their splits, from 0, and first characters."""

    splits: tuple[str, str]
    documents: tuple[int, int]
    similarity: float
    openings: tuple[str, str]


@dataclass(frozen=True)
class NearDuplicates:
    """The result of the search and its cost. Exact duplicates count as near duplicates."""

    repeated: dict[str, Positions]  # by split: numbers of the documents with an earlier near duplicate in the split
    leaked: dict[str, Positions]  # by split except train: numbers of the documents with a near duplicate in train
    dropped: Positions  # positions in the stream of the training documents to drop, see `find_dropped`
    pairs: Positions  # (n, 2), positions in the stream; of equal documents of a split only the first
    similarities: NDArray[np.float64]  # (n,), exact
    closest: list[SimilarPair]
    threshold: float
    seconds: float
    megabytes_per_second: float
    memory_bytes: int | None  # the peak over all batches; None if the system does not report it

    @property
    def within(self) -> dict[str, int]:
        return {split: len(numbers) for split, numbers in self.repeated.items()}

    @property
    def across(self) -> dict[str, int]:
        return {split: len(numbers) for split, numbers in self.leaked.items()}

    def as_json(self) -> dict[str, Any]:
        names = ("within", "across", "threshold", "seconds", "megabytes_per_second", "memory_bytes")
        values = {name: getattr(self, name) for name in names}
        return values | {"dropped": len(self.dropped), "closest": [pair._asdict() for pair in self.closest]}


class _Memory:
    """The peak growth of the process's anonymous memory, without mapped files."""

    def __init__(self) -> None:
        self.begin = self.most = self._own()

    def sample(self) -> None:
        self.most = max(self.most, self._own())

    @property
    def peak(self) -> int | None:
        return self.most - self.begin if self.begin else None

    @staticmethod
    def _own() -> int:
        with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return 1024 * int(line.split()[1])
        return 0


def find_near(
    corpus: Corpus, threshold: float = 0.8, report: Report = silent, folder: Path | None = None
) -> NearDuplicates:
    """Find near duplicates within each split, and between train and each other split.

    The shingles of candidate pairs go to an unnamed file in `folder` (default: the system's temporary folder).
    """
    if not 0.5 <= threshold <= 1:
        what, fix = f"the similarity threshold must be from 0.5 to 1 (got {threshold})", "use 0.8"
        raise UserError(what, fix=fix, code="setting.value")
    from lilliput.kernels import minhash

    began, memory, size = time.perf_counter(), _Memory(), 0
    hashes, splits, signatures, wordless = bytearray(), array("H"), bytearray(), array("q")
    for batch in _read(corpus, "looking for near duplicates", report):
        texts = [text.encode() for text in batch.texts]
        size += sum(map(len, texts))
        hashes += b"".join(map(hash_text, texts))
        splits.extend(batch.splits)
        shingles, ends = minhash.shingle(texts)
        signatures += minhash.sign(shingles, ends).tobytes()
        wordless.extend((batch.position + np.flatnonzero(np.diff(ends, prepend=0) == 0)).tolist())
        memory.sample()
    documents = _Documents.of(corpus, hashes, splits)
    order = np.flatnonzero(~documents.again)
    order = order[~np.isin(order, wordless)]
    order = order[np.argsort(documents.splits[order], kind="stable")]
    table = np.frombuffer(signatures, dtype=np.uint8).reshape(-1, minhash.SIGNATURE)
    pairs = minhash.likely_pairs(table, order, documents.splits, threshold)
    memory.sample()
    del table, signatures
    similarities, closest = np.empty(0), list[SimilarPair]()
    if len(pairs):
        try:
            pairs, similarities, closest = _compare(corpus, documents, pairs, threshold, report, memory, folder)
        except OSError as error:  # errors in sources are UserErrors already; the rest concerns the temporary file
            raise cannot_write(error, (folder or Path(tempfile.gettempdir())) / "shingles of documents") from error
    repeated, leaked, dropped = _classify(documents, pairs)
    memory.sample()
    seconds = time.perf_counter() - began
    numbers = {split: documents.splits == index for index, split in enumerate(corpus.splits)}
    return NearDuplicates(
        {split: np.flatnonzero(repeated[mask]) for split, mask in numbers.items()},
        {split: np.flatnonzero(leaked[mask]) for split, mask in numbers.items() if split != TRAIN},
        dropped, pairs, similarities, closest, threshold, seconds, size / seconds / 1e6, memory.peak,
    )  # fmt: skip


def _compare(
    corpus: Corpus, documents: _Documents, pairs: Positions, threshold: float,
    report: Report, memory: _Memory, folder: Path | None,
) -> tuple[Positions, NDArray[np.float64], list[SimilarPair]]:  # fmt: skip
    """Read the corpus again; return the pairs at or above the threshold, their similarities, the closest unequal pairs."""
    from lilliput.kernels import minhash

    wanted = np.zeros(len(documents.splits), dtype=bool)
    wanted[pairs] = True
    all_ends, written = array("q"), 0
    with tempfile.TemporaryFile(dir=folder) as sets, tempfile.TemporaryFile(dir=folder) as openings:
        for batch in _read(corpus, "comparing near duplicates", report):
            chosen = wanted[batch.position : batch.position + len(batch.texts)]
            texts = [text for text, take in zip(batch.texts, chosen, strict=False) if take]
            if texts:
                shingles, ends = minhash.distinct(*minhash.shingle([text.encode() for text in texts]))
                sets.write(shingles.tobytes())
                openings.write(np.array([text[:OPENING] for text in texts], dtype=f"<U{OPENING}").tobytes())
                all_ends.extend((ends + written).tolist())
                written += len(shingles)
            memory.sample()
        places = np.flatnonzero(wanted)
        if len(all_ends) != len(places):
            what, fix = "the source changed while it was read", "wait until the source is complete, then run it again"
            raise UserError(what, corpus.name, fix=fix, code="data.changed", setting="data.source")
        sets.flush()
        openings.flush()
        shingles = np.asarray(np.memmap(sets, dtype=np.uint64, mode="r"))
        found = minhash.similarities(shingles, np.frombuffer(all_ends, dtype=np.int64), np.searchsorted(places, pairs))
        pairs, found = pairs[found >= threshold], found[found >= threshold]
        shown = np.memmap(openings, dtype=f"<U{OPENING}", mode="r")

        def number(position: int) -> int:
            return int(np.count_nonzero(documents.splits[:position] == documents.splits[position]))

        unequal = np.flatnonzero(documents.hashes[pairs[:, 0]] != documents.hashes[pairs[:, 1]])
        closest = []
        for index in unequal[np.argsort(-found[unequal], kind="stable")[:CLOSEST]]:
            a, b = (int(position) for position in pairs[index])
            names = corpus.splits[documents.splits[a]], corpus.splits[documents.splits[b]]
            first, second = (str(shown[place]) for place in np.searchsorted(places, [a, b]))
            closest.append(SimilarPair(names, (number(a), number(b)), float(found[index]), (first, second)))
    return pairs, found, closest


def _classify(documents: _Documents, pairs: Positions) -> tuple[Mask, Mask, Positions]:
    """Return which documents repeat an earlier one of their split, which have a duplicate across, and which to drop."""
    from lilliput.kernels import minhash

    same = documents.splits[pairs[:, 0]] == documents.splits[pairs[:, 1]]
    repeated, shared = documents.again, documents.shared.copy()
    repeated[pairs[same, 1]] = True
    shared[pairs[~same]] = True
    shared = shared[documents.first]  # equal documents share the result of the first
    # Documents that are dropped anyway connect no others: two that only such a document connects both stay.
    stay = pairs[same & ~shared[pairs].any(axis=1) & documents.train[pairs[:, 1]]]
    cluster = minhash.clusters(len(shared), stay)
    later = documents.again | (cluster != np.arange(len(cluster)))
    return repeated, shared, np.flatnonzero(documents.train & (shared | later))
