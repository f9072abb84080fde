"""Open a source by its name: a file, a folder, a loader, TinyStories, or a data set of the hub.

Owns: recognising the kind of source, finding the files of a folder, using the splits of a source, and errors in paths.
Does not own: reading a file (`formats`), the hub (`hub`), loaders (`loaders`), or splitting a source (`corpora`).
"""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lilliput.data.corpora.decompression import is_text
from lilliput.data.corpora.documents import Document, Labels, Notice, Reading, ignore, without_empty
from lilliput.data.corpora.formats import compressed, ending_of, endings, format_of, text_size
from lilliput.data.corpora.hub import TINYSTORIES, TINYSTORIES_ON_HUB, find_data_set, folder_splits, local_tinystories
from lilliput.data.corpora.loaders import as_loader, open_loader
from lilliput.errors import UserError, nearest
from lilliput.settings.source_names import BUILT_IN_CORPORA, is_hub_name, nearest_path
from lilliput.settings.tree import DataSettings

STORYBOOK = "storybook"
TEXT = "text"  # files that are read as plain text because their suffix is of no format
SHOWN = 5  # names of skipped files in the description


def open_source(source: str, splits: tuple[str, ...], settings: DataSettings) -> dict[str, Reading]:
    """Return a reading for each of `splits` that the source has; if it has no splits, one for the first of them."""
    if loader := as_loader(source):
        if not loader[0].is_file():
            raise _missing(source, loader[0])
        return open_loader(*loader, splits, settings)
    local = local_tinystories() if source == TINYSTORIES else None
    path = local or Path(source)
    if (source == TINYSTORIES and local is None) or (is_hub_name(source) and not path.exists()):
        data_set = find_data_set(TINYSTORIES_ON_HUB if source == TINYSTORIES else source)
        prefix = f"{data_set.name} from the hub" + ("'s cache: " if data_set.offline else ": ")
        return {
            split: _read_together(data_set.fetch(names), prefix, source, settings)
            for split, names in choose_splits(data_set.splits, splits).items()
        }
    if path.is_dir() and (found := folder_splits(path)):
        return {
            split: _read_together([path / name for name in names], "TinyStories by file names: ", source, settings)
            for split, names in choose_splits(found, splits).items()
        }
    files, skipped = find_files(source, settings)
    reading = _read_together(files, "", source, settings)
    return {splits[0]: Reading(files, reading.describe + _describe_skipped(skipped), reading.size, reading.read)}


def choose_splits(found: Mapping[str, list[str]], wanted: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the files of the wanted splits. If none exists, use test or validation, or else all files."""
    chosen = {split: found[split] for split in wanted if split in found}
    if not chosen:
        held_out = found.get("test") or found.get("validation")
        chosen = {wanted[0]: held_out or [name for names in found.values() for name in names]}
    return chosen


def _read_together(files: list[Path], prefix: str, source: str, settings: DataSettings) -> Reading:
    """Return one reading of several files; raise if they contain no document."""
    read = functools.partial(_read_files, files, settings)
    if next(read(ignore), None) is None:
        empty = all(path.stat().st_size == 0 for path in files)
        what = f"the source must contain text (got {'empty files' if empty else 'only white space or separators'})"
        raise UserError(what, source, fix="give the path of a file with text", code="data.empty")
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(ending_of(path) or TEXT, []).append(path)
    if TEXT in groups:  # these are split into documents in the same way
        groups[TEXT] += groups.pop(".txt", [])
    description = "; ".join(
        f"{len(group):,} {ending + ' ' if len(groups) > 1 else ''}file{'s' if len(group) > 1 else ''}, "
        f"{format_of(group[0]).describe(group, settings)}"
        for ending, group in groups.items()
    )
    return Reading(files, prefix + description, sum(map(text_size, files)), read)


def _read_files(files: list[Path], settings: DataSettings, on_empty: Notice) -> Iterator[Document]:
    labels = Labels()
    documents = (document for path in files for document in format_of(path).read(path, settings, labels))
    return without_empty(documents, on_empty)


def find_files(source: str, settings: DataSettings) -> tuple[list[Path], list[Path]]:
    """Return the files of a path in a fixed order, and the files of a folder that are skipped.

    In a folder, hidden files, runs and the cache are not searched. `data.files` selects files by pattern. Of the others,
    a file with the suffix of a format is read, and any other file if it is text: source trees contain binaries.
    """
    path = Path(source)
    if path.is_dir():
        found = sorted(_walk(path, Path(settings.cache).absolute()), key=lambda file: file.relative_to(path).parts)
        if settings.files:
            files = [file for file in found if _matches(file.relative_to(path), settings.files)]
            what, fix = (
                f"no file matches data.files (got {', '.join(settings.files)})",
                "correct the patterns, for example *.txt",
            )
            if not files:
                raise UserError(what, source, fix=fix, code="file.format", setting="data.files")
            return files, []
        files = [file for file in found if ending_of(file) or is_text(file)]
        if not files:
            others = sorted({file.suffix for file in found if file.suffix})[:5]
            what = "the folder contains no text file" + (f" (got {', '.join(others)})" if others else "")
            fix = f"give a folder with {endings()} files {compressed()}"
            raise UserError(what, source, fix=fix, code="file.format")
        return files, sorted(set(found) - set(files))
    if not path.exists():
        raise _missing(source, path)
    if not path.is_file():
        what, fix = "the source must be a file or a folder (got a device or pipe)", "copy its text into a .txt file"
        raise UserError(what, source, fix=fix, code="data.source")
    return [path], []


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    """Return whether the name or the path in the folder matches a pattern. Upper and lower case are equal."""
    names = path.name.lower(), path.as_posix().lower()
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names for pattern in patterns)


def _describe_skipped(skipped: list[Path]) -> str:
    if not skipped:
        return ""
    shown = ", ".join(path.name for path in skipped[:SHOWN]) + (", ..." if len(skipped) > SHOWN else "")
    return f"; {len(skipped):,} file{'s' if len(skipped) > 1 else ''} skipped because not UTF-8 text: {shown}"


def _missing(source: str, path: Path) -> UserError:
    if source.startswith("$LILLIPUT_DATA/"):  # the variable is not set, else the settings would have replaced it
        rest = source.removeprefix("$LILLIPUT_DATA/")
        fix = f"set LILLIPUT_DATA to a folder that contains {rest}"
        return UserError("the environment variable LILLIPUT_DATA is not set", source, fix=fix, code="data.source")
    if meant := nearest(path.name, BUILT_IN_CORPORA):
        return UserError(f"unknown source {path.name}", source, fix=f"use {meant}", code="data.source")
    close = nearest_path(path)
    fix = f"give the path of a {endings()} file, of a folder with such files, or {STORYBOOK}"
    fix = f"correct the path, for example to {close}" if close else fix
    return UserError("the file or folder does not exist", source, fix=fix, code="file.missing")


def _walk(folder: Path, cache: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        what = f"cannot read the folder: {error.strerror}"
        raise UserError(what, str(error.filename), fix="check its permissions", code="file.unreadable") from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        if {"config.json", "checkpoints"} <= {*names, *folders}:
            folders.clear()  # a run folder: its log is not training text
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and Path(parent, name).absolute() != cache]
        yield from (Path(parent, name) for name in names if not name.startswith(".") and Path(parent, name).is_file())
