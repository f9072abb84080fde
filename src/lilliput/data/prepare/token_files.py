"""The format of prepared data on disk: reading it and checking its validity.

Owns: the layout, the manifest and its checksum, `TokenFile` and `Prepared`. Does not own: writing a folder (`prepare`,
`work_folder`), statistics (`corpus_statistics`), or the order of batches (`batches`).

A folder contains for each split raw little-endian arrays, which are memory-mapped:
    <split>.tokens    END d1 END d2 END ... dn END as uint16, or uint32 above 65,536 ids
    <split>.offsets   int64, n + 1: document i is tokens[offsets[i] : offsets[i + 1]], whose last is its END
    <split>.bytes     int64, n: UTF-8 bytes of each document
    <split>.hashes    uint64, n: BLAKE2b of each document's text, to find duplicates
    <split>.labels    int32, n: its class, if documents have labels
and tokenizer.json and manifest.json, which contains the SHA-256 of every file and ends with its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.corpus_statistics import describe_corpus
from lilliput.data.tokenizers import Tokenizer
from lilliput.storage.atomic_files import parse_json

FORMAT = 2
OFFSETS, BYTES, HASHES, LABELS = "<i8", "<i8", "<u8", "<i4"


def token_type(vocab_size: int) -> str:
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


@dataclass(frozen=True)
class TokenFile:
    """One split, memory-mapped."""

    tokens: NDArray[Any]  # (tokens,), a read-only memory map
    offsets: NDArray[np.int64]  # (documents + 1,)
    document_bytes: NDArray[np.int64]  # (documents,)
    labels: NDArray[np.int32] | None = None  # (documents,), classes
    ends: bool = True  # False: the token between documents only separates them and is never predicted

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes of the original documents without separators: the divisor of bits per byte."""
        return int(self.document_bytes.sum())

    @property
    def predictions(self) -> int:
        """The number of predictions: tokens of documents, plus one per document if there is an end token."""
        return len(self.tokens) - 1 - (0 if self.ends else self.documents)

    def select(self, documents: NDArray[np.int64]) -> TokenFile:
        """Return a file of these documents, in this order, in memory."""
        pieces = [self.tokens[self.offsets[one] : self.offsets[one + 1]] for one in documents]
        return TokenFile(
            np.concatenate([self.tokens[:1], *pieces]),
            np.cumsum([1, *map(len, pieces)]),
            self.document_bytes[documents],
            None if self.labels is None else self.labels[documents],
            self.ends,
        )


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk."""

    folder: Path
    manifest: dict[str, Any]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / "tokenizer.json")

    @property
    def splits(self) -> tuple[str, ...]:
        """train, validation, and the names of the test sets."""
        return tuple(self.manifest["order"])

    @property
    def labels(self) -> list[str] | None:
        """The name of each class; None if documents have no labels."""
        names: list[str] | None = self.manifest["labels"]
        return names

    def split(self, name: str) -> TokenFile:
        return TokenFile(
            tokens=self._map(name, "tokens", self.manifest["dtype"]),
            offsets=self._map(name, "offsets", OFFSETS),
            document_bytes=self._map(name, "bytes", BYTES),
            labels=None if self.labels is None else self._map(name, "labels", LABELS),
            ends=self.manifest["tokenizer"]["ends"],
        )

    def hashes(self, name: str) -> NDArray[np.uint64]:
        """Return the hash of each document's text. It does not depend on the tokenizer or the split."""
        return self._map(name, "hashes", HASHES)

    def _map(self, name: str, part: str, dtype: str) -> NDArray[Any]:
        assert name in self.splits, name
        return np.memmap(self.folder / f"{name}.{part}", dtype=dtype, mode="r")

    @property
    def fingerprint(self) -> str:
        """A hash of the token files: a resumed run must use the same data."""
        return hashlib.sha256(canonical(self.manifest["files"])).hexdigest()

    def report(self, context: int | None = None) -> dict[str, Any]:
        """Return the object of `lilliput prepare --json`; with a context also what it truncates."""
        lengths = {name: np.diff(self.split(name).offsets) - 1 for name in self.splits}
        has_unknown = self.tokenizer.unknown is not None
        return {**describe_corpus(self.manifest, lengths, context, has_unknown), "folder": str(self.folder)}


# Validity of a folder -------------------------------------------------------------------------------------------------


def read_prepared(folder: Path, recipe: Mapping[str, Any], sources: list[Path]) -> Prepared | None:
    """Return the prepared data if the folder is complete and its recipe and sources are unchanged, else None.

    The files are read for their SHA-256 (about 1 s per GB), once per process unless they change; sources are read only
    if their size or times differ.
    """
    try:
        manifest = unseal((folder / "manifest.json").read_bytes())
        if manifest["recipe"] != recipe or not same_sources(manifest["sources"], sources, by_content=True):
            return None
        if not _whole(folder, manifest["files"]):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Prepared(folder, manifest)


# Folders that this process has verified, with the stamps of their files.
_verified: dict[Path, dict[str, list[int]]] = {}


def _whole(folder: Path, files: Mapping[str, Any]) -> bool:
    stamps = {name: stamp(folder / name) for name in [*files, "manifest.json"]}
    if _verified.get(folder.absolute()) == stamps:
        return True
    for name, entry in files.items():
        if stamps[name][0] != entry["size"] or digest(folder / name) != entry["sha256"]:
            return False
    _verified[folder.absolute()] = stamps
    return True


def same_sources(entries: list[Any], sources: list[Path], by_content: bool) -> bool:
    """Return whether the sources match the entries: by size and times, else (with `by_content`) by SHA-256."""
    if [entry["path"] for entry in entries] != [str(path.absolute()) for path in sources]:
        return False
    for path, entry in zip(sources, entries, strict=True):
        if stamp(path) == entry["stamp"]:
            continue
        if not by_content or path.stat().st_size != entry["size"] or digest(path) != entry["sha256"]:
            return False
    return True


def stamp(path: Path) -> list[int]:
    # st_ctime also detects a replacement that kept size and modification time.
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(value: Mapping[str, Any]) -> bytes:
    # ASCII, because a path may contain invalid Unicode.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def seal(value: Mapping[str, Any]) -> bytes:
    """Return canonical JSON that ends with the SHA-256 of the rest."""
    body = canonical(value)
    return body[:-1] + f',"sha256":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


def unseal(raw: bytes) -> dict[str, Any]:
    """Return the sealed value; raise ValueError or KeyError if any bit changed."""
    value: dict[str, Any] = parse_json(raw)
    del value["sha256"]
    if seal(value) != raw:
        raise ValueError("the checksum does not match")
    return value
