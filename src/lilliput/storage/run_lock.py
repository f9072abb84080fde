"""The lock file of a run: one process at a time may train it.

Owns: taking, holding and testing the lock. Does not own: the run (`run_folders`).
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lilliput.errors import UserError
from lilliput.storage.atomic_files import cannot_write

PATIENCE = 0.3  # seconds; `is_locked` of another process holds the lock for microseconds


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock; raise a UserError if another process holds it. The end of the process releases it; the file stays."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(error, path) from error
    try:
        deadline = time.monotonic() + PATIENCE
        while not _take_lock(handle, exclusive=True):
            if time.monotonic() > deadline:
                raise locked_error(path)
            time.sleep(0.02)
        with suppress(OSError):  # only for `locked_error`
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, str(os.getpid()).encode("ascii"))
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _take_lock(handle, exclusive=False)
    finally:
        os.close(handle)


def locked_error(path: Path) -> UserError:
    process = ""
    with suppress(OSError, ValueError):
        process = f" (process {int(path.read_text('ascii'))})"
    what = f"run {path.absolute().parent.name} is being trained by another process{process}"
    return UserError(what, str(path.parent), fix="wait until it ends, or choose another name", code="run.locked")


def _take_lock(handle: int, exclusive: bool) -> bool:
    """Return False if another process holds the lock; True also on file systems without locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 1 << 20, os.SEEK_SET)  # Windows does not allow reading a locked byte
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True
