"""Is the split clean? Documents that stand there twice, or in training and in what it is judged by.

Owns: counting exact duplicates from hashes, the pass that finds near duplicates (its result, speed and
memory), and which training documents are left out for either. Does not own: the hashes on disk (`prepare`),
the compiled search itself (`kernels.minhash`).

A near twin is a document whose set of five-word shingles has a Jaccard similarity of at least the threshold. Two
readings of the
corpus: the first keeps a signature of 224 bytes of each document, from which come the pairs that are probably alike;
the second
writes the shingles of those few to a file and compares them exactly. So nothing below the threshold is ever told; at
the
threshold itself about one pair in 170 is not found, at 0.85 one in 7,000. Memory: about 250 bytes for each document,
40 MB, and
seven times the longest document.
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
PART = 1 << 22  # hashes that are sorted at once: 32 MB
BATCH = 1 << 20  # characters that are looked at together
CLOSEST = 10
OPENING = 60  # characters of a document that are shown

Hashes = NDArray[np.uint64]
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]


def hash_text(text: bytes) -> bytes:
    """64 bits: in two million documents, two different ones look equal with a chance of one in ten million."""
    return hashlib.blake2b(text, digest_size=8).digest()


# Exact duplicates --------------------------------------------------------------------------------------------------


def count_exact(hashes: Mapping[str, Hashes]) -> dict[str, dict[str, int]]:
    """How many documents repeat an earlier one of their split (`within`), and how many of the others stand in train
    (`across`), from the hashes of each split.

    The arrays may be maps of files of any length: a range of hashes is looked at at a time, so that about 200 MB suffice.
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
    """What lies in a range, from a stretch of the file at a time."""
    for begin in range(0, len(values), PART):
        chunk = np.asarray(values[begin : begin + PART])
        yield chunk[(chunk >= np.uint64(low)) & (chunk <= np.uint64(high - 1))]


def _distinct(chunks: Iterator[Hashes]) -> Hashes:
    """Sorted, each once. Merged whenever a part is together: a file of one value over and over takes no more memory."""
    held, size = [np.empty(0, dtype=np.uint64)], 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > PART:
            held = [np.unique(np.concatenate(held))]
            size = 0
    return np.unique(np.concatenate(held))


# One reading of a corpus -------------------------------------------------------------------------------------------


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
        held += len(document.text)  # characters, which are bytes near enough for a bar
        if held >= BATCH:
            yield batch
            done, held, position = done + held, 0, position + len(batch.texts)
            report(phase, done, corpus.size or None)
            batch = _Batch(position, [], [])
    if batch.texts:
        yield batch
    report(phase, done + held, done + held)


def _first_equal(hashes: Hashes, splits: NDArray[np.uint16]) -> Positions:
    """For each document the first one of its split with the same text: itself, if that is new."""
    order = np.lexsort((hashes, splits))  # stable: equal ones stay in the order of the stream
    hashes, splits = hashes[order], splits[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (hashes[1:] != hashes[:-1]) | (splits[1:] != splits[:-1])
    first = np.empty(len(order), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def find_dropped(
    corpus: Corpus, kind: Literal["exact", "near"], report: Report = silent, folder: Path | None = None
) -> Positions:
    """Positions in `corpus.stream()` of the training documents to leave out, sorted.

    Those that equal (nearly equal) one of another split; and of a set of equal ones (of those connected by near
    equality) all but the first.
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
    """What is known of every document, by its position in the stream."""

    hashes: Hashes
    splits: NDArray[np.uint16]  # index into the splits of the corpus
    train: Mask
    first: Positions  # the first document of the split with this text
    shared: Mask  # of train: the text stands in another split; of another split: in train

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
        """Which documents equal an earlier one of their split."""
        return np.not_equal(self.first, np.arange(len(self.first)))


# Near duplicates ---------------------------------------------------------------------------------------------------


class Twins(NamedTuple):
    """Two documents that are alike and not equal: numbers from 0 in their splits, the first characters of both."""

    splits: tuple[str, str]
    documents: tuple[int, int]
    similarity: float
    openings: tuple[str, str]


@dataclass(frozen=True)
class NearDuplicates:
    """What the pass found, and what it cost. Equal documents are near twins too."""

    repeated: dict[str, Positions]  # of each split, numbers of the documents that have an earlier near twin in it
    leaked: dict[str, Positions]  # of each split but train, numbers of the documents that have a near twin in train
    dropped: Positions  # positions in the stream of training documents to leave out, as `find_dropped` says
    pairs: Positions  # (n, 2), positions in the stream; of equal documents of a split only the first
    similarities: NDArray[np.float64]  # (n,), exact
    closest: list[Twins]
    threshold: float
    seconds: float
    megabytes_per_second: float
    memory_bytes: int | None  # the most that the pass held after any batch; None where the system does not tell

    @property
    def within(self) -> dict[str, int]:
        return {split: len(numbers) for split, numbers in self.repeated.items()}

    @property
    def across(self) -> dict[str, int]:
        return {split: len(numbers) for split, numbers in self.leaked.items()}

    def as_json(self) -> dict[str, Any]:
        figures = ("within", "across", "threshold", "seconds", "megabytes_per_second", "memory_bytes")
        told = {figure: getattr(self, figure) for figure in figures}
        return told | {"dropped": len(self.dropped), "closest": [pair._asdict() for pair in self.closest]}


class _Memory:
    """How much more memory of its own (not pages of files) the process had, at most, than at the beginning."""

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
    """Finds near twins within each split and between train and each other split, in two readings of the corpus.

    Shingles of likely twins go to a file without a name in `folder` (the system's own for such files, if none).
    """
    if not 0.5 <= threshold <= 1:
        what, fix = f"the threshold of similarity must be from 0.5 to 1, got {threshold}", "use 0.8"
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
    similarities, closest = np.empty(0), list[Twins]()
    if len(pairs):
        try:
            pairs, similarities, closest = _compare(corpus, documents, pairs, threshold, report, memory, folder)
        except OSError as error:  # mistakes of sources are UserErrors by now: what is left concerns the file
            raise cannot_write(error, (folder or Path(tempfile.gettempdir())) / "shingles of documents") from error
    repeated, leaked, dropped = _judge(documents, pairs)
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
) -> tuple[Positions, NDArray[np.float64], list[Twins]]:  # fmt: skip
    """The second reading: which pairs are as alike as the threshold, how much, and the closest that are not equal."""
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
            what, fix = "the source changed while it was read", "run it again when the source is complete"
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
            closest.append(Twins(names, (number(a), number(b)), float(found[index]), (first, second)))
    return pairs, found, closest


def _judge(documents: _Documents, pairs: Positions) -> tuple[Mask, Mask, Positions]:
    """Which documents repeat an earlier one of their split, which have a twin across, and which of train are left out."""
    from lilliput.kernels import minhash

    same = documents.splits[pairs[:, 0]] == documents.splits[pairs[:, 1]]
    repeated, shared = documents.again, documents.shared.copy()
    repeated[pairs[same, 1]] = True
    shared[pairs[~same]] = True
    shared = shared[documents.first]  # what holds for a text holds for all that are equal to it
    # Without those that go anyway: two documents that only a third one connects are then no twins of each other.
    stay = pairs[same & ~shared[pairs].any(axis=1) & documents.train[pairs[:, 1]]]
    cluster = minhash.clusters(len(shared), stay)
    later = documents.again | (cluster != np.arange(len(cluster)))
    return repeated, shared, np.flatnonzero(documents.train & (shared | later))
