"""Files of word vectors: of which kind a file is, and the rows of the words that are wanted.

Owns: telling the formats apart by their content, the text format (.vec of FastText, .txt of word2vec and
GloVe, plain or compressed), word2vec's binary format, and every mistake that these can hold. Does not own:
FastText's binary format (`fasttext_format`), nor which words are wanted and what becomes of them (`vectors`).

A file may have many gigabytes: text is streamed, binary files are mapped, and only wanted rows are ever
parsed or copied. So of the numbers only those of wanted rows are checked; the shape of a file (its widths and
its rows) is checked whole.
"""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lilliput.data.corpora.decompression import BYTE_ORDER_MARK, compression_of, read_bytes
from lilliput.data.progress import Report
from lilliput.data.vectors.fasttext_format import WIDEST, FastTextFile, is_fasttext
from lilliput.errors import UserError, nearest

Row = NDArray[np.float32]
Found = tuple[bytes, Callable[[], Row]]  # a word, and its vector for those who want it

LONGEST_LINE = 1 << 20  # of a text; 30,000 numbers
LONGEST_WORD = 1 << 14  # of a binary file
SAMPLE = 1 << 12
PHASE = "reading vectors"
AGAIN = "download or write the file again"
FORMATS = "give a .vec, .txt or .bin file of FastText, word2vec or GloVe"
# Text, in whatever encoding, has no control characters, and what follows its first word is ASCII.
CONTROL, NOT_ASCII = re.compile(rb"[\x00-\x08\x0e-\x1f]"), re.compile(rb"[\x80-\xff]")


class VectorFile(Protocol):
    """Vectors by word. `rows` is the number of words in it, which some formats tell only after `find` has ended."""

    kind: str
    width: int
    rows: int
    notes: list[str]  # what a reader of the report should know

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[Found]:
        """The wanted words that the file has, in its order."""

    def compose(self, word: str) -> Row | None:
        """A vector from parts of a word that the file does not have, where the format can do that; after `find`."""


def open_vectors(path: Path) -> VectorFile:
    """Looks at the first bytes only; `width` is known then, and the rest is checked while it is read."""
    if path.is_dir():
        what, fix = "vectors.source is a folder, expected a file", "give the path of the file of vectors in it"
        raise UserError(what, str(path), fix=fix, code="file.is-folder", setting="vectors.source")
    if not path.exists():
        near = nearest(path.name, (other.name for other in path.parent.glob("*"))) if path.parent.is_dir() else None
        fix = f"use {path.parent / near}" if near else "give a .vec, .txt or .bin file, or train"
        raise UserError(
            "the file of vectors does not exist", str(path), fix=fix, code="file.missing", setting="vectors.source"
        )
    start = next(read_bytes(path), b"")
    if not start.strip():
        what, fix = "the file of vectors is empty", "download or write it again"
        raise UserError(what, str(path), fix=fix, code="vectors.invalid", setting="vectors.source")
    line, _, rest = start.partition(b"\n")
    header = _header(line)
    rows = (rest if header else start)[:SAMPLE]
    binary = bool(CONTROL.search(rows) or NOT_ASCII.search(rows.partition(b" ")[2][:4]))
    if compression_of(path) and (is_fasttext(start) or binary):
        what, fix = "binary files of vectors cannot be read compressed", "decompress it with gunzip, unxz or unzstd"
        raise UserError(what, str(path), fix=fix, code="file.format", setting="vectors.source")
    if is_fasttext(start):
        return FastTextFile(path)
    if header and binary:
        return Word2VecFile(path, *header, start=len(line) + 1)
    if binary:
        what = "not a file of vectors: it is not in the binary format of FastText or word2vec, and not text"
        raise UserError(what, str(path), fix=FORMATS, code="vectors.invalid", setting="vectors.source")
    return TextVectors(path, line, header)


def _header(line: bytes) -> tuple[int, int] | None:
    """`rows width` alone on the first line; files of GloVe have none."""
    pieces = line.removeprefix(BYTE_ORDER_MARK).split()
    if len(pieces) != 2 or not all(piece.isdigit() and len(piece) < 12 for piece in pieces):
        return None
    return int(pieces[0]), int(pieces[1])


