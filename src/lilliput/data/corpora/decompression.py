"""Read the bytes of a text file, decompressed, in pieces of bounded size.

Owns: the compression formats, errors for input that is not UTF-8 text (with line and byte), and splitting bytes at a
separator. Does not own: the meaning of a piece (`formats`, `csv_tsv_parquet`).

Lines and bytes are counted in the decompressed text.
"""

from __future__ import annotations

import codecs
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from lilliput.errors import UserError

CHUNK = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Piece = tuple[int, bytearray]  # offset of its first byte in the text, its bytes


class Decompressor(Protocol):
    """The common interface of zlib, lzma and zstandard; decodes one member of an archive."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class Codec(NamedTuple):
    new: Callable[[], Decompressor]
    error: type[Exception]


class Compression(NamedTuple):
    name: str
    magic: bytes  # the first bytes of every such file
    expansion: int  # upper estimate of text size / file size, for progress bars and estimates
    chunk: int  # compressed bytes read at a time: at the best ratio (1,000, 30,000 and 7,000) about 100 MB of text
    codec: Callable[[], Codec]


def _gzip() -> Codec:
    return Codec(lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), zlib.error)


def _xz() -> Codec:
    return Codec(lzma.LZMADecompressor, lzma.LZMAError)


def _zstandard() -> Codec:
    try:
        import zstandard
    except ImportError as error:
        what, fix = "reading .zst files requires zstandard (not installed)", 'run pip install "lilliput[data]"'
        raise UserError(what, fix=fix, code="package.missing") from error
    return Codec(lambda: cast(Decompressor, zstandard.ZstdDecompressor().decompressobj()), zstandard.ZstdError)


COMPRESSIONS = {
    ".gz": Compression("gzip", b"\x1f\x8b", 4, 1 << 16, _gzip),
    ".zst": Compression("zstd", b"\x28\xb5\x2f\xfd", 5, 1 << 12, _zstandard),
    ".xz": Compression("xz", b"\xfd7zXZ\x00", 6, 1 << 14, _xz),
}


READABLE = "give a text file, or a .jsonl, .csv, .tsv or .parquet file"
HEAD = 4096  # bytes in which a control byte marks a file that is not text
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\b\x1a\x1b")  # without those of text files and terminals

# Files that are not text but may have no NUL byte near their start: first bytes, name, fix.
CONTAINERS = (
    (b"\x89PNG", "a PNG image", READABLE),
    (b"\xff\xd8\xff", "a JPEG image", READABLE),
    (b"GIF87a", "a GIF image", READABLE),
    (b"GIF89a", "a GIF image", READABLE),
    (b"\x7fELF", "a program", READABLE),
    (b"OggS\0", "an audio file", READABLE),
    *((b"ID3" + bytes([version]), "an audio file", READABLE) for version in (2, 3, 4)),
    (b"SQLite format 3\0", "an SQLite database", "export its texts as .csv or .jsonl"),
    (b"%PDF-", "a PDF file", "save its text as .txt, for example with pdftotext"),
    (
        b"PK\x03\x04",
        "a zip archive, or a document of an office program",
        "save the text in it as .txt",
    ),
    (b"BZh91AY&SY", "bzip2 data", "run bunzip2 on it"),
)


def compression_of(path: Path) -> Compression | None:
    return COMPRESSIONS.get(path.suffix.lower())


def read_bytes(path: Path) -> Iterator[bytes]:
    """Yield the bytes of the file in parts, decompressed if its suffix is one of `COMPRESSIONS`."""
    compression = compression_of(path)
    size = compression.chunk if compression else CHUNK
    try:
        with open(path, "rb") as file:
            if first := file.read(size):
                _check_magic(path, first, compression)
                parts = chain([first], iter(lambda: file.read(size), b""))
                yield from _decompress(path, parts, compression.codec()) if compression else parts
    except OSError as error:
        what = f"cannot read the file: {error.strerror}"
        raise UserError(what, str(path), fix="check its permissions", code="file.unreadable") from error


def _check_magic(path: Path, first: bytes, compression: Compression | None) -> None:
    if compression and not first.startswith(compression.magic):
        what = f"a {path.suffix} file must be compressed with {compression.name} (got other content)"
        raise UserError(what, str(path), fix=f"rename it to {path.stem}, or download it again", code="file.format")
    for suffix, other in COMPRESSIONS.items():
        if not compression and first.startswith(other.magic):
            what = f"a file without the suffix {suffix} must not be compressed (got {other.name} data)"
            raise UserError(what, str(path), fix=f"rename it to {path.name}{suffix}", code="file.format")
    for magic, kind, fix in CONTAINERS:
        if first.startswith(magic):
            raise UserError(f"the file is not a text file (got {kind})", str(path), fix=fix, code="file.binary")


def _decompress(path: Path, parts: Iterable[bytes], codec: Codec) -> Iterator[bytes]:
    """Yield the text of all members. All three formats allow several members, with or without zeros between them."""
    decoder, done = codec.new(), 0
    try:
        for data in parts:
            while data:
                if decoder.eof:
                    if not (data := data.lstrip(b"\0")):
                        break
                    decoder = codec.new()
                if text := decoder.decompress(data):
                    yield text
                    done += len(text)
                data = decoder.unused_data
    except codec.error as error:
        what = f"the archive is damaged after byte {done} of the decompressed text: {error}"
        raise UserError(what, str(path), fix="copy or download it again", code="file.damaged") from error
    if not decoder.eof:
        what = f"the archive is truncated after byte {done} of the decompressed text"
        raise UserError(what, str(path), fix="copy or download it again", code="file.damaged")


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a text file in parts; raise if it is UTF-16 or binary."""
    position = 0
    for chunk in read_bytes(path):
        if position == 0 and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
            what, where = "the file must be UTF-8 (got UTF-16)", place(path, offset=0)
            raise UserError(what, where, fix=_convert(path, "utf-16"), code="file.not-utf8")
        if (zero := chunk.find(b"\0")) >= 0:
            what, where = "the file is not a text file (got a NUL byte)", place(path, offset=position + zero)
            raise UserError(what, where, fix=READABLE, code="file.binary")
        yield chunk
        position += len(chunk)


