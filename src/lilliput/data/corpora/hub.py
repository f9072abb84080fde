"""Data sets of the Hugging Face hub.

Owns: the published file names of TinyStories, splits by file names, listing a data set and downloading its files with
huggingface_hub (resumable, cached, with a progress bar), and offline use. Does not own: reading the files (`formats`).
Files stay in huggingface_hub's cache.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lilliput.data.corpora.formats import FORMATS, ending_of, endings
from lilliput.errors import UserError

TINYSTORIES = "tinystories"
TINYSTORIES_ON_HUB = "roneneldan/TinyStories"
LISTING_SECONDS = 5.0
# Errors of the system if the hub cannot be reached.
UNCONNECTED = (socket.gaierror, ConnectionError, TimeoutError)
UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)

# The published forms of TinyStories, the hub's first, because a copy of the data set contains all of them.
PUBLISHED = tuple(
    {split: re.compile(pattern + r"(\.(gz|zst|xz))?") for split, pattern in form.items()}
    for form in (
        {
            "train": r"(data/)?train-\d{5}-of-\d{5}[^/]*\.parquet",
            "validation": r"(data/)?validation-\d{5}-of-\d{5}[^/]*\.parquet",
        },
        {"train": r"TinyStories-train\.txt", "validation": r"TinyStories-valid\.txt"},
        {"train": r"TinyStoriesV2-GPT4-train\.txt", "validation": r"TinyStoriesV2-GPT4-valid\.txt"},
    )
)
SHARD = re.compile(r"(?P<before>.*?)(?P<index>\d{5})-of-(?P<total>\d{5})")
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
NO_TEXTS = ("readme", "license", "licence")

Splits = dict[str, list[str]]  # split -> names of its files, relative to their folder


def published_splits(names: Iterable[str], where: str) -> Splits:
    """Return the files of TinyStories by split; empty if the names do not include both splits."""
    listed = sorted(names)
    for form in PUBLISHED:
        found = {split: [name for name in listed if pattern.fullmatch(name)] for split, pattern in form.items()}
        if all(found.values()):
            for files in found.values():
                check_shards(files, where)
            return found
    return {}


def check_shards(names: list[str], where: str) -> None:
    """Raise if a shard is missing: train-00000-of-00004 requires three more."""
    sets: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := SHARD.match(name):
            sets.setdefault((match["before"], int(match["total"])), set()).add(int(match["index"]))
    for (before, total), found in sets.items():
        if missing := sorted(set(range(total)) - found):
            what = f"{len(missing)} of {total} shards {'is' if len(missing) == 1 else 'are'} missing"
            first = f"{before}{missing[0]:05}-of-{total:05}"
            fix = "add the missing files, or delete the copy to download it again"
            raise UserError(f"{what}, first {first}", where, fix=fix, code="file.missing")


def splits_by_name(names: Iterable[str], where: str) -> Splits:
    """Return the files of a data set by split, from words such as train and test in their paths (none: all are train).

    A data set often contains its texts in several formats; only one is used, so that no text is read twice.
    """
    listed = sorted(name for name in names if PurePosixPath(name).name.split(".")[0].lower() not in NO_TEXTS)
    by_ending = {ending: [name for name in listed if ending_of(Path(name)) == ending] for ending in FORMATS}
    ending = next((each for each in (".parquet", ".jsonl", ".csv", ".tsv", ".txt") if by_ending[each]), None)
    if ending is None:
        others = sorted({PurePosixPath(name).suffix for name in listed} - {""})[:5]
        found = f" (got {', '.join(others)})" if others else ""
        what = f"the data set contains no files of a supported type{found}"
        raise UserError(what, where, fix=f"save it as {endings()} and give the path", code="file.format")
    files: Splits = {}
    roots: dict[str, set[str]] = {}
    for name in by_ending[ending]:
        split, root = _split_of(name)
        files.setdefault(split, []).append(name)
        roots.setdefault(split, set()).add(root)
    if "train" not in files and "" in files:
        files["train"] = files[""]
    elif "train" not in files:
        what = f"the data set must have a training split (got {' and '.join(sorted(files))} only)"
        raise UserError(what, where, fix="give the path of a downloaded file of it", code="data.source")
    if len(parts := sorted(roots.get("train", set()))) > 1:
        shown = ", ".join(part or "its root" for part in parts[:6]) + (" …" if len(parts) > 6 else "")
        what = f"the data set must have one configuration (got {len(parts)}: {shown})"
        raise UserError(what, where, fix="give the path of a downloaded folder of one of them", code="data.source")
    files.pop("", None)
    for shards in files.values():
        check_shards(shards, where)
    return files


def _split_of(name: str) -> tuple[str, str]:
    """Return the split that a path names ("" if none), and the folder above it. The file name has priority."""
    parts = PurePosixPath(name).parts
    for index in range(len(parts) - 1, -1, -1):
        for word in reversed(re.split(r"[^a-z0-9]+", parts[index].lower())):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word], "/".join(parts[:index])
    return "", ""


@dataclass(frozen=True)
class DataSet:
    """The files of a data set on the hub or in its local cache."""

    name: str
    splits: Splits
    revision: str | None  # the commit that was listed
    offline: bool  # listed from the cache, because the hub could not be reached

    def fetch(self, names: list[str]) -> list[Path]:
        """Return the local paths of the files. Downloads missing files and resumes partial downloads."""
        folder = _cached(self.name)
        if folder is None or folder.name != self.revision or not all((folder / name).exists() for name in names):
            folder = self._download(names)
        return [folder / name for name in names]

    def _download(self, names: list[str]) -> Path:
        library = _library()
        try:
            with _quiet(library):
                # The main branch, not the listed commit: otherwise the cache is not found offline.
                patterns = [glob.escape(name) for name in names]
                return Path(library.snapshot_download(self.name, repo_type="dataset", allow_patterns=patterns))
        except Exception as error:  # depends on the library's transport: requests, httpx, xet
            what, fix = (
                f"the download of {self.name} failed: {_reason(error)}",
                "run it again (complete files are kept)",
            )
            raise UserError(what, "the hub", fix=fix, code="hub.offline") from error


@contextlib.contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Disable the library's messages about retries, and its progress bar if stderr is not a terminal."""
    level = library.utils.logging.get_verbosity()
    library.utils.logging.set_verbosity_error()
    hide = not sys.stderr.isatty() and not library.utils.are_progress_bars_disabled()
    if hide:
        library.utils.disable_progress_bars()
    try:
        yield
    finally:
        library.utils.logging.set_verbosity(level)
        if hide:
            library.utils.enable_progress_bars()


