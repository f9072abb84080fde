"""File formats: one entry of `FORMATS` per suffix. Each format may also be compressed. Other files are plain text.

Owns: plain text and .jsonl, and the table of formats. Does not own: tables (`csv_tsv_parquet`), decompression and
encodings (`decompression`), finding files (`sources`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lilliput.data.corpora import csv_tsv_parquet as tables
from lilliput.data.corpora.decompression import (
    COMPRESSIONS,
    Piece,
    compression_of,
    decode,
    join,
    line_at,
    place,
    read_chunks,
    split_at,
    split_lines,
    split_paragraphs,
    trim,
)
from lilliput.data.corpora.documents import END_OF_TEXT, Document, Labels, check_text
from lilliput.errors import UserError, nearest
from lilliput.settings.tree import DataSettings
from lilliput.storage.atomic_files import parse_json

SEPARATORS = {
    "line": "one document per line",
    "blank-line": "documents end at a blank line",
    "file": "one document per file",
}


class Format(NamedTuple):
    read: Callable[[Path, DataSettings, Labels], Iterator[Document]]
    describe: Callable[[list[Path], DataSettings], str]  # how such files are split into documents, guesses included
    expansion: int = 1  # upper estimate of text size / file size


def separator_of(settings: DataSettings) -> str:
    """Return the separator of a .txt file. With labels, `auto` is `line`."""
    return "line" if settings.labelled and settings.separator == "auto" else settings.separator


def read_text(path: Path, settings: DataSettings, labels: Labels) -> Iterator[Document]:
    chunks = read_chunks(path)
    pieces: Iterator[Piece]
    match separator_of(settings):
        case "file":
            pieces = join(chunks)
        case "line":
            pieces = split_lines(chunks, settings.line_ends == "normalise")
        case "blank-line":
            pieces = split_paragraphs(split_lines(chunks, settings.line_ends == "normalise"))
        case _:  # `auto` is `endoftext`: without a separator in it, the file is one piece
            pieces = split_at(chunks, END_OF_TEXT.encode())
    if settings.labelled:
        yield from (_labelled_text(path, piece[0], decode(path, piece), labels) for piece in pieces)
    else:
        yield from (Document(decode(path, trim(piece))) for piece in pieces)


def _labelled_text(path: Path, start: int, text: str, labels: Labels) -> Document:
    def where() -> str:
        leading = len(text) - len(text.lstrip())  # blank lines may precede the document
        return place(path, line_at(path, start + len(text[:leading].encode())))

    if not text.strip():
        return Document("")
    label, tab, rest = text.lstrip("\r\n").partition("\t")
    if not tab:
        what = "a labelled line must have a tab between label and text (got no tab)"
        fix = "write label TAB text on each line, or set data.labelled to false"
        raise UserError(what, where(), fix=fix, code="data.label", setting="data.labelled")
    return Document(rest, labels.take(label, where)) if rest.strip() else Document("")


def describe_text(files: list[Path], settings: DataSettings) -> str:
    labelled = ", label TAB text" if settings.labelled else ""
    separator = separator_of(settings)
    if separator in SEPARATORS:
        return SEPARATORS[separator] + labelled
    if len(files) > 1:
        return f"documents end at {END_OF_TEXT} or at the end of a file{labelled}"
    if _contains(files[0], END_OF_TEXT.encode()):
        return f"documents end at {END_OF_TEXT}{labelled}"
    return f"one document (it contains no {END_OF_TEXT}; set data.separator to line or blank-line to split it)"


def _contains(path: Path, separator: bytes) -> bool:
    """Return whether the separator occurs. Reads up to the first one, chunk by chunk."""
    tail = b""
    for chunk in read_chunks(path):
        if separator in tail + chunk:
            return True
        tail = (tail + chunk)[1 - len(separator) :]
    return False


def read_jsonl(path: Path, settings: DataSettings, labels: Labels) -> Iterator[Document]:
    for number, piece in enumerate(split_at(read_chunks(path), b"\n"), 1):
        if not piece[1] or piece[1].isspace():
            continue
        where = place(path, number)
        value = _parse(decode(path, piece), settings.text_field, where)
        text = _field(value, settings.text_field, "text", where)
        text = "" if text is None else text  # null is an empty document, as in a .parquet file
        if not isinstance(text, str):
            what = f"field {settings.text_field!r} must be a string (got {type(text).__name__})"
            fix = "set data.text_field to a field of text"
            raise UserError(what, where, fix=fix, code="data.column", setting="data.text_field")
        at = functools.partial(place, path, number)
        check_text(text, f"field {settings.text_field!r}", at)
        if settings.labelled and text.strip():
            yield Document(
                text, labels.take(_field(value, settings.label_field, "label", where, settings.text_field), at)
            )
        else:
            yield Document(text)


def _parse(line: str, name: str, where: str) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError as error:
        fix = "correct the line (one JSON object per line), or rename the file to .txt to read it as plain text"
        raise UserError(f"the line is not valid JSON: {error}", where, fix=fix, code="file.syntax") from error
    if not isinstance(value, dict):
        what, fix = f"the line must be a JSON object (got {type(value).__name__})", f'write {{"{name}": "…"}}'
        raise UserError(what, where, fix=fix, code="file.syntax")
    return value


def _field(value: dict[str, Any], name: str, setting: str, where: str, taken: str | None = None) -> Any:
    if name in value:
        return value[name]
    fields = [repr(key)[1:-1][:40] for key in list(value)[:8]]  # a name may contain line ends
    others = [field for field in fields if field != taken]
    meant = nearest(name, others) or next(iter(others), None)
    what = f"each line must have the field {name!r} (got {', '.join(fields) or 'an empty object'})"
    fix = f"set data.{setting}_field to {meant}" if meant else f"add the field {name!r}"
    raise UserError(what, where, fix=fix, code="data.column", setting=f"data.{setting}_field")


def describe_jsonl(files: list[Path], settings: DataSettings) -> str:
    labelled = f", label in field {settings.label_field!r}" if settings.labelled else ""
    return f"one document per line (field {settings.text_field!r}{labelled})"


FORMATS: dict[str, Format] = {
    ".txt": Format(read_text, describe_text),
    ".jsonl": Format(read_jsonl, describe_jsonl),
    ".csv": Format(tables.read_csv, tables.describe_csv),
    ".tsv": Format(tables.read_tsv, tables.describe_tsv),
    ".parquet": Format(tables.read_parquet, tables.describe_parquet, expansion=4),
}


def ending_of(path: Path) -> str | None:
    """Return the suffix of a file's format: `.txt` for `story.txt` and `story.TXT.gz`; None if unknown."""
    name = path.with_suffix("") if compression_of(path) else path
    ending = name.suffix.lower()
    return ending if ending in FORMATS else None


def format_of(path: Path) -> Format:
    """Return the format of a file. A file with another suffix, or without one, is read as plain text."""
    return FORMATS[ending_of(path) or ".txt"]


def endings() -> str:
    """Return the supported file types as a phrase."""
    known = list(FORMATS)
    return f"{', '.join(known[:-1])} or {known[-1]}"


def compressed() -> str:
    """Return the supported compressions as a phrase that follows the file types."""
    return f"(they may be compressed: {', '.join(COMPRESSIONS)})"


def text_size(path: Path) -> int:
    """Return an upper estimate of the bytes of text in a file."""
    compression = compression_of(path)
    expansion = (compression.expansion if compression else 1) * format_of(path).expansion
    return path.stat().st_size * expansion
