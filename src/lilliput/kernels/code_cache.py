"""Cache of compiled code on disk.

Owns: the cache file, its verification, and loading it into the process. Does not own: compiling (the `compile` of each
kernel; it imports numba, which takes a second, so it runs only if there is no cache file).
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]

from lilliput.devices import cache_folder
from lilliput.storage.atomic_files import temporary_path

SOURCES = sorted(Path(__file__).parent.glob("*.py"))  # shared by all kernels
Report = Callable[[str], None]
_engines: list[Any] = []  # own the memory of the compiled code


class Kernel:
    """One compiled function.

    `name` is the prefix of its cache file; `description` is used in progress messages; `sources` are hashed together with
    SOURCES; `compile` returns the function's name and the object file.
    """

    def __init__(
        self, name: str, description: str, sources: Sequence[Path], compile: Callable[[], tuple[str, bytes]]
    ) -> None:
        self.name, self.description, self.compile = name, description, compile
        self.sources = [*SOURCES, *sources]
        self.address = 0
        self.lock = threading.Lock()  # threads must not compile the same code twice

    def load(self, report: Report | None = None) -> int:
        """Return the address of the function in this process; `report` gets messages about a compilation."""
        with self.lock:
            if not self.address:
                path = self.cache_path()
                cached = None if path is None else read_code(path)
                self.address = link(*(cached or self.compile_and_store(path, report or (lambda message: None))))
            return self.address

    def compile_and_store(self, path: Path | None, report: Report) -> tuple[str, bytes]:
        """Compile; write the code to `path` if possible; return the function's name and the object file."""
        report(f"compiling {self.description} for this processor ...")
        start = time.monotonic()
        name, code = self.compile()
        cached = path is not None and write_code(path, name, code)
        report(f"compiled {self.description} in {time.monotonic() - start:.1f} s{'; cached for later runs' * cached}")
        return name, code

    def cache_path(self) -> Path | None:
        """Return the cache file for these sources, versions and processor; None if its folder cannot be created."""
        environment = [version("numba"), version("llvmlite"), binding.get_process_triple(), binding.get_host_cpu_name()]
        environment.append(binding.get_host_cpu_features().flatten())
        sources = b"".join(map(Path.read_bytes, self.sources))
        key = hashlib.sha256(sources + "\n".join(environment).encode()).hexdigest()[:16]
        folder = cache_folder() / "compiled"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return folder / f"{self.name}-{key}.o"


def read_code(path: Path) -> tuple[str, bytes] | None:
    """Return the function's name and the object file; None if the file is missing, damaged, or owned by another user.

    The code runs with all rights of this user, so a file of another user is never loaded.
    """
    try:
        with open(path, "rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            digest, name, code = file.read().split(b"\n", 2)
        return (name.decode("ascii"), code) if digest == digest_code(name, code) else None
    except (OSError, ValueError):
        return None


def write_code(path: Path, name: str, code: bytes) -> bool:
    """Write atomically, since other processes may read or write the same file; return whether it was written."""
    new = temporary_path(path)
    try:
        new.write_bytes(b"\n".join((digest_code(name.encode("ascii"), code), name.encode("ascii"), code)))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        return False
    return True


def digest_code(name: bytes, code: bytes) -> bytes:
    """Return the SHA-256 of name and code. It includes the name: LLVM aborts the process if the code has no such function."""
    return hashlib.sha256(name + b"\n" + code).hexdigest().encode("ascii")


def link(name: str, code: bytes) -> int:
    """Load the code and return the function's address. The memory is not freed: threads may run the code until exit."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    address: int = engine.get_function_address(name)
    return address


def to_object(assembly: str) -> bytes:
    """Compile a module of LLVM assembly for this processor."""
    target = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    code: bytes = target.emit_object(binding.parse_assembly(assembly))
    return code
