"""Versions and hardware of the present machine, for logs and reports. Does not import torch.

Owns: both descriptions. Does not own: what a bit-for-bit resume depends on (`state_format`), the speed of the machine
(`devices`).
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lilliput import __version__


def describe_versions(libraries: Sequence[str]) -> dict[str, str]:
    """Return versions from package metadata: importing the packages takes seconds."""
    found = {"lilliput": __version__, "python": platform.python_version()}
    for name in libraries:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def describe_hardware() -> dict[str, Any]:
    """Return the properties that affect speed, and nothing that identifies the owner."""
    about: dict[str, Any] = {"system": platform.system(), "processor": processor_model(), "cores": os.cpu_count()}
    memory = machine_memory()
    return about if memory is None else about | {"memory_bytes": memory}


def machine_memory() -> int | None:
    """Return the memory of the machine in bytes; None where the system does not report it."""
    if sys.platform != "win32":
        with suppress(ValueError, OSError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def processor_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
