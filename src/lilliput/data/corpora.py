"""Where documents come from: the built-in storybook, text files, .jsonl files, folders of them.

Owns: finding the files, cutting them into documents, the splits, and every mistake that a source can hold (with its
path, line and byte). Does not own: tokens, hashes or caches (`prepare`), nor the stories themselves (`storybook`).

Everything streams: one document is in memory at a time. A new file format is one entry of `FORMATS`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path

from lilliput.errors import UserError, nearest
from lilliput.settings import DataSettings

END_OF_TEXT = "<|endoftext|>"
STORYBOOK = "storybook"
STORYBOOK_DOCUMENTS = 20_000
CHUNK = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Notice = Callable[[], None]
Reader = Callable[[Notice], Iterator[str]]
Piece = tuple[int, bytes]  # offset of its first byte in the file, its bytes


def ignore() -> None:
    """For callers who do not count empty documents."""


@dataclass(frozen=True)
class Corpus:
    """Named splits of documents, each read anew from its source whenever it is asked for."""

    name: str
    sources: list[Path]  # the files whose content decides the documents, for hashing
    describe: str  # one sentence: what was found, and what was guessed
    readers: Mapping[str, Reader] = field(repr=False)

    def documents(self, split: str, on_empty: Notice = ignore) -> Iterator[str]:
        """The documents of a split, in order, stripped of surrounding white space; `on_empty` hears of dropped ones.

        Where splits share a source, its empty documents are told with the training split only.
        """
        return self.readers[split](on_empty)


def open_corpus(settings: DataSettings, seed: int) -> Corpus:
    """Finds the source, looks at its first documents, and decides how it is split."""
    sources, sentence, train = _open_source(settings.source, "train", settings.documents, settings, seed)
    name = settings.source if settings.source == STORYBOOK else Path(settings.source).name
    if settings.validation_source is not None or settings.source == STORYBOOK:
        written = settings.documents or STORYBOOK_DOCUMENTS
        # Validation stories cost time at every full evaluation, and 500 already give the bits per byte of the book to
        # 0.35% (95% interval, measured with its exact scores); never more of them than of training stories.
        source = settings.validation_source or STORYBOOK
        limit = min(written, max(500, written // 20)) if source == STORYBOOK else None
        more, told, validation = _open_source(source, "validation", limit, settings, seed)
        # A new list: the readers keep theirs.
        sources = [*sources, *(path for path in more if path not in sources)]
        return Corpus(name, sources, f"{sentence}; validation: {told}", {"train": train, "validation": validation})

    share = Fraction(repr(settings.validation_share))
    rare = min(share, 1 - share)
    # The first block must be seen whole to promise a document to each split; see `member_of_validation`.
    seen = sum(1 for _ in islice(train(ignore), max(2, math.ceil(1 / rare))))
    percent = f"{100 * settings.validation_share:.3g}%"
    if seen == 1:
        border = cut_document(next(train(ignore)), settings.validation_share, settings.source)[2]
        sentence += f"; its last {percent} are kept for validation, cut at {border}"
        readers = {split: functools.partial(_read_half, train, split, settings) for split in ("train", "validation")}
        return Corpus(name, sources, sentence, readers)
    member = member_of_validation(seed, settings.validation_share, seen)
    readers = {split: functools.partial(_read_share, train, split, member) for split in ("train", "validation")}
    return Corpus(name, sources, f"{sentence}; {percent} of the documents are kept for validation", readers)


def _read_half(read: Reader, split: str, settings: DataSettings, on_empty: Notice) -> Iterator[str]:
    for document in read(on_empty if split == "train" else ignore):
        first, second, _ = cut_document(document, settings.validation_share, settings.source)
        yield first if split == "train" else second


def _read_share(read: Reader, split: str, member: Callable[[int], bool], on_empty: Notice) -> Iterator[str]:
    wanted = split == "validation"
    for index, document in enumerate(read(ignore if wanted else on_empty)):
        if member(index) == wanted:
            yield document


def member_of_validation(seed: int, share: float, total: int) -> Callable[[int], bool]:
    """Whether document `index` is kept for validation: a pure function, so that splits stream and never meet.

    Documents fall into blocks of 1 / share; one of each block is drawn by a hash of (seed, block). The share is thus
    exact to one document everywhere in the file, and appending documents moves none. `total` matters only where there
    is less than one block: then the draw is among what there is. Shares over a half draw the training document instead.
    """
    exact = Fraction(repr(share))
    flipped = exact > Fraction(1, 2)
    rare = 1 - exact if flipped else exact

    @functools.lru_cache(maxsize=1)
    def chosen(block: int) -> int:
        first, after = math.ceil(block / rare), math.ceil((block + 1) / rare)
        if block == 0:
            after = min(after, total)
        digest = hashlib.blake2b(f"{seed} {block}".encode(), digest_size=8, person=b"validation").digest()
        return first + int.from_bytes(digest, "little") % (after - first)

    def member(index: int) -> bool:
        return (index == chosen(index * rare.numerator // rare.denominator)) != flipped

    return member


def cut_document(text: str, share: float, where: str = "") -> tuple[str, str, str]:
    """A lone document as (training part, validation part, name of the border): cut near `1 - share` of its characters.

    The nearest border of the best kind wins that lies within half a share, so the share stays between 1/2 and 3/2 of
    what was asked for.
    """
    if len(text) < 2:
        what = "the only document has one character: nothing is left for validation"
        raise UserError(what, where, "give it more text, or a data.validation_source")
    target = min(max(round(len(text) * (1 - share)), 1), len(text) - 1)
    reach = max(1, round(len(text) * min(share, 1 - share) / 2))
    low, high = max(1, target - reach), min(len(text), target + reach)
    for border, pattern in (("a paragraph", r"\n[^\S\n]*\n\s*"), ("a line", r"\n\s*"), ("white space", r"\s+")):
        ends = [found.end() for found in re.compile(pattern).finditer(text, low, high) if found.end() < len(text)]
        if ends:
            cut = min(ends, key=lambda end: abs(end - target))
            return text[:cut].strip(), text[cut:].strip(), border
    return text[:target].strip(), text[target:].strip(), "a character"


def _open_source(
    source: str, split: str, limit: int | None, settings: DataSettings, seed: int
) -> tuple[list[Path], str, Reader]:
    """Files, sentence and reader of one source; refuses at once what holds no document."""
    if source == STORYBOOK:
        from lilliput.data import chance, storybook, storybook_words

        count = limit or STORYBOOK_DOCUMENTS
        # The program is the source: a new edition of the book makes other documents.
        files = [Path(str(module.__file__)) for module in (chance, storybook, storybook_words)]
        told = f"{count:,} stories of the built-in storybook"
        return files, told, lambda on_empty: islice(storybook.stories(split, seed), count)
    files, ignored = _find_files(source)
    read = functools.partial(_read_files, files, settings, limit)
    if next(read(ignore), None) is None:
        empty = all(path.stat().st_size == 0 for path in files)
        what = "the source is empty" if empty else "the source holds no text, only white space or separators"
        raise UserError(what, source, "give the path of a file with text")
    sentence = f"{len(files):,} file{'s' if len(files) > 1 else ''}, {_tell_separator(files, settings)}"
    if ignored:
        sentence += f"; {ignored:,} other file{'s' if ignored > 1 else ''} ignored"
    if limit is not None:
        sentence += f"; the first {limit:,} documents" if limit > 1 else "; the first document"
    return files, sentence, read


def _tell_separator(files: list[Path], settings: DataSettings) -> str:
    if all(path.suffix.lower() == ".jsonl" for path in files):
        return f"a document a line (field {settings.text_field!r})"
    told = {"line": "documents are lines", "blank-line": "documents end at a blank line", "file": "one document a file"}
    if settings.separator in told:
        return told[settings.separator]
    if len(files) > 1:
        return f"documents end at {END_OF_TEXT} or with their file"
    mark = END_OF_TEXT.encode()
    # Reads to the first mark only: early where there is one.
    if len(list(islice(split_at(read_chunks(files[0]), mark, keep_blank_end=True), 2))) > 1:
        return f"documents end at {END_OF_TEXT}"
    return f"one document (no {END_OF_TEXT} in it; data.separator line or blank-line would split it)"


def _find_files(source: str) -> tuple[list[Path], int]:
    """The files of a path in a stable order, and how many others a folder holds."""
    path = Path(source)
    endings = " and ".join(FORMATS)
    if path.is_dir():
        found = sorted(_walk(path), key=lambda file: file.relative_to(path).parts)
        files = [file for file in found if file.suffix.lower() in FORMATS]
        if not files:
            others = sorted({file.suffix for file in found if file.suffix})[:5]
            what = f"the folder holds no {endings} file" + (f", only {', '.join(others)}" if others else "")
            raise UserError(what, source, "give a folder of text files")
        return files, len(found) - len(files)
    if not path.exists():
        if source.startswith("$LILLIPUT_DATA/"):  # unset, or `config` would have put the folder in its place
            rest = source.removeprefix("$LILLIPUT_DATA/")
            raise UserError(
                "LILLIPUT_DATA is not set", source, f"LILLIPUT_DATA=FOLDER lilliput ..., where FOLDER has {rest}"
            )
        if meant := nearest(path.name, [STORYBOOK]):
            raise UserError(f"no such source: {path.name}", source, f"{meant}, the built-in corpus?")
        siblings = os.listdir(path.parent) if path.parent.is_dir() and os.access(path.parent, os.R_OK) else []
        meant = nearest(path.name, siblings)
        hint = f"give the path of a {endings} file, a folder of them, or {STORYBOOK}"
        raise UserError("no such file or folder", source, f"{path.parent / meant}?" if meant else hint)
    if not path.is_file():
        raise UserError("the source is neither a file nor a folder", source, "copy its text into a .txt file")
    if path.suffix.lower() not in FORMATS:
        ending = f"{path.suffix} files are" if path.suffix else "a file without an ending is"
        raise UserError(f"{ending} not understood, {endings} are", source, "rename it to .txt if it is plain text")
    return [path], 0


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        what = f"cannot read the folder: {error.strerror}"
        raise UserError(what, str(error.filename), "check its permissions") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        if {"config.json", "checkpoints"} <= {*names, *folders}:
            folders.clear()  # a run that was made here: its log is not text to learn from
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith(".") and Path(parent, name).is_file())


def _read_files(files: list[Path], settings: DataSettings, limit: int | None, on_empty: Notice) -> Iterator[str]:
    def documents() -> Iterator[str]:
        for path in files:
            for text in FORMATS[path.suffix.lower()](path, settings):
                # Line ends inside a document stay as they are: decoding then gives the user's own text back, and bits
                # per byte keeps counting the user's own bytes. Only what surrounds a document goes, CR included.
                if stripped := text.strip():
                    yield stripped
                else:
                    on_empty()

    return islice(documents(), limit)


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file in parts, refused where it is no text."""
    position = 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                if position == 0 and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    hint = f"iconv -f utf-16 -t utf-8 {path.name} > utf8-{path.name}"
                    raise UserError("the file is UTF-16, not UTF-8", f"{path}, byte 0", hint)
                if (zero := chunk.find(b"\0")) >= 0:
                    what = "the file is binary, not text: it holds a NUL byte"
                    raise UserError(what, f"{path}, byte {position + zero}", "give a UTF-8 text file")
                yield chunk
                position += len(chunk)
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", str(path), "check its permissions") from error


