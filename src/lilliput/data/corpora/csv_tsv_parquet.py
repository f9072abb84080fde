"""Read .csv, .tsv and .parquet files, one document per row.

Owns: choosing the columns of text and label (by name, by number, or by a guess that is reported), and errors in rows.
Does not own: bytes and encodings (`decompression`).

Cells of a .csv may be quoted and then contain anything. Quotation marks in a .tsv are text (as in hand-written label
TAB text files), and a cell ends at a tab.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from lilliput.data.corpora.decompression import compression_of, decode, place, read_bytes, read_chunks, split_at
from lilliput.data.corpora.documents import Document, Labels
from lilliput.errors import UserError, nearest
from lilliput.settings.tree import DataSettings

DEFAULTS = DataSettings()
LONGEST_CELL = 2**31 - 1  # the largest C long on every platform
ROWS = 256  # rows of a .parquet file in memory at once
BUFFER = 1 << 20

Row = tuple[int, list[str]]  # the line on which the row begins, its cells
Rows = Callable[[Path], Iterator[Row]]


class Columns(NamedTuple):
    """The columns of text and label, from 0. `description` is printed."""

    text: int
    label: int | None
    width: int
    header: bool
    description: str


def choose_columns(first: list[str], settings: DataSettings, where: str) -> Columns:
    """Choose the columns from the first row. It is a header if it contains the name of the text or label column."""
    names = [cell.strip() for cell in first]
    header = settings.text_field in names or settings.label_field in names
    if header:
        text = _find(settings.text_field, names, "text", where)
        label = _find(settings.label_field, names, "label", where, text) if settings.labelled else None
        chosen = f"column {names[text]!r}" + (f", label in column {names[label]!r}" if label is not None else "")
    else:
        guess = len(names) - 1 if len(names) <= 2 and settings.text_field == DEFAULTS.text_field else None
        text = _find(settings.text_field, names, "text", where) if guess is None else guess
        label = _label_by_number(text, names, settings, where) if settings.labelled else None
        chosen = f"no header: column {text + 1} is the text"
        if label is not None:
            chosen += f", column {label + 1} the label"
        elif guess == 1:
            chosen += ", column 1 is ignored"
    if text == label:
        what = f"text and label must be in different columns (got column {text + 1} for both)"
        fix = "set data.text_field and data.label_field to different columns"
        raise UserError(what, where, fix=fix, code="data.column", setting="data.label_field")
    return Columns(text, label, len(names), header, f"one document per row ({chosen})")


def _label_by_number(text: int, names: list[str], settings: DataSettings, where: str) -> int:
    if settings.label_field == DEFAULTS.label_field and len(names) == 2:
        return 1 - text
    if len(names) == 1:
        what, fix = "a row must have a label and a text (got one column)", "add labels, or set data.labelled to false"
        raise UserError(what, where, fix=fix, code="data.label", setting="data.labelled")
    return _find(settings.label_field, names, "label", where, text)


def _find(field: str, names: list[str], setting: str, where: str, taken: int | None = None) -> int:
    """Return the index of the column with this name, or with this number from 1; an error does not suggest column `taken`."""
    if field in names:
        return names.index(field)
    if field.isdecimal():
        if 1 <= int(field) <= len(names):
            return int(field) - 1
        what = f"data.{setting}_field must be a column from 1 to {len(names)} (got {field})"
        fix = f"set data.{setting}_field to 1"
        raise UserError(what, where, fix=fix, code="data.column", setting=f"data.{setting}_field")
    shown = [repr(name)[1:-1][:30] for name in names[:8]]
    others = [index for index in range(len(names)) if index != taken] or [0]
    close = nearest(field, [shown[at] for at in others if at < len(shown)])
    # The text is in the column with the longest cell, a label in one with a short cell.
    likely = (max if setting == "text" else min)(others, key=lambda index: len(names[index])) + 1
    columns = ", ".join(shown) + (" …" if len(names) > 8 else "")
    what = f"data.{setting}_field must be a column of the first row: {columns} (got {field!r})"
    fix = f"set data.{setting}_field to {close or likely} (a name, or a number from 1)"
    raise UserError(what, where, fix=fix, code="data.column", setting=f"data.{setting}_field")


def csv_rows(path: Path) -> Iterator[Row]:
    # The limit is global in the process: a smaller one set by another library would reject long documents.
    csv.field_size_limit(LONGEST_CELL)
    lines = (decode(path, piece) + "\n" for piece in split_at(read_chunks(path), b"\n"))
    reader, line = csv.reader(lines, strict=True), 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            ends, returns = "end of data" in str(error), "new-line character" in str(error)
            what = "a quoted cell has no closing quotation mark" if ends else f"the row is not valid CSV: {error}"
            what = "rows must end with a line feed (got a carriage return)" if returns else what
            fix = "write a quotation mark in a quoted cell twice, or rename the file to .tsv or .txt"
            fix = f"run tr '\\r' '\\n' < {path.name} > new-{path.name}" if returns else fix
            raise UserError(what, place(path, line), fix=fix, code="file.syntax") from error
        if cells is None:
            return
        yield line, cells
        line = reader.line_num + 1


def tsv_rows(path: Path) -> Iterator[Row]:
    for number, piece in enumerate(split_at(read_chunks(path), b"\n"), 1):
        yield number, decode(path, piece).removesuffix("\r").split("\t")


def _is_blank(cells: list[str]) -> bool:
    return len(cells) <= 1 and not "".join(cells).strip()


def _read_rows(rows: Rows, path: Path, settings: DataSettings, labels: Labels) -> Iterator[Document]:
    columns = None
    for line, cells in rows(path):
        if _is_blank(cells):
            continue
        if columns is None:
            columns = choose_columns(cells, settings, place(path, line))
            if columns.header:
                continue
        if len(cells) != columns.width:
            found = f"{len(cells)} column{'' if len(cells) == 1 else 's'}"
            what = f"line {line} has {found}, but the first row has {columns.width}"
            raise UserError(
                what, place(path, line), fix=_fix_width(rows, len(cells) < columns.width), code="file.syntax"
            )
        text = cells[columns.text]
        if columns.label is not None and text.strip():
            yield Document(text, labels.take(cells[columns.label], functools.partial(place, path, line)))
        else:
            yield Document(text)


def _fix_width(rows: Rows, is_short: bool) -> str:
    """Return how to correct a row with too few or too many cells."""
    if rows is csv_rows:
        return "add the missing cells" if is_short else "write quotation marks around cells that contain a comma"
    return "add the missing tab or cell (label TAB text)" if is_short else "remove the extra tabs"


def _describe_rows(rows: Rows, files: list[Path], settings: DataSettings) -> str:
    firsts = (
        choose_columns(cells, settings, place(path, line))
        for path in files
        for line, cells in rows(path)
        if not _is_blank(cells)
    )
    columns = next(firsts, None)
    return columns.description if columns else "one document per row"


def read_csv(path: Path, settings: DataSettings, labels: Labels) -> Iterator[Document]:
    return _read_rows(csv_rows, path, settings, labels)


def describe_csv(files: list[Path], settings: DataSettings) -> str:
    return _describe_rows(csv_rows, files, settings)


def read_tsv(path: Path, settings: DataSettings, labels: Labels) -> Iterator[Document]:
    return _read_rows(tsv_rows, path, settings, labels)


def describe_tsv(files: list[Path], settings: DataSettings) -> str:
    return _describe_rows(tsv_rows, files, settings)


def read_parquet(path: Path, settings: DataSettings, labels: Labels) -> Iterator[Document]:
    with _open_parquet(path) as file:
        text, label = _parquet_columns(file, path, settings)
        names = [name for name in (text, label) if name is not None]
        number = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=names, use_threads=False):
            texts = batch.column(text).to_pylist()
            values = batch.column(label).to_pylist() if label is not None else [None] * len(texts)
            for found, value in zip(texts, values, strict=True):
                number += 1
                if label is not None and found and not found.isspace():
                    yield Document(found, labels.take(value, functools.partial(_row, path, number)))
                else:
                    yield Document(found or "")  # null is an empty document


def _row(path: Path, number: int) -> str:
    return f"{path}, row {number}"


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """Open the file for reading in parts; convert its errors to UserErrors."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        what, fix = "reading .parquet files requires pyarrow (not installed)", 'run pip install "lilliput[data]"'
        raise UserError(what, str(path), fix=fix, code="package.missing") from error
    with contextlib.ExitStack() as stack:
        source: str | IO[bytes] = str(path)
        if compression_of(path):  # the index is at the end of the file, so it cannot be read as a stream
            source = stack.enter_context(tempfile.TemporaryFile())
            try:
                for chunk in read_bytes(path):
                    source.write(chunk)
                source.flush()
            except OSError as error:
                what = f"cannot decompress the file into {tempfile.gettempdir()}: {error.strerror}"
                fix = "set TMPDIR to a folder with more space, or decompress the file first"
                raise UserError(what, str(path), fix=fix, code="file.not-written") from error
        try:
            # Without these arguments, a whole row group is read at once.
            yield stack.enter_context(pyarrow.parquet.ParquetFile(source, buffer_size=BUFFER, pre_buffer=False))
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, PermissionError):
                what = f"cannot read the file: {error.strerror}"
                raise UserError(what, str(path), fix="check its permissions", code="file.unreadable") from error
            reason = str(error).strip().splitlines()[0][:150]
            what = f"the .parquet file is damaged: {reason}"
            raise UserError(what, str(path), fix="copy or download it again", code="file.damaged") from error


