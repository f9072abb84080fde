"""Documents as token files on disk: made once, memory-mapped ever after, rebuilt when anything they depend on changed.

Owns: the folder of prepared data (its key, files, manifest), when it is still good, and the figures about it. Does not
own: documents (`corpora`), ids (`tokenizers`), or the order in which a model sees them (`batches`).

A folder is written beside its place, flushed and renamed whole. It holds for each split
    <split>.bin          END d1 END d2 END ... dn END as little-endian uint16, or uint32 above 65,536 ids
    <split>.offsets.npy  int64, n + 1: document i is tokens[offsets[i] : offsets[i + 1]], whose last is its END
    <split>.bytes.npy    int64, n: UTF-8 bytes of each document
and tokenizer.json and manifest.json, which has the SHA-256 of every file and ends with its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import tokenizers as library
from numpy.typing import NDArray

from lilliput.data.corpora import STORYBOOK, STORYBOOK_DOCUMENTS, Corpus, open_corpus
from lilliput.data.tokenizers import Tokenizer, make_tokenizer
from lilliput.errors import UserError
from lilliput.files import beside, clean_leftovers, free_bytes, put_folder, sync_folder
from lilliput.settings import Config

FORMAT = 1
SPLITS = ("train", "validation")
# Characters that are encoded at once: enough for every core, and a bound on memory (about 140 bytes for each).
BATCH = 1 << 21

Report = Callable[[str, int, int | None], None]  # what is being done, how much is done, of how much (None: unknown)


def silent(phase: str, done: int, total: int | None) -> None:
    """For callers who show no progress."""


@dataclass(frozen=True)
class TokenFile:
    """One split, mapped from disk."""

    tokens: NDArray[Any]  # (tokens,), a read-only memory map
    offsets: NDArray[np.int64]  # (documents + 1,)
    document_bytes: NDArray[np.int64]  # (documents,)

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes of the original documents, separators excluded: what bits per byte are divided by."""
        return int(self.document_bytes.sum())

    @property
    def predictions(self) -> int:
        """Tokens that a model can be asked for: all but the leading end-of-text, each document's own included."""
        return len(self.tokens) - 1


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk."""

    folder: Path
    manifest: dict[str, Any]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / "tokenizer.json")

    def split(self, name: str) -> TokenFile:
        assert name in SPLITS, name
        tokens = np.memmap(self.folder / f"{name}.bin", dtype=self.manifest["dtype"], mode="r")
        offsets, sizes = (np.load(self.folder / f"{name}.{part}.npy") for part in ("offsets", "bytes"))
        return TokenFile(tokens, offsets, sizes)

    @property
    def fingerprint(self) -> str:
        """The same for the same token files: a resumed run must see the data that it began with."""
        return hashlib.sha256(_canonical(self.manifest["files"])).hexdigest()

    def report(self) -> dict[str, Any]:
        """The object of `lilliput prepare --json`."""
        splits, tokenizer = self.manifest["splits"], self.manifest["tokenizer"]
        told = {"source": self.manifest["source"], "folder": str(self.folder), "tokenizer": tokenizer["kind"]}
        figures = ("documents", "bytes", "tokens", "bytes_per_token", "unknown_rate", "empty")
        by_split = {figure: {split: splits[split][figure] for split in SPLITS} for figure in figures}
        told |= {"vocab_size": tokenizer["vocab_size"], "lossy": tokenizer["lossy"]}
        return {**told, **by_split, "duplicates": self.manifest["duplicates"]}


def prepare(config: Config, report: Report = silent, tokenizer: Tokenizer | None = None) -> Prepared:
    """The prepared corpus of these settings: from the cache if it is still good, else made now.

    A given tokenizer is used as it is (fine-tuning); else it is made as the settings say, from the training split only.
    `report` hears (phase, bytes done, bytes in all or None).
    """
    corpus = open_corpus(config.data, config.seed)
    if tokenizer is None and config.tokenizer.path is not None:
        tokenizer = Tokenizer.load(Path(config.tokenizer.path))
    recipe = _recipe(config, tokenizer)
    cache = Path(config.data.cache)
    folder = cache / hashlib.sha256(_canonical(recipe)).hexdigest()[:16]
    # Without the lock first: a cache that may only be read is still a cache.
    if found := _reuse(folder, recipe, corpus.sources, report):
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{folder.name}.lock", report):
            found = _reuse(folder, recipe, corpus.sources, report)
            return found or _build(config, corpus, recipe, folder, tokenizer, report)
    except OSError as error:
        # Mistakes of sources are UserErrors by now: what is left concerns the cache.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed, free = 2 * _text_size(config, corpus), free_bytes(cache)  # a token is a byte or more
            what = f"the disk is full: prepared data needs up to {needed:,} bytes, {free:,} are free"
            raise UserError(what, str(cache), "free some space, or choose another folder with --data.cache") from error
        what = f"cannot write prepared data: {error.strerror or error}"
        raise UserError(what, str(error.filename or cache), "choose another folder with --data.cache") from error


def _recipe(config: Config, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Everything but the content of files that decides which tokens come out: the key of the cache."""
    data = dataclasses.asdict(config.data)
    del data["cache"]
    for name in ("source", "validation_source"):
        if data[name] not in (None, STORYBOOK):
            data[name] = str(Path(data[name]).absolute())
    chance = STORYBOOK in (data["source"], data["validation_source"]) or data["validation_source"] is None
    if data["validation_source"] is not None or data["source"] == STORYBOOK:
        data["validation_share"] = None
    seed = config.seed if chance else None
    settings: dict[str, Any] = {"kind": config.tokenizer.kind}
    if config.tokenizer.kind != "byte":
        settings["vocab_size"] = config.tokenizer.vocab_size
    if tokenizer is not None:
        settings = {"sha256": tokenizer.sha256}
    return {"data": data, "tokenizer": settings, "seed": seed, "tokenizers": library.__version__, "format": FORMAT}


