"""Atomic writes: a file or folder is complete or absent, whatever interrupts the write.

Owns: flushing, renaming into place, cleaning up after interrupted writes, strict JSON, and errors about disks that are
full or read-only. Does not own: the content (`checkpoints`, `run_folders`, `data.prepare`). Needs only the standard library.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import sys
from array import array
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from lilliput.errors import UserError

# Prefixes of temporary names. Only a replaced entry may be needed again: a kill between the two renames of a replacement
# leaves its old content here and nothing at its place.
WRITING, REMOVING, REPLACED = ".writing-", ".removing-", ".replaced-"

DEEPEST = 100  # levels of nested brackets; recursive parsers have different limits
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed bytes
_NO_BRACKETS = bytes({*range(256)} - {*b"[{]}"})


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return indented, strict (no NaN), ASCII JSON; a path need not be valid Unicode."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode("ascii")


def check_nesting(text: str, deepest: int = DEEPEST) -> None:
    """Raise ValueError if brackets in `text`, of which all strings have been removed, are nested deeper than `deepest`."""
    steps = text.encode("ascii", "replace").translate(_STEPS, _NO_BRACKETS)
    if max(accumulate(array("b", steps)), default=0) > deepest:
        raise ValueError(f"nested deeper than {deepest} levels")


def parse_json(data: bytes | str, deepest: int = DEEPEST) -> Any:
    """Parse JSON of unknown origin. Raise ValueError if it is not UTF-8, not JSON, or nested deeper than `deepest`.

    The depth is measured before parsing, so that the result does not depend on the recursion limit. This takes about as long
    as parsing, and no time where there are few brackets, as in the lines of a .jsonl file.
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    if text.count("[") + text.count("{") > deepest:
        unescaped = text.replace("\\\\", "").replace('\\"', "")  # every quote that is left starts or ends a string
        check_nesting("".join(unescaped.split('"')[::2]), deepest)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ValueError("a number has too many digits") from error


def parse_object(data: bytes) -> dict[str, Any]:
    value = parse_json(data)
    if isinstance(value, dict):
        return value
    raise ValueError("not a JSON object")


def temporary_path(place: Path) -> Path:
    """Return a new path in the same folder, which `clean_leftovers` removes."""
    return place.with_name(f"{WRITING}{place.name}-{secrets.token_hex(4)}")


def free_bytes(folder: Path) -> int:
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else sys.maxsize  # some network file systems report 0


def cannot_write(error: OSError, path: Path, needed: int | None = None) -> UserError:
    """Return the error for a write that the system refused."""
    why, fix = error.strerror or str(error), "choose a folder that you can write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        if needed is not None:
            free = free_bytes(next(folder for folder in path.absolute().parents if folder.is_dir()))
            why += f" (needed {needed:,} bytes, free {free:,} bytes)"
        fix = "free some space and run the command again; existing files are unchanged"
    elif error.errno == errno.EROFS:
        why = "the file system is read-only"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "permission denied"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        blocker = next((p for p in (path, *path.parents) if os.path.exists(p) and not os.path.isdir(p)), path)
        why, fix = f"{blocker} is a file, not a folder", "choose another folder"
    return UserError(f"cannot write {path.name}: {why}", str(path), fix=fix, code="file.not-written")


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that they survive a power loss (not possible on Windows)."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(handle)


def write_flushed(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file atomically: at every moment it has all of the old bytes or all of the new ones."""
    temporary = temporary_path(path)
    try:
        write_flushed(temporary, data)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(error, path, len(data)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def put_folder(new: Path, place: Path) -> None:
    """Rename a complete folder to `place`; `clean_leftovers` then removes the old folder, or restores it."""
    if place.exists():
        os.rename(place, place.with_name(f"{REPLACED}{place.name}"))
    os.rename(new, place)
    sync_folder(place.parent)


def clean_leftovers(parent: Path, name: str | None = None) -> None:
    """Remove what interrupted writes (of `name`) left in `parent`, and restore entries whose replacement is missing.

    Only for the process that may write there. Errors of the system are ignored, because nothing depends on the result.
    """
    leftover = re.compile(rf"\.(writing|removing|replaced)-({re.escape(name) if name else '.+'})(-[0-9a-f]{{8}})?")
    with suppress(OSError):
        for entry in sorted(entry for entry in parent.iterdir() if leftover.fullmatch(entry.name)):
            place = parent / entry.name.removeprefix(REPLACED)
            if place != entry and not place.exists():
                os.rename(entry, place)
            else:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