def _parquet_columns(file: Any, path: Path, settings: DataSettings) -> tuple[str, str | None]:
    """Return the names of the columns of text and label."""
    import pyarrow.types as kinds  # type: ignore[import-untyped]

    def holds_text(kind: Any) -> bool:
        inner = kind.value_type if kinds.is_dictionary(kind) else kind
        return bool(kinds.is_string(inner) or kinds.is_large_string(inner))

    schema = file.schema_arrow
    names = list(schema.names)
    texts = [name for name in names if holds_text(schema.field(name).type)]

    def find(field: str, setting: str, among: list[str]) -> str:
        if field in names:
            return field
        if field.isdecimal() and 1 <= int(field) <= len(names):
            return str(names[int(field) - 1])
        shown = [repr(name)[1:-1][:30] for name in names[:8]]
        meant = nearest(field, among) or (among[0] if among else None)
        what = f"data.{setting}_field must be a column of the file: {', '.join(shown) or 'none'} (got {field!r})"
        fix = f"set data.{setting}_field to {meant}" if meant else "give a file with a column of text"
        raise UserError(what, str(path), fix=fix, code="data.column", setting=f"data.{setting}_field")

    text = find(settings.text_field, "text", texts)
    if text not in texts:
        meant = nearest(settings.text_field, texts) or (texts[0] if texts else None)
        what = f"column {text!r} must contain text (got {schema.field(text).type})"
        fix = f"set data.text_field to {meant}" if meant else "give a file with a column of text"
        raise UserError(what, str(path), fix=fix, code="data.column", setting="data.text_field")
    return text, find(settings.label_field, "label", names) if settings.labelled else None


def describe_parquet(files: list[Path], settings: DataSettings) -> str:
    with _open_parquet(files[0]) as file:
        text, label = _parquet_columns(file, files[0], settings)
    return f"one document per row (column {text!r}" + (f", label in column {label!r})" if label is not None else ")")
