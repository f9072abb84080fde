"""Read word vectors from files.

Owns: detecting the format by content, the text format (FastText's .vec, .txt of word2vec and GloVe, plain or
compressed), word2vec's binary format, and their errors. Does not own: FastText's binary format (`fasttext_format`), or
the choice of words (`vectors`).

A file may have many gigabytes: text is streamed, binary files are memory-mapped, and only rows of requested words are
parsed. So the values are checked for these rows only; the number and the width of rows are checked for the whole file.
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
Found = tuple[bytes, Callable[[], Row]]  # a word, and a function that reads its vector

LONGEST_LINE = 1 << 20  # of a text file; 30,000 values
LONGEST_WORD = 1 << 14  # of a binary file
SAMPLE = 1 << 12
PHASE = "reading vectors"
AGAIN = "replace the file with a complete copy"
FORMATS = "give a .vec, .txt or .bin file of FastText, word2vec or GloVe"
# A text file has no control characters in any encoding, and its values after the first word are ASCII.
CONTROL, NOT_ASCII = re.compile(rb"[\x00-\x08\x0e-\x1f]"), re.compile(rb"[\x80-\xff]")


class VectorFile(Protocol):
    """Vectors by word. `rows` is the number of words; in some formats it is known only after `find`."""

    kind: str
    width: int
    rows: int
    notes: list[str]  # warnings for the report

    def find(self, wanted: Container[bytes], report: Report) -> Iterator[Found]:
        """Yield the wanted words that the file contains, in the order of the file."""

    def compose(self, word: str) -> Row | None:
        """Return a vector composed of n-grams for a word outside the file, or None. Call it after `find`."""


def open_vectors(path: Path) -> VectorFile:
    """Open a file of any supported format. Reads the first bytes only: errors in the rest are raised by `find`."""
    if path.is_dir():
        what, fix = "vectors.source must be a file (got a folder)", "give the path of the vector file in it"
        raise UserError(what, str(path), fix=fix, code="file.is-folder", setting="vectors.source")
    if not path.exists():
        others = (other.name for other in path.parent.glob("*") if other.suffix in (".vec", ".txt", ".bin"))
        near = nearest(path.name, others) if path.parent.is_dir() else None
        fix = "set vectors.source to the path of a .vec, .txt or .bin file, or to the value train" + (
            f" (similar: {path.parent / near})" if near else ""
        )
        what = "the vector file does not exist"
        raise UserError(what, str(path), fix=fix, code="file.missing", setting="vectors.source")
    start = next(read_bytes(path), b"")
    if not start.strip():
        what = "the vector file is empty"
        raise UserError(what, str(path), fix=AGAIN, code="vectors.invalid", setting="vectors.source")
    line, _, rest = start.partition(b"\n")
    header = _header(line)
    rows = (rest if header else start)[:SAMPLE]
    binary = bool(CONTROL.search(rows) or NOT_ASCII.search(rows.partition(b" ")[2][:4]))
    if compression_of(path) and (is_fasttext(start) or binary):
        what, fix = "compressed binary vector files are not supported", "run gunzip, unxz or unzstd on it"
        raise UserError(what, str(path), fix=fix, code="file.format", setting="vectors.source")
    if is_fasttext(start):
        return FastTextFile(path)
    if header and binary:
        return Word2VecFile(path, *header, start=len(line) + 1)
    if binary:
        what = "the file is not a vector file: it is neither text nor in FastText's or word2vec's binary format"
        raise UserError(what, str(path), fix=FORMATS, code="vectors.invalid", setting="vectors.source")
    return TextVectors(path, line, header)


def _header(line: bytes) -> tuple[int, int] | None:
    """Return rows and width if the first line is `rows width`, else None. GloVe's files have no such header."""
    pieces = line.removeprefix(BYTE_ORDER_MARK).split()
    if len(pieces) != 2 or not all(piece.isdigit() and len(piece) < 12 for piece in pieces):
        return None
    return int(pieces[0]), int(pieces[1])


