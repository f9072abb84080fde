"""The folder in which prepared data grows, so that a killed preparation goes on where its last shard ended.

Owns: files that are only appended to, the journal that says how far they are good, and going on from it. Does
not own: the layout of the files (`token_files`), or which documents come next (`corpus_pass`).

`<key>.partial` holds
    files/          what becomes the folder of prepared data, by one rename at the very end
    <split>.labels  int32: each document's label by the number of its first use; classes are known at the end only
    dropped         int64: positions of documents that are left out
    journal.json    sealed: what was made from what, and for every file a length and the CRC-32 of what is before it
A journal is written when everything that it tells of is on the disk; what is in the files beyond it is cut.
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

from lilliput.data.prepare.corpus_pass import Mark
from lilliput.data.prepare.corpus_statistics import CorpusStatistics
from lilliput.data.prepare.encoding import Encoded
from lilliput.data.prepare.token_files import BYTES, LABELS, OFFSETS, digest, same_sources, seal, token_type, unseal
from lilliput.data.tokenizers import Tokenizer
from lilliput.storage.atomic_files import sync_folder, write_flushed

POSITIONS = "<i8"
PIECE = 1 << 20


class Appended:
    """A file that only grows. Its CRC-32 grows with it, which costs nothing beside writing."""

    def __init__(self, path: Path, length: int = 0, crc: int = 0) -> None:
        self.length, self.crc = length, crc
        self._file: BinaryIO = open(path, "r+b" if length else "wb")  # noqa: SIM115 (open for as long as it grows)
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
    """The growing files of one split, and its figures."""

    PARTS = ("tokens", "offsets", "bytes", "hashes")

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer, labelled: bool, state: Any | None) -> None:
        """`state`: what a journal kept of an earlier `state()`."""
        self.figures = CorpusStatistics.from_dict(state["figures"]) if state else CorpusStatistics()
        paths = {part: folder / "files" / f"{split}.{part}" for part in self.PARTS}
        if labelled:
            paths["labels"] = folder / f"{split}.labels"
        marks = state["files"] if state else dict.fromkeys(paths, (0, 0))
        self._files = {part: Appended(path, *marks[part]) for part, path in paths.items()}
        # Where the next document begins: all tokens so far, the first end and those of documents included.
        self._next = 1 + self.figures.tokens + self.figures.documents
        if state is None:
            self._files["tokens"].append(np.array([tokenizer.end], token_type(tokenizer.vocab_size)).tobytes())
            self._files["offsets"].append(np.array([self._next], OFFSETS).tobytes())

    def append(self, batch: Encoded, labels: list[int]) -> None:
        lengths, sizes = np.frombuffer(batch.lengths, OFFSETS), np.frombuffer(batch.sizes, BYTES)
        offsets = self._next + np.cumsum(lengths + 1)
        self._next = int(offsets[-1])
        self._files["tokens"].append(batch.tokens)
        self._files["offsets"].append(offsets.astype(OFFSETS).tobytes())
        self._files["bytes"].append(batch.sizes)
        self._files["hashes"].append(batch.hashes)
        if "labels" in self._files:
            self._files["labels"].append(np.array(labels, LABELS).tobytes())
        self.figures.add(lengths, sizes, batch.words, batch.unknown, batch.unknown_words)

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
    """`<key>.partial`, begun anew or found as an earlier process left it. For the one process that holds the key's lock."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.folder, self.files = folder, folder / "files"
        self._journal: dict[str, Any] = {"recipe": recipe, "sources": None, "dropped": False, "tokenizer": None}
        # `saved`: characters whose work, fitting or encoding, need not be done again.
        self._journal |= {"documents": 0, "characters": 0, "splits": {}, "saved": 0}
        self.splits: dict[str, SplitFiles] = {}

    @staticmethod
    def resume(folder: Path, recipe: Mapping[str, Any], sources: list[Path]) -> WorkFolder | None:
        """As the journal tells, if it is of the same work on unchanged sources, and the files agree with it."""
        work = WorkFolder(folder, recipe)
        try:
            work._journal = journal = unseal((folder / "journal.json").read_bytes())
            good = journal["recipe"] == recipe and same_sources(journal["sources"], sources, by_content=False)
            return work if good and work._is_whole() else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @staticmethod
    def begin(folder: Path, recipe: Mapping[str, Any], sources: list[dict[str, Any]]) -> WorkFolder:
        """`sources`: path, size, stamp and SHA-256 of each file that the documents come from."""
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
        """Positions of the documents to leave out; None: not known yet."""
        return np.fromfile(self.folder / "dropped", POSITIONS) if self._journal["dropped"] else None

    def keep_dropped(self, positions: NDArray[np.int64]) -> None:
        write_flushed(self.folder / "dropped", positions.astype(POSITIONS).tobytes())
        self._journal["dropped"] = True
        self._write_journal()

    @property
    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.load(self.files / "tokenizer.json") if self._journal["tokenizer"] else None

    def keep_tokenizer(self, tokenizer: Tokenizer, read: int) -> None:
        """`read`: characters that it was fitted on, none where it was ready."""
        write_flushed(self.files / "tokenizer.json", tokenizer.to_json().encode())
        self._journal["tokenizer"] = digest(self.files / "tokenizer.json")
        self._journal["saved"] += read
        self._write_journal()

    def open_splits(self, names: tuple[str, ...], tokenizer: Tokenizer, labelled: bool) -> None:
        states = self._journal["splits"]
        for name in names:
            self.splits[name] = SplitFiles(self.folder, name, tokenizer, labelled, states.get(name))

    def keep_splits(self, mark: Mark) -> None:
        """Makes everything before the mark survive."""
        for split in self.splits.values():
            split.sync()
        self._journal["splits"] = {name: split.state() for name, split in self.splits.items()}
        self._journal["saved"] += mark.characters - self._journal["characters"]
        self._journal |= {"documents": mark.documents, "characters": mark.characters}
        self._write_journal()

    def close_splits(self) -> None:
        """Flushes and closes the files: they are complete."""
        for split in self.splits.values():
            split.sync()
            split.close()

    def abandon(self, enough: int) -> bool:
        """After a failure: whether the folder stays for the next try, as it saves the work of `enough` characters."""
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
    """CRC-32 of the first `length` bytes; None where there are fewer."""
    crc = 0
    with open(path, "rb") as file:
        while length:
            piece = file.read(min(PIECE, length))
            if not piece:
                return None
            crc = zlib.crc32(piece, crc)
            length -= len(piece)
    return crc