class TextVectors:
    """`word number number ...` on a line each, after a header or not."""

    kind = "text"

    def __init__(self, path: Path, first: bytes, header: tuple[int, int] | None) -> None:
        self.path, self.header, self.rows = path, header, 0
        self.notes: list[str] = []
        self.width = checked_width(path, header[1] if header else len(first.split()) - 1, bool(header))

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[Found]:
        self.rows = 0
        for number, raw, whole in _lines(self.path, report):
            line = raw.rstrip()
            if not line or (number == 1 and self.header):
                continue
            self.rows += 1
            # Counting spaces is what two million lines can afford; the odd ones are looked at closely.
            plain = line.count(b" ") == self.width
            word = line[: line.index(b" ")] if plain else self._word_of_odd(line, number, whole)
            if word in wanted:
                yield word, functools.partial(self._numbers, line, number)
        self._check_rows()

    def compose(self, word: str) -> Row | None:
        return None

    def _word_of_odd(self, line: bytes, number: int, whole: bool) -> bytes:
        """The word of a line that is separated by tabs or runs of spaces, or whose word has spaces, as GloVe's have."""
        pieces = line.split()
        extra = pieces[1 : len(pieces) - self.width]
        if len(pieces) > self.width and not any(_is_number(piece) for piece in extra):
            return b" ".join([pieces[0], *extra])
        where, count = f"{self.path}, line {number:,}", len(pieces) - 1
        if not whole and count < self.width:
            what = f"the file ends in the middle of a row: {count:,} of {self.width:,} numbers"
            raise UserError(what, where, fix=AGAIN, code="vectors.invalid", setting="vectors.source")
        reference = "header" if self.header and self.rows == 1 else "earlier rows"
        what = f"the row has {count:,} numbers, expected {self.width:,} (as in the {reference})"
        raise UserError(
            what, where, fix="correct the row or the header", code="vectors.invalid", setting="vectors.source"
        )

    def _numbers(self, line: bytes, number: int) -> Row:
        pieces = line.split()[-self.width :]
        try:
            with np.errstate(over="ignore"):
                row = np.array([float(piece) for piece in pieces], dtype=np.float32)
        except ValueError:
            wrong = next(piece for piece in pieces if not _is_number(piece))
            what, where = f"{wrong.decode(errors='replace')[:40]!r} is not a number", f"{self.path}, line {number:,}"
            raise UserError(
                what, where, fix="correct or remove the row", code="vectors.invalid", setting="vectors.source"
            ) from None
        return finite(row, f"{self.path}, line {number:,}")

    def _check_rows(self) -> None:
        if self.header and self.rows < self.header[0]:
            what = f"the file has {self.rows:,} rows, expected {self.header[0]:,} (as in the header)"
            raise UserError(what, str(self.path), fix=AGAIN, code="vectors.invalid", setting="vectors.source")
        if self.header and self.rows > self.header[0]:
            self.notes = [f"the header promises {self.header[0]:,} rows; {self.rows:,} are there and were read"]


class Word2VecFile:
    """`rows width` on a line, then for each word its bytes, a space, and float32 numbers, with or without a line end."""

    kind = "word2vec binary"

    def __init__(self, path: Path, rows: int, width: int, start: int) -> None:
        self.path, self.rows, self.start = path, rows, start
        self.width = checked_width(path, width, header=True)
        self.notes: list[str] = []

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[Found]:
        bytes_of_row = 4 * self.width
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            size, place = len(data), self.start
            for row in range(self.rows):
                space = data.find(b" ", place, place + LONGEST_WORD)
                if space < 0 or space + 1 + bytes_of_row > size:
                    self._refuse(f"row {row + 1:,} of {self.rows:,} is incomplete", place)
                word = data[place:space].lstrip(b"\n")
                numbers = space + 1
                if word in wanted:
                    yield word, functools.partial(self._numbers, data, numbers)
                place = numbers + bytes_of_row
                if row % 4096 == 0:
                    report(PHASE, place, size)
            if data[place : place + SAMPLE].strip():
                self._refuse(f"{self.rows:,} rows of {self.width:,} numbers end before the file does", place)
            report(PHASE, size, size)

    def compose(self, word: str) -> Row | None:
        return None

    def _numbers(self, data: mmap.mmap, place: int) -> Row:
        row = np.frombuffer(data[place : place + 4 * self.width], dtype="<f4").astype(np.float32)
        return finite(row, f"{self.path}, byte {place:,}")

    def _refuse(self, what: str, place: int) -> None:
        what = f"{what}: the header is wrong, or the file is incomplete"
        raise UserError(
            what, f"{self.path}, byte {place:,}", fix=AGAIN, code="vectors.invalid", setting="vectors.source"
        )


def _lines(path: Path, report: Report) -> Iterator[tuple[int, bytes, bool]]:
    """Lines with their numbers, and whether a line end follows: a file that was cut off has none."""
    number, done, left = 0, 0, b""
    size = None if compression_of(path) else path.stat().st_size
    for chunk in read_bytes(path):
        lines = (left + chunk).split(b"\n")
        left = lines.pop()
        if len(left) > LONGEST_LINE:
            what = f"not a file of vectors: the line has more than {LONGEST_LINE:,} bytes"
            where = f"{path}, line {number + len(lines) + 1:,}"
            raise UserError(what, where, fix=FORMATS, code="vectors.invalid", setting="vectors.source")
        for line in lines:
            number += 1
            yield number, line, True
        done += len(chunk)
        report(PHASE, done, size)
    if left:
        yield number + 1, left, False


def _is_number(piece: bytes) -> bool:
    try:
        float(piece)
    except ValueError:
        return False
    return True


def checked_width(path: Path, width: int, header: bool) -> int:
    if 0 < width <= WIDEST:
        return width
    place = "the header" if header else "the first row"
    what = f"{place} gives vectors of {width:,} numbers, expected 1 to {WIDEST:,}"
    fix = "give a file with `word number number ...` on each line"
    raise UserError(what, f"{path}, line 1", fix=fix, code="vectors.invalid", setting="vectors.source")


def finite(row: Row, where: str) -> Row:
    if not np.isfinite(row).all():
        what, fix = "a vector contains a number that is not finite", "correct or remove the row"
        raise UserError(what, where, fix=fix, code="vectors.invalid", setting="vectors.source")
    return row