def split_at(chunks: Iterable[bytes], mark: bytes, keep_blank_end: bool = False) -> Iterator[Piece]:
    """What stands between marks. White space after the last mark is the end of the file, not a document."""
    held, start, searched = bytearray(), 0, 0
    for chunk in chunks:
        held += chunk
        cursor = 0
        while (found := held.find(mark, max(cursor, searched))) >= 0:
            yield start + cursor, bytes(held[cursor:found])
            cursor = found + len(mark)
        del held[:cursor]
        start += cursor
        # A mark may straddle two chunks; what was searched is never searched again, however long the document.
        searched = max(0, len(held) - len(mark) + 1)
    if keep_blank_end or held.strip():
        yield start, bytes(held)


def _split_paragraphs(chunks: Iterable[bytes]) -> Iterator[Piece]:
    start, lines = 0, list[bytes]()
    for offset, line in split_at(chunks, b"\n"):
        if line.strip():
            start = start if lines else offset
            lines.append(line)
        elif lines:
            yield start, b"\n".join(lines)
            lines.clear()
    if lines:
        yield start, b"\n".join(lines)


def _decode(path: Path, start: int, raw: bytes) -> str:
    # `utf-8-sig` would move the offsets of mistakes.
    skip = len(BYTE_ORDER_MARK) if start == 0 and raw.startswith(BYTE_ORDER_MARK) else 0
    try:
        return raw[skip:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = start + skip + error.start
        with open(path, "rb") as file:
            line = sum(1 for _ in split_at([file.read(offset)], b"\n", keep_blank_end=True))
        what = f"the file is not UTF-8: byte 0x{raw[skip + error.start]:02x} has no place there"
        hint = f"if it is Latin-1: iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}"
        raise UserError(what, f"{path}, line {line}, byte {offset}", hint) from error


def read_text(path: Path, settings: DataSettings) -> Iterator[str]:
    chunks = read_chunks(path)
    pieces: Iterator[Piece]
    match settings.separator:
        case "file":
            pieces = iter([(0, b"".join(chunks))])
        case "line":
            pieces = split_at(chunks, b"\n")
        case "blank-line":
            pieces = _split_paragraphs(chunks)
        case _:  # `auto` is `endoftext`: where the mark does not occur, the file is one piece
            pieces = split_at(chunks, END_OF_TEXT.encode())
    return (_decode(path, start, raw) for start, raw in pieces)


def read_jsonl(path: Path, settings: DataSettings) -> Iterator[str]:
    name = settings.text_field
    for number, (start, raw) in enumerate(split_at(read_chunks(path), b"\n"), 1):
        if not raw.strip():
            continue
        line, where = _decode(path, start, raw), f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, json.JSONDecodeError) else "too deep or too large"
            hint = "write one JSON object a line, or rename the file to .txt"
            raise UserError(f"the line is not JSON: {reason}", where, hint) from error
        if not isinstance(value, dict):
            raise UserError(f"the line is no JSON object but {type(value).__name__}", where, f'write {{"{name}": "…"}}')
        if name not in value:
            fields = [repr(key)[1:-1][:40] for key in list(value)[:8]]  # a name may hold line ends
            meant = nearest(name, fields) or (fields[0] if fields else None)
            found = ", ".join(fields) or "an empty object"
            raise UserError(
                f"the line has no field {name!r}, only {found}", where, f"--data.text-field {meant}" if meant else None
            )
        text = value[name]
        if not isinstance(text, str):
            what = f"field {name!r} is no string but {type(text).__name__}"
            raise UserError(what, where, "name a field of text with --data.text-field")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            what = f"field {name!r} holds half of a surrogate pair, \\u{ord(text[error.start]):04x}, which no text has"
            raise UserError(what, where, "repair the line where it was written") from error
        yield text


FORMATS: dict[str, Callable[[Path, DataSettings], Iterator[str]]] = {".txt": read_text, ".jsonl": read_jsonl}
