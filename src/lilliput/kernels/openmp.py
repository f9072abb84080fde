"""Compiled functions on torch's own threads.

Owns: the entry point of the OpenMP library that torch loaded. Does not own: how a function divides its work (each kernel
does, by counters that its threads share).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def find_openmp_parallel() -> Any:
    """Return GOMP_parallel of torch's OpenMP library, which runs a function on torch's own threads; None if not found.

    Other threads would compete with torch's, which keep spinning for a while after each operation.
    """
    for name in ("libgomp*", "libiomp5*", "libomp*"):
        for path in sorted(Path(torch.__file__).parent.joinpath("lib").glob(name)):
            try:
                found = ctypes.CDLL(str(path)).GOMP_parallel
            except (OSError, AttributeError):
                continue
            found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
            return found
    return None
