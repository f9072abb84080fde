"""Files and folders that are there whole or not at all, whatever happens while they are written.

Owns: flushing, renaming into place, what an interrupted write leaves behind, strict JSON, and the sentences
about disks that are full or closed. Does not own: what is written (`checkpoints`, `run_folders`,
`data.prepare`). Needs nothing but Python.
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

# What is on its way in, out, and out to make place for another. Only the last kind holds something that may be needed:
# a kill between the two renames of a replacement leaves the place empty and the old one here.
WRITING, REMOVING, REPLACED = ".writing-", ".removing-", ".replaced-"

DEEPEST = 100  # levels of nested brackets; parsers recurse, and each has another limit of its own
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed bytes
_NO_BRACKETS = bytes({*range(256)} - {*b"[{]}"})


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """JSON for people and programs: indented, strict (no NaN), ASCII (a path need not be valid Unicode)."""
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


def beside(place: Path) -> Path:
    return place.with_name(f"{WRITING}{place.name}-{secrets.token_hex(4)}")


def free_bytes(folder: Path) -> int:
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else sys.maxsize  # some network file systems tell nothing


def cannot_write(error: OSError, path: Path, needed: int | None = None) -> UserError:
    """Return the error for a write that the system refused."""
    why, fix = error.strerror or str(error), "choose a folder that you can write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        if needed is not None:
            free = free_bytes(next(folder for folder in path.absolute().parents if folder.is_dir()))
            why += f" (needed {needed:,} bytes, free {free:,} bytes)"
        fix = "free some space and run it again; existing files are unchanged"
    elif error.errno == errno.EROFS:
        why = "the file system is read-only"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "permission denied"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        blocker = next((p for p in (path, *path.parents) if os.path.exists(p) and not os.path.isdir(p)), path)
        why, fix = f"{blocker} is a file, not a folder", "choose another folder"
    return UserError(f"cannot write {path.name}: {why}", str(path), fix=fix, code="file.not-written")


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a loss of power, where the system can (Windows has no such call)."""
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
    """A small file that holds, at every moment, all of the old bytes or all of the new ones."""
    temporary = beside(path)
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
    """Renames a complete folder into its place; `clean_leftovers` then removes what was there, or brings it back."""
    if place.exists():
        os.rename(place, place.with_name(f"{REPLACED}{place.name}"))
    os.rename(new, place)
    sync_folder(place.parent)


def clean_leftovers(parent: Path, name: str | None = None) -> None:
    """Removes what interrupted writes (of `name`) left in `parent`, and puts back what was moved away for nothing.

    For the one process that may write there; as far as the system lets it, since nobody depends on it.
    """
    leftover = re.compile(rf"\.(writing|removing|replaced)-({re.escape(name) if name else '.+'})(-[0-9a-f]{{8}})?")
    with suppress(OSError):
        for entry in sorted(entry for entry in parent.iterdir() if leftover.fullmatch(entry.name)):
            place = parent / entry.name.removeprefix(REPLACED)
            if place != entry and not place.exists():
                os.rename(entry, place)
            else:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