def _text_size(config: Config, corpus: Corpus) -> int:
    """About how many bytes of text there are, at most."""
    if config.data.source == STORYBOOK:
        return 1_100 * (config.data.documents or STORYBOOK_DOCUMENTS)  # the mean of a story
    return sum(path.stat().st_size for path in corpus.sources)


def _build(
    config: Config, corpus: Corpus, recipe: dict[str, Any], folder: Path, tokenizer: Tokenizer | None, report: Report
) -> Prepared:
    """Makes the folder anew. The caller holds the lock of this key, so leftovers of a killed process can go."""
    clean_leftovers(folder.parent, folder.name)
    fingerprints = [_fingerprint(path, report) for path in corpus.sources]
    share, whole = recipe["data"]["validation_share"] or 0.0, _text_size(config, corpus)
    totals = {"train": round(whole * (1 - share)), "validation": round(whole * share) or None}
    work = beside(folder)
    work.mkdir()
    try:
        if tokenizer is None:
            documents = _told(corpus.documents("train"), "fitting the tokenizer", totals["train"], report)
            tokenizer = make_tokenizer(config.tokenizer, documents)
        with _durable(work / "tokenizer.json") as file:
            file.write(tokenizer.to_json().encode())
        splits = {split: _write_split(work, split, corpus, tokenizer, totals[split], report) for split in SPLITS}
        hashes = {split: figures.pop("hashes") for split, figures in splits.items()}
        within = {split: len(found) - len(np.unique(found)) for split, found in hashes.items()}
        across = int(np.isin(hashes["validation"], hashes["train"]).sum())  # validation documents that were trained on
        for path, entry in zip(corpus.sources, fingerprints, strict=True):
            if _stamp(path) != entry["stamp"]:
                raise UserError("the file changed while it was read", str(path), "run it again when it is complete")
        files = {path.name: {"size": path.stat().st_size, "sha256": _digest(path)} for path in sorted(work.iterdir())}
        about = {name: getattr(tokenizer, name) for name in ("kind", "sha256", "vocab_size", "end", "lossy")}
        manifest = {"format": FORMAT, "recipe": recipe, "source": corpus.describe, "sources": fingerprints}
        manifest |= {"tokenizer": about, "dtype": _dtype(tokenizer), "files": files}
        manifest |= {"splits": splits, "duplicates": {"within": within, "across": across}}
        with _durable(work / "manifest.json") as file:
            file.write(_sealed(manifest))
        sync_folder(work)
        put_folder(work, folder)  # maps of the old files stay valid where they are open
        clean_leftovers(folder.parent, folder.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Prepared(folder, manifest)


def _write_split(
    work: Path, split: str, corpus: Corpus, tokenizer: Tokenizer, size: int | None, report: Report
) -> dict[str, Any]:
    """Encodes one split in batches and returns what was counted; only offsets, sizes and hashes stay in memory."""
    dtype, end, unknown = np.dtype(_dtype(tokenizer)), tokenizer.end, 0
    offsets, sizes, hashes = array("q", [1]), array("q"), array("Q")
    empty: list[None] = []
    documents = corpus.documents(split, lambda: empty.append(None))
    with _durable(work / f"{split}.bin") as file:
        file.write(np.array([end], dtype).tobytes())
        for batch in _batches(_told(documents, f"tokenizing {split}", size, report)):
            rows = []
            for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
                raw = text.encode()
                sizes.append(len(raw))
                # 64 bits: in two million documents, two different ones look equal with a chance of one in ten million.
                hashes.append(int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little"))
                if tokenizer.unknown is not None:
                    unknown += ids.count(tokenizer.unknown)
                ids.append(end)
                offsets.append(offsets[-1] + len(ids))
                rows.append(np.array(ids, dtype))
            file.write(np.concatenate(rows).tobytes())
    count, tokens, total = len(sizes), offsets[-1], sum(sizes)
    if tokens - 1 <= count:
        what = f"the {split} split has no {'tokens' if count else 'documents'}"
        raise UserError(what, corpus.name, "give it more text")
    for part, values in (("offsets", offsets), ("bytes", sizes)):
        with _durable(work / f"{split}.{part}.npy") as file:
            np.save(file, np.asarray(values, dtype="<i8"))
    return {
        "documents": count, "bytes": total, "tokens": tokens, "unknown": unknown, "empty": len(empty),
        "bytes_per_token": total / (tokens - 1), "unknown_rate": unknown / (tokens - 1 - count),
        "hashes": np.asarray(hashes, dtype=np.uint64),
    }  # fmt: skip


def _batches(documents: Iterator[str]) -> Iterator[list[str]]:
    batch, length = list[str](), 0
    for document in documents:
        batch.append(document)
        length += len(document)
        if length >= BATCH:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _told(documents: Iterator[str], phase: str, total: int | None, report: Report) -> Iterator[str]:
    done, told = 0, 0
    for document in documents:
        yield document
        done += len(document)  # characters, which are bytes near enough for a bar
        if done - told > 1 << 18:
            report(phase, done, total)
            told = done
    report(phase, done, done)


def _reuse(folder: Path, recipe: dict[str, Any], sources: list[Path], report: Report) -> Prepared | None:
    """The folder if it is whole and everything it was made from is unchanged, else None.

    Costs a reading of its files for their SHA-256 (about a second for a gigabyte); sources are read only where size
    or times differ.
    """
    try:
        raw = (folder / "manifest.json").read_bytes()
        manifest = json.loads(raw)
        del manifest["sha256"]
        if _sealed(manifest) != raw:
            return None
        paths = [str(path.absolute()) for path in sources]
        if manifest["recipe"] != recipe or [entry["path"] for entry in manifest["sources"]] != paths:
            return None
        for path, entry in zip(sources, manifest["sources"], strict=True):
            same = _stamp(path) == entry["stamp"]
            if not same and (path.stat().st_size != entry["size"] or _digest(path) != entry["sha256"]):
                return None
        report("checking prepared data", 0, None)
        for name, entry in manifest["files"].items():
            if (folder / name).stat().st_size != entry["size"] or _digest(folder / name) != entry["sha256"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Prepared(folder, manifest)


def _locked(path: Path, report: Report) -> contextlib.AbstractContextManager[object]:
    """One process prepares, the others wait and use what it made."""
    lock = filelock.FileLock(path)
    try:
        return lock.acquire(timeout=0)
    except filelock.Timeout:
        report("waiting for another process that prepares the same data", 0, None)
        return lock.acquire()


def _fingerprint(path: Path, report: Report) -> dict[str, Any]:
    try:
        stamp = _stamp(path)
        report("hashing the source", 0, stamp[0])
        return {"path": str(path.absolute()), "size": stamp[0], "stamp": stamp, "sha256": _digest(path)}
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", str(path), "check its permissions") from error


def _stamp(path: Path) -> list[int]:
    # The time of the change of the inode, too: it tells of a copy that kept its size and its date.
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _dtype(tokenizer: Tokenizer) -> str:
    return "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _canonical(value: dict[str, Any]) -> bytes:
    # ASCII: a path need not be valid Unicode.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _sealed(manifest: dict[str, Any]) -> bytes:
    """Canonical JSON that ends with the SHA-256 of what it would be without that."""
    body = _canonical(manifest)
    return body[:-1] + f',"sha256":"{hashlib.sha256(body).hexdigest()}"}}'.encode()


@contextlib.contextmanager
def _durable(path: Path) -> Iterator[BinaryIO]:
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
