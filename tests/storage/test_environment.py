"""Versions and hardware of the present machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version

import lilliput
from lilliput.storage.environment import describe_hardware, describe_versions, machine_memory


def test_versions_of_installed_libraries() -> None:
    expected = {"lilliput": lilliput.__version__, "python": platform.python_version(), "numpy": version("numpy")}
    assert describe_versions(["numpy", "a-library-that-does-not-exist"]) == expected


def test_hardware_is_that_of_the_system() -> None:
    found = describe_hardware()
    assert (found["system"], found["cores"]) == (platform.system(), os.cpu_count())
    assert found["processor"]
    assert found["memory_bytes"] == machine_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert not {platform.node(), os.environ.get("USER", "?")} & {str(value) for value in found.values()}


def test_torch_is_not_imported() -> None:
    code = "import sys, lilliput.storage.environment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
