"""From the name of a source to readings: a file, a folder, a loader, TinyStories, or a data set of the hub.

Owns: telling these apart, finding the files of a folder, the splits that a source brings itself, and the
mistakes of a path. Does not own: reading a file (`formats`), the hub (`hub`), a user's loader (`loaders`),
nor what becomes of a source without splits (`corpora`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lilliput.data.corpora.decompression import compression_of
from lilliput.data.corpora.documents import Document, Labels, Notice, Reading, ignore, without_empty
from lilliput.data.corpora.formats import FORMATS, ending_of, endings, text_size
from lilliput.data.corpora.hub import TINYSTORIES, TINYSTORIES_ON_HUB, find_data_set, folder_splits, local_tinystories
from lilliput.data.corpora.loaders import as_loader, open_loader
from lilliput.errors import UserError, nearest
from lilliput.settings.source_names import BUILT_IN_CORPORA, is_hub_name
from lilliput.settings.tree import DataSettings

STORYBOOK = "storybook"


def open_source(source: str, splits: tuple[str, ...], settings: DataSettings) -> dict[str, Reading]:
    """Readings of those of `splits` that the source tells apart; where it tells none apart, all of it as the first."""
    if loader := as_loader(source):
        if not loader[0].is_file():
            raise _missing(source, loader[0])
        return open_loader(*loader, splits, settings)
    local = local_tinystories() if source == TINYSTORIES else None
    path = local or Path(source)
    if (source == TINYSTORIES and local is None) or (is_hub_name(source) and not path.exists()):
        data_set = find_data_set(TINYSTORIES_ON_HUB if source == TINYSTORIES else source)
        told = f"{data_set.name} from the hub" + ("'s cache" if data_set.offline else "")
        return {
            split: _read_together(data_set.fetch(names), f"{told}: ", source, settings)
            for split, names in choose_splits(data_set.splits, splits).items()
        }
    if path.is_dir() and (found := folder_splits(path)):
        return {
            split: _read_together([path / name for name in names], "by their published names: ", source, settings)
            for split, names in choose_splits(found, splits).items()
        }
    files, ignored = find_files(source)
    reading = _read_together(files, "", source, settings)
    told = f"; {ignored:,} other file{'s' if ignored > 1 else ''} ignored" if ignored else ""
    return {splits[0]: Reading(files, reading.describe + told, reading.size, reading.read)}


def choose_splits(found: Mapping[str, list[str]], wanted: tuple[str, ...]) -> dict[str, list[str]]:
    """The files of the wanted splits. What is wanted for measuring and is not there is taken from test, or validation."""
    chosen = {split: found[split] for split in wanted if split in found}
    if not chosen:
        held_out = found.get("test") or found.get("validation")
        chosen = {wanted[0]: held_out or [name for names in found.values() for name in names]}
    return chosen


def _read_together(files: list[Path], prefix: str, source: str, settings: DataSettings) -> Reading:
    """One reading of several files; refused at once where there is no document in it."""
    read = functools.partial(_read_files, files, settings)
    if next(read(ignore), None) is None:
        empty = all(path.stat().st_size == 0 for path in files)
        what = "the source is empty" if empty else "the source contains only white space or separators"
        raise UserError(what, source, fix="give the path of a file with text", code="data.empty")
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(ending_of(path) or "", []).append(path)
    told = "; ".join(
        f"{len(group):,} {ending + ' ' if len(groups) > 1 else ''}file{'s' if len(group) > 1 else ''}, "
        f"{FORMATS[ending].tell(group, settings)}"
        for ending, group in groups.items()
    )
    return Reading(files, prefix + told, sum(map(text_size, files)), read)


def _read_files(files: list[Path], settings: DataSettings, on_empty: Notice) -> Iterator[Document]:
    labels = Labels()
    documents = (document for path in files for document in FORMATS[str(ending_of(path))].read(path, settings, labels))
    return without_empty(documents, on_empty)


def find_files(source: str) -> tuple[list[Path], int]:
    """The files of a path in a stable order, and how many others a folder holds."""
    path = Path(source)
    if path.is_dir():
        found = sorted(_walk(path), key=lambda file: file.relative_to(path).parts)
        files = [file for file in found if ending_of(file)]
        if not files:
            others = sorted({file.suffix for file in found if file.suffix})[:5]
            what = f"the folder contains no {endings()} file" + (f", only {', '.join(others)}" if others else "")
            raise UserError(what, source, fix="give a folder of text files", code="file.format")
        return files, len(found) - len(files)
    if not path.exists():
        raise _missing(source, path)
    if not path.is_file():
        what, fix = "the source is neither a file nor a folder", "copy its text into a .txt file"
        raise UserError(what, source, fix=fix, code="data.source")
    if ending_of(path) is None:
        raise _unknown(source, path)
    return [path], 0


def _missing(source: str, path: Path) -> UserError:
    if source.startswith("$LILLIPUT_DATA/"):  # unset, or `config` would have put the folder in its place
        rest = source.removeprefix("$LILLIPUT_DATA/")
        fix = f"set LILLIPUT_DATA to a folder that contains {rest}"
        return UserError("the environment variable LILLIPUT_DATA is not set", source, fix=fix, code="data.source")
    if meant := nearest(path.name, BUILT_IN_CORPORA):
        return UserError(f"unknown source {path.name}", source, fix=f"use {meant}", code="data.source")
    siblings = os.listdir(path.parent) if path.parent.is_dir() and os.access(path.parent, os.R_OK) else []
    meant = nearest(path.name, siblings)
    fix = f"give the path of a {endings()} file, a folder of them, or {STORYBOOK}"
    fix = f"use {path.parent / meant}" if meant else fix
    return UserError("the file or folder does not exist", source, fix=fix, code="file.missing")


def _unknown(source: str, path: Path) -> UserError:
    if compression_of(path):
        what = f"unknown file type before {path.suffix}, expected one of {', '.join(FORMATS)}"
        fix = f"rename it to {path.stem}.txt{path.suffix} if it is plain text"
        return UserError(what, source, fix=fix, code="file.format")
    what = f"unknown file type {path.suffix or 'without an ending'}, expected {endings()}"
    return UserError(what, source, fix="rename it to .txt if it is plain text", code="file.format")


def _walk(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        what = f"cannot read the folder: {error.strerror}"
        raise UserError(what, str(error.filename), fix="check its permissions", code="file.unreadable") from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        if {"config.json", "checkpoints"} <= {*names, *folders}:
            folders.clear()  # a run that was made here: its log is not text to learn from
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith(".") and Path(parent, name).is_file())