def find_data_set(name: str) -> DataSet:
    """Return the files of a data set on the hub, or in its local cache if the hub cannot be reached."""
    library = _library()
    try:
        info = library.HfApi().dataset_info(name, timeout=LISTING_SECONDS)
        names, revision, offline = [file.rfilename for file in info.siblings or ()], info.sha, False
    except library.errors.GatedRepoError as error:
        what, fix = f"the data set {name} requires permission", "ask for access on its page, then run hf auth login"
        raise UserError(what, "the hub", fix=fix, code="hub.missing") from error
    except library.errors.RepositoryNotFoundError as error:
        what = f"{name} is neither a file or folder nor a public data set on the hub"
        raise UserError(what, "the hub", fix="check the name", code="hub.missing") from error
    except library.errors.HFValidationError as error:
        what = f"{name} is neither a file or folder nor a valid name of a data set: {_reason(error)}"
        raise UserError(what, name, fix="give a path, or owner/name", code="data.source") from error
    except Exception as error:  # depends on the library's transport
        if (folder := _cached(name)) is None:
            raise _unreachable(name, error) from error
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        revision, offline = folder.name, True
    # Names from the hub must not point outside the folder.
    inside = [each for each in names if not {"..", "/"} & {*PurePosixPath(each).parts}]
    splits = published_splits(inside, name) or splits_by_name(inside, name)
    return DataSet(name, splits, revision, offline)


def _cached(name: str) -> Path | None:
    """Return the snapshot of a data set in the hub's cache, complete or not; None if there is none."""
    library = _library()
    try:
        # Without a pattern, newer versions reject a partial snapshot.
        return Path(library.snapshot_download(name, repo_type="dataset", local_files_only=True, allow_patterns=[]))
    except library.errors.LocalEntryNotFoundError:
        return None


def _unreachable(name: str, error: Exception) -> UserError:
    what = f"cannot reach the hub for the data set {name}: {_reason(error)}"
    if name == TINYSTORIES_ON_HUB:
        files = "TinyStories-train.txt and TinyStories-valid.txt"
        fix = f"copy {files} into $LILLIPUT_DATA/tinystories, or give the path of their folder, or set HF_HOME"
    else:
        fix = "give the path of a folder with its files, or set HF_HOME to a cache that contains it"
    return UserError(what, "not a file or folder, and not in the hub's cache", fix=fix, code="hub.offline")


def _reason(error: BaseException) -> str:
    """Return why a request failed. The causes of a failed connection are errors of the system, which are not printed."""
    if isinstance(error, _library().errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UNCONNECTED) or (isinstance(cause, OSError) and cause.errno in UNREACHABLE):
            return "there is no connection"
        cause = cause.__cause__ or cause.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)[:120]


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        what, fix = "data sets of the hub require huggingface_hub (not installed)", 'run pip install "lilliput[data]"'
        raise UserError(what, fix=fix, code="package.missing") from error
    return huggingface_hub


def local_tinystories() -> Path | None:
    """Return the folder of the TinyStories files in LILLIPUT_DATA; None if there is none."""
    data = os.environ.get("LILLIPUT_DATA")
    return Path(data, TINYSTORIES) if data and folder_splits(Path(data, TINYSTORIES)) else None


def folder_splits(folder: Path) -> Splits:
    """Return the splits of a folder with the published files of TinyStories; empty for any other folder."""
    try:
        inside = [path for parent in (folder, folder / "data") if parent.is_dir() for path in parent.iterdir()]
    except OSError:
        return {}  # reading the folder raises the error later
    return published_splits((path.relative_to(folder).as_posix() for path in inside if path.is_file()), str(folder))
