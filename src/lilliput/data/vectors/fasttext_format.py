"""FastText's binary format, memory-mapped: only the requested rows are read.

Owns: the layout of the file, and the vectors of words inside and outside its dictionary. Does not own: text formats
and word2vec (`vector_files`). Quantized models are not supported.

The vector of a word is the mean of its own row and of the rows of its n-grams, which share `bucket` rows by their hash
(Bojanowski et al. 2017, section 3.2). The vector of a word outside the dictionary is the mean over its n-grams alone.
The layout, little-endian:
    magic, version; 12 integers and a float: the training settings
    entries, words, labels, tokens, pruned n-grams (-1: no pruning); then for each entry: its bytes, 0, count, kind
    pruned n-grams as (hash, row); then two matrices, input and output: a flag (quantized), rows, width, float32 values
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Callable, Container, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lilliput.data.progress import Report
from lilliput.errors import UserError

Row = NDArray[np.float32]

MAGIC, NEWEST_VERSION = 793712314, 12
SUPERVISED = 3  # the kind of model that in version 11 has no character n-grams, regardless of its settings
END_OF_SENTENCE = b"</s>"  # FastText's own token, the only word without n-grams
WIDEST, LONGEST_WORD, LONGEST_NGRAM = 1 << 16, 1 << 14, 1 << 10  # larger values mean a damaged file
FNV_OFFSET, FNV_PRIME = 2166136261, 16777619
AGAIN = "replace the file with a complete copy"


def is_fasttext(start: bytes) -> bool:
    return start[:4] == struct.pack("<i", MAGIC)


class FastTextFile:
    """A FastText model on disk. `find` reads the dictionary; vectors are available after it."""

    kind = "FastText binary"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._place = 0
        _, version = self._take("<ii")
        settings = self._take("<12id")
        self.width, model, self._bucket, self._shortest, self._longest = (settings[i] for i in (0, 7, 8, 9, 10))
        self._entries, self.rows, _, _, self._pruned_size = self._take("<iiiqq")
        self._dictionary = self._place
        self._pruned: dict[int, int] | None = None
        self._matrix: NDArray[np.float32] | None = None
        if version > NEWEST_VERSION:
            what = f"the version of the FastText model must be at most {NEWEST_VERSION} (got {version})"
            fix = "use its .vec file, which has the same words"
            raise UserError(what, str(path), fix=fix, code="vectors.invalid", setting="vectors.source")
        if version == 11 and model == SUPERVISED:
            self._longest = 0
        sane = 0 < self.width <= WIDEST and 0 <= self.rows <= self._entries and self._bucket >= 0
        if not sane or not (self._shortest >= 0 and 0 <= self._longest <= LONGEST_NGRAM):
            what = "the header of the FastText model has invalid values"
            raise UserError(what, f"{path}, byte 8", fix=AGAIN, code="vectors.invalid", setting="vectors.source")

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[tuple[bytes, Callable[[], Row]]]:
        """Yield the wanted words of the dictionary. Other entries are skipped: a dictionary may have two million."""
        data, place, found = self._data, self._dictionary, list[tuple[bytes, int]]()
        for entry in range(self._entries):
            end = data.find(b"\0", place, place + LONGEST_WORD)
            if end < 0:
                what = f"the dictionary must have {self._entries:,} entries (got {entry:,})"
                raise UserError(
                    what, f"{self.path}, byte {place:,}", fix=AGAIN, code="vectors.invalid", setting="vectors.source"
                )
            word = data[place:end]
            if entry < self.rows and word in wanted:  # labels come after all words
                found.append((word, entry))
            place = end + 10  # the zero, a count of eight bytes, and the kind (word or label) in one byte
            if entry % 65_536 == 0:
                report("reading the dictionary", entry, self._entries)
        self._place = place
        if self._pruned_size >= 0:
            pairs = struct.iter_unpack("<ii", self._bytes(8 * self._pruned_size, "list of pruned n-grams"))
            self._pruned = dict(pairs)
            if min(self._pruned.values(), default=0) < 0:
                what = "the list of pruned n-grams has negative rows"
                raise UserError(
                    what, f"{self.path}, byte {place:,}", fix=AGAIN, code="vectors.invalid", setting="vectors.source"
                )
        self._open_matrix()
        for number, (word, entry) in enumerate(found):
            yield word, functools.partial(self._vector, word, entry)
            if number % 1024 == 0:
                report("reading vectors", number, len(found))

    def compose(self, word: str) -> Row | None:
        """Return the vector of a word outside the dictionary; None if it is too short for n-grams."""
        rows = self._ngram_rows(word.encode())
        return self._mean(word.encode(), rows) if rows else None

    def _vector(self, word: bytes, entry: int) -> Row:
        return self._mean(word, [entry, *self._ngram_rows(word)])

    def _mean(self, word: bytes, rows: list[int]) -> Row:
        assert self._matrix is not None, "find comes first"
        vector: Row = self._matrix[rows].mean(axis=0, dtype=np.float64).astype(np.float32)
        if not np.isfinite(vector).all():
            shown = word.decode(errors="replace")
            what = f"the vector of {shown!r} contains a value that is not finite"
            raise UserError(what, str(self.path), fix=AGAIN, code="vectors.invalid", setting="vectors.source")
        return vector

    def _ngram_rows(self, word: bytes) -> list[int]:
        if self._bucket == 0 or word == END_OF_SENTENCE:
            return []
        hashes = [value % self._bucket for value in ngram_hashes(word, self._shortest, self._longest)]
        if self._pruned is not None:
            hashes = [self._pruned[value] for value in hashes if value in self._pruned]
        return [self.rows + value for value in hashes]

    def _open_matrix(self) -> None:
        (quantized,) = self._take("<?")
        if quantized:
            what, fix = "quantized FastText models are not supported", "use the original .bin or .vec file"
            raise UserError(what, str(self.path), fix=fix, code="vectors.invalid", setting="vectors.source")
        rows, width = self._take("<qq")
        shared = self._bucket if self._pruned is None else 1 + max(self._pruned.values(), default=-1)
        needed = self.rows + shared
        if width != self.width or rows < needed:
            what = f"the shape of the matrix must be {needed:,} x {self.width:,} (got {rows:,} x {width:,})"
            raise UserError(
                what, f"{self.path}, byte {self._place:,}", fix=AGAIN, code="vectors.invalid", setting="vectors.source"
            )
        start = self._place
        self._skip(4 * rows * width, "matrix of vectors")
        self._matrix = np.frombuffer(self._data, "<f4", rows * width, start).reshape(rows, width)
        if self._place < len(self._data):  # some tools omit the output matrix, but a part of it means a truncated file
            quantized, rows, width = self._take("<?qq")
            if not quantized:
                self._skip(4 * rows * width, "second matrix")

    def _take(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout), "header"))

    def _bytes(self, size: int, part: str) -> bytes:
        start = self._place
        self._skip(size, part)
        return self._data[start : self._place]

    def _skip(self, count: int, part: str) -> None:
        end, size = self._place + count, len(self._data)
        if count < 0 or end > size:
            what = f"the {part} of the FastText model must end at byte {end:,} (got a file of {size:,} bytes)"
            where = f"{self.path}, byte {size:,}"
            raise UserError(what, where, fix=AGAIN, code="vectors.invalid", setting="vectors.source")
        self._place = end


def ngram_hashes(word: bytes, shortest: int, longest: int) -> list[int]:
    """Return the 32-bit FNV-1a hashes of the character n-grams of `<word>`, in FastText's order.

    A single < or > is not an n-gram. FastText hashes signed bytes: bytes from 128 are extended with 24 one bits.
    """
    text = b"<" + word + b">"
    starts = [place for place, byte in enumerate(text) if byte & 0xC0 != 0x80]  # of characters
    found = []
    for first, start in enumerate(starts):
        value = FNV_OFFSET
        ends = [*starts[first + 1 : first + 1 + longest], len(text)][:longest]
        for length, (begin, end) in enumerate(pairwise([start, *ends]), start=1):
            for byte in text[begin:end]:
                value = (value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * FNV_PRIME & 0xFFFFFFFF
            if length >= shortest and not (length == 1 and (start == 0 or end == len(text))):
                found.append(value)
    return found