def is_text(path: Path) -> bool:
    """Return whether the first part of a file (1 MB) is UTF-8 text without NUL bytes."""
    chunks = read_chunks(path)
    try:
        first = next(chunks, b"")
        is_whole = next(chunks, None) is None  # else a character may be cut at the end
        codecs.getincrementaldecoder("utf-8")().decode(first, is_whole)
    except UnicodeDecodeError:
        return False
    except UserError as error:
        if error.code == "file.unreadable":
            raise
        return False
    return True


def place(path: Path, line: int | None = None, offset: int | None = None) -> str:
    """Return the place of an error in a file."""
    parts = [str(path)]
    if line is not None:
        parts.append(f"line {line}")
    if offset is not None:
        parts.append(f"byte {offset}" + (" of the decompressed text" if compression_of(path) else ""))
    return ", ".join(parts)


def line_at(path: Path, offset: int) -> int:
    """Return the line, from 1, of a byte. Reads the file again, so that valid files need no line count."""
    lines, position = 1, 0
    for chunk in read_bytes(path):
        lines += chunk.count(b"\n", 0, offset - position)
        position += len(chunk)
        if position >= offset:
            break
    return lines


def _convert(path: Path, encoding: str) -> str:
    if compression := compression_of(path):
        return f"run {compression.name} -dc {path.name} | iconv -f {encoding} -t utf-8 > utf8-{path.stem}"
    return f"run iconv -f {encoding} -t utf-8 {path.name} > utf8-{path.name}"


def trim(piece: Piece) -> Piece:
    """Remove surrounding white space from a piece. Stripping the decoded text would copy up to four times the bytes."""
    start, raw = piece
    del raw[len(raw.rstrip()) :]
    leading = len(raw) - len(raw.lstrip())
    del raw[:leading]
    return start + leading, raw


def decode(path: Path, piece: Piece) -> str:
    """Decode a piece and clear its bytes, because a document may be too large to keep both in memory."""
    start, raw = piece
    # `utf-8-sig` would shift the offsets of errors.
    skip = len(BYTE_ORDER_MARK) if start == 0 and raw.startswith(BYTE_ORDER_MARK) else 0
    try:
        text = (raw[skip:] if skip else raw).decode("utf-8")
    except UnicodeDecodeError as error:
        offset = start + skip + error.start
        if controls := CONTROLS.intersection(next(read_bytes(path), b"")[:HEAD]):
            what = f"the file is not a text file (got the control byte 0x{min(controls):02x})"
            raise UserError(what, str(path), fix=READABLE, code="file.binary") from error
        what = f"the file must be UTF-8 (got the invalid byte 0x{raw[skip + error.start]:02x})"
        where = place(path, line_at(path, offset), offset)
        fix = f"{_convert(path, 'latin1')} (if the file is Latin-1)"
        raise UserError(what, where, fix=fix, code="file.not-utf8") from error
    raw.clear()
    return text


def join(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """Yield everything as one piece."""
    whole = bytearray()
    for chunk in chunks:
        whole += chunk
    yield 0, whole


def split_at(chunks: Iterable[bytes], separator: bytes) -> Iterator[Piece]:
    """Yield the pieces between separators. White space after the last separator is not a piece."""
    held, start, searched = bytearray(), 0, 0
    for chunk in chunks:
        held += chunk
        cursor = 0
        while (found := held.find(separator, max(cursor, searched))) >= 0:
            yield start + cursor, held[cursor:found]
            cursor = found + len(separator)
        del held[:cursor]
        start += cursor
        # A separator may span two chunks. No byte is searched twice, however long the document.
        searched = max(0, len(held) - len(separator) + 1)
    if held and not held.isspace():
        yield start, held  # no copy: a file of one document may fill the memory


def split_lines(chunks: Iterable[bytes], carriage_returns: bool) -> Iterator[Piece]:
    """Yield the lines with their line ends. With `carriage_returns`, a CR ends a line too."""
    for start, raw in split_at(chunks, b"\n"):
        raw += b"\n"
        if not carriage_returns or raw.find(b"\r", 0, len(raw) - 2) < 0:
            yield start, raw
            continue
        for line in raw.splitlines(keepends=True):  # of bytes: only at CR, LF and CRLF
            yield start, line
            start += len(line)


def split_paragraphs(lines: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces between blank lines."""
    start, paragraph = 0, bytearray()
    for offset, line in lines:
        if not line.isspace():
            start = start if paragraph else offset
            paragraph += line
        elif paragraph:
            yield start, paragraph
            paragraph = bytearray()
    if paragraph:
        yield start, paragraph