class TextVectors:
    """A text file with `word value value ...` on each line, and an optional header."""

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
            # Counting spaces is fast enough for two million lines; only unusual lines are parsed.
            plain = line.count(b" ") == self.width
            word = line[: line.index(b" ")] if plain else self._word_of_odd(line, number, whole)
            if word in wanted:
                yield word, functools.partial(self._numbers, line, number)
        self._check_rows()

    def compose(self, word: str) -> Row | None:
        return None

    def _word_of_odd(self, line: bytes, number: int, whole: bool) -> bytes:
        """Return the word of a line with tabs or repeated spaces, or with spaces in the word (as in GloVe's files)."""
        pieces = line.split()
        extra = pieces[1 : len(pieces) - self.width]
        if len(pieces) > self.width and not any(_is_number(piece) for piece in extra):
            return b" ".join([pieces[0], *extra])
        where, count = f"{self.path}, line {number:,}", len(pieces) - 1
        if not whole and count < self.width:
            what = f"the last row must have {self.width:,} values (got {count:,}): the file is truncated"
            raise UserError(what, where, fix=AGAIN, code="vectors.invalid", setting="vectors.source")
        reference = "header" if self.header and self.rows == 1 else "earlier rows"
        what = f"the row must have {self.width:,} values, as in the {reference} (got {count:,})"
        fix = "correct the row or the header"
        raise UserError(what, where, fix=fix, code="vectors.invalid", setting="vectors.source")

    def _numbers(self, line: bytes, number: int) -> Row:
        pieces = line.split()[-self.width :]
        try:
            with np.errstate(over="ignore"):
                row = np.array([float(piece) for piece in pieces], dtype=np.float32)
        except ValueError:
            wrong = next(piece for piece in pieces if not _is_number(piece))
            what = f"a value must be a number (got {wrong.decode(errors='replace')[:40]!r})"
            where, fix = f"{self.path}, line {number:,}", "correct or remove the row"
            raise UserError(what, where, fix=fix, code="vectors.invalid", setting="vectors.source") from None
        return finite(row, f"{self.path}, line {number:,}")

    def _check_rows(self) -> None:
        if self.header and self.rows < self.header[0]:
            what = f"the file must have {self.header[0]:,} rows, as in the header (got {self.rows:,})"
            raise UserError(what, str(self.path), fix=AGAIN, code="vectors.invalid", setting="vectors.source")
        if self.header and self.rows > self.header[0]:
            self.notes = [f"the file has {self.rows:,} rows, not {self.header[0]:,} as in its header; all are read"]


class Word2VecFile:
    """A line `rows width`, then for each word its bytes, a space, float32 values and an optional line end."""

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
                self._refuse(f"data follows the last of {self.rows:,} rows of {self.width:,} values", place)
            report(PHASE, size, size)

    def compose(self, word: str) -> Row | None:
        return None

    def _numbers(self, data: mmap.mmap, place: int) -> Row:
        row = np.frombuffer(data[place : place + 4 * self.width], dtype="<f4").astype(np.float32)
        return finite(row, f"{self.path}, byte {place:,}")

    def _refuse(self, what: str, place: int) -> None:
        what, where = f"{what}: the header is wrong, or the file is damaged", f"{self.path}, byte {place:,}"
        raise UserError(what, where, fix=AGAIN, code="vectors.invalid", setting="vectors.source")


def _lines(path: Path, report: Report) -> Iterator[tuple[int, bytes, bool]]:
    """Yield line number, line, and whether a line end follows (the last line of a truncated file has none)."""
    number, done, left = 0, 0, b""
    size = None if compression_of(path) else path.stat().st_size
    for chunk in read_bytes(path):
        lines = (left + chunk).split(b"\n")
        left = lines.pop()
        if len(left) > LONGEST_LINE:
            what = f"a line of a vector file must have at most {LONGEST_LINE:,} bytes (got a longer line)"
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
    what = f"vectors must have 1 to {WIDEST:,} values (got {width:,} from {place})"
    fix = "give a file with `word value value ...` on each line"
    raise UserError(what, f"{path}, line 1", fix=fix, code="vectors.invalid", setting="vectors.source")


def finite(row: Row, where: str) -> Row:
    if not np.isfinite(row).all():
        what, fix = "a vector contains a value that is not finite", "correct or remove the row"
        raise UserError(what, where, fix=fix, code="vectors.invalid", setting="vectors.source")
    return row
