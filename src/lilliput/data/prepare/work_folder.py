"""The folder of an unfinished preparation: a killed preparation resumes after its last complete shard.

Owns: the append-only files, the journal of their valid lengths, and resuming from it. Does not own: the layout of the
files (`token_files`) or the documents (`corpus_pass`).

`<key>.partial` contains
    files/          the future folder of prepared data, renamed at the end
    <split>.labels  int32: the number of each document's label by first use; classes are known only at the end
    dropped         int64: positions of dropped documents
    journal.json    sealed: recipe, sources, and for every file its valid length and the CRC-32 of this part
The journal is written after the data that it describes is on disk; longer files are truncated on resume.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.corpus_pass import Mark, TextBatch
from lilliput.data.prepare.corpus_statistics import CorpusStatistics
from lilliput.data.prepare.encoding import Encoded
from lilliput.data.prepare.token_files import BYTES, LABELS, OFFSETS, digest, same_sources, seal, token_type, unseal
from lilliput.data.tokenizers import Tokenizer
from lilliput.storage.atomic_files import sync_folder, write_flushed

POSITIONS = "<i8"
PIECE = 1 << 20


class Appended:
    """An append-only file with a running CRC-32, whose cost is negligible compared with writing."""

    def __init__(self, path: Path, length: int = 0, crc: int = 0) -> None:
        self.length, self.crc = length, crc
        self._file: BinaryIO = open(path, "r+b" if length else "wb")  # noqa: SIM115 (stays open)
        self._file.truncate(length)
        self._file.seek(length)

    def append(self, data: bytes) -> None:
        self._file.write(data)
        self.length += len(data)
        self.crc = zlib.crc32(data, self.crc)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class SplitFiles:
    """The append-only files of one split, and its statistics."""

    PARTS = ("tokens", "offsets", "bytes", "hashes")

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer, labelled: bool, state: Any | None) -> None:
        """`state`: the value of `state()` in the journal; None for new files."""
        self.figures = CorpusStatistics.from_dict(state["figures"]) if state else CorpusStatistics()
        paths = {part: folder / "files" / f"{split}.{part}" for part in self.PARTS}
        if labelled:
            paths["labels"] = folder / f"{split}.labels"
        marks = state["files"] if state else dict.fromkeys(paths, (0, 0))
        self._files = {part: Appended(path, *marks[part]) for part, path in paths.items()}
        # Start of the next document: all tokens so far, including the first end token and those of documents.
        self._next = 1 + self.figures.tokens + self.figures.documents
        if state is None:
            self._files["tokens"].append(np.array([tokenizer.end], token_type(tokenizer.vocab_size)).tobytes())
            self._files["offsets"].append(np.array([self._next], OFFSETS).tobytes())

    def append(self, batch: Encoded, task: TextBatch) -> None:
        lengths = np.frombuffer(batch.lengths, OFFSETS)
        sizes = np.frombuffer(batch.sizes, BYTES) + np.array(task.removed, BYTES)  # of the original documents
        offsets = self._next + np.cumsum(lengths + 1)
        self._next = int(offsets[-1])
        self._files["tokens"].append(batch.tokens)
        self._files["offsets"].append(offsets.astype(OFFSETS).tobytes())
        self._files["bytes"].append(sizes.tobytes())
        self._files["hashes"].append(batch.hashes)
        if "labels" in self._files:
            self._files["labels"].append(np.array(task.labels, LABELS).tobytes())
        self.figures.add(lengths, sizes, batch.words, batch.unknown, batch.unknown_words)
        self.figures.line_ends += task.replaced

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def state(self) -> dict[str, Any]:
        files = {part: [file.length, file.crc] for part, file in self._files.items()}
        return {"figures": self.figures.to_dict(), "files": files}


class WorkFolder:
    """`<key>.partial`, new or left by an earlier process. The process must hold the lock of the key."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.folder, self.files = folder, folder / "files"
        self._journal: dict[str, Any] = {"recipe": recipe, "sources": None, "dropped": False, "tokenizer": None}
        # `saved`: characters whose fitting or encoding is complete.
        self._journal |= {"documents": 0, "characters": 0, "splits": {}, "saved": 0}
        self.splits: dict[str, SplitFiles] = {}

    @staticmethod
    def resume(folder: Path, recipe: Mapping[str, Any], sources: list[Path]) -> WorkFolder | None:
        """Return the state of the journal if recipe and sources are the same and the files are valid, else None."""
        work = WorkFolder(folder, recipe)
        try:
            work._journal = journal = unseal((folder / "journal.json").read_bytes())
            good = journal["recipe"] == recipe and same_sources(journal["sources"], sources, by_content=False)
            return work if good and work._is_whole() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @staticmethod
    def begin(folder: Path, recipe: Mapping[str, Any], sources: list[dict[str, Any]]) -> WorkFolder:
        """Create an empty folder. `sources`: path, size, stamp and SHA-256 of each source file."""
        shutil.rmtree(folder, ignore_errors=True)
        work = WorkFolder(folder, recipe)
        work._journal["sources"] = sources
        try:
            work.files.mkdir(parents=True)
            work._write_journal()
        except BaseException:
            work.remove()
            raise
        return work

    @property
    def sources(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._journal["sources"]
        return found

    @property
    def mark(self) -> Mark:
        return Mark(self._journal["documents"], self._journal["characters"])

    @property
    def dropped(self) -> NDArray[np.int64] | None:
        """Positions of the documents to drop; None: not computed yet."""
        return np.fromfile(self.folder / "dropped", POSITIONS) if self._journal["dropped"] else None

    def keep_dropped(self, positions: NDArray[np.int64]) -> None:
        write_flushed(self.folder / "dropped", positions.astype(POSITIONS).tobytes())
        self._journal["dropped"] = True
        self._write_journal()

    @property
    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.load(self.files / "tokenizer.json") if self._journal["tokenizer"] else None

    def keep_tokenizer(self, tokenizer: Tokenizer, read: int) -> None:
        """Save the tokenizer. `read`: characters that it was fitted to, 0 if it was given."""
        write_flushed(self.files / "tokenizer.json", tokenizer.to_json().encode())
        self._journal["tokenizer"] = digest(self.files / "tokenizer.json")
        self._journal["saved"] += read
        self._write_journal()

    def open_splits(self, names: tuple[str, ...], tokenizer: Tokenizer, labelled: bool) -> None:
        states = self._journal["splits"]
        for name in names:
            self.splits[name] = SplitFiles(self.folder, name, tokenizer, labelled, states.get(name))

    def keep_splits(self, mark: Mark) -> None:
        """Flush everything before the mark and record it in the journal."""
        for split in self.splits.values():
            split.sync()
        self._journal["splits"] = {name: split.state() for name, split in self.splits.items()}
        self._journal["saved"] += mark.characters - self._journal["characters"]
        self._journal |= {"documents": mark.documents, "characters": mark.characters}
        self._write_journal()

    def close_splits(self) -> None:
        """Flush and close the complete files."""
        for split in self.splits.values():
            split.sync()
            split.close()

    def abandon(self, enough: int) -> bool:
        """After a failure, remove the folder unless it saves the work of `enough` characters; return whether it stays."""
        for split in self.splits.values():
            split.close()
        stays: bool = self._journal["saved"] >= enough
        if not stays:
            self.remove()
        return stays

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_whole(self) -> bool:
        fitted = self._journal["tokenizer"]
        if fitted is not None and fitted != digest(self.files / "tokenizer.json"):
            return False
        for name, state in self._journal["splits"].items():
            for part, (length, crc) in state["files"].items():
                path = (self.folder if part == "labels" else self.files) / f"{name}.{part}"
                if _crc_of_start(path, length) != crc:
                    return False
        return True

    def _write_journal(self) -> None:
        new = self.folder / "journal.new"
        write_flushed(new, seal(self._journal))
        os.replace(new, self.folder / "journal.json")
        for folder in (self.files, self.folder, self.folder.parent):
            sync_folder(folder)


def _crc_of_start(path: Path, length: int) -> int | None:
    """Return the CRC-32 of the first `length` bytes; None if the file is shorter."""
    crc = 0
    with open(path, "rb") as file:
        while length:
            piece = file.read(min(PIECE, length))
            if not piece:
                return None
            crc = zlib.crc32(piece, crc)
            length -= len(piece)
    return crc
