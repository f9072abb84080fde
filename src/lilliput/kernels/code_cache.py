"""Machine code of this machine: found on disk, or made once and kept there.

Owns: the file, when it is good, and loading it into the process. Does not own: making it (each kernel's own
`compile`, which needs numba: importing that takes a second, so it is not done where the file is there).
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
from lilliput.storage.atomic_files import beside

SOURCES = sorted(Path(__file__).parent.glob("*.py"))  # what all kernels are made of
Tell = Callable[[str], None]
_linked: list[Any] = []  # what owns the memory of machine code


class Kernel:
    """One compiled function. `name` is of its file, `called` of what users are told; `sources` are hashed with SOURCES.

    `compile` gives the function's name in an object file, and the file.
    """

    def __init__(
        self, name: str, called: str, sources: Sequence[Path], compile: Callable[[], tuple[str, bytes]]
    ) -> None:
        self.name, self.called, self.compile = name, called, compile
        self.sources = [*SOURCES, *sources]
        self.address = 0
        self.loading = threading.Lock()  # compiling twice at a time takes twice as long

    def load(self, tell: Tell | None = None) -> int:
        """Where the function begins, in this process; `tell` hears of a compilation, for it takes a while."""
        with self.loading:
            if not self.address:
                path = self.find_place()
                found = None if path is None else read(path)
                self.address = link(*(found or self.make(path, tell or (lambda sentence: None))))
            return self.address

    def make(self, path: Path | None, tell: Tell) -> tuple[str, bytes]:
        """The function's name, and the object file, kept for the next time if there is a place for it."""
        tell(f"compiling {self.called} for this machine ...")
        begun = time.monotonic()
        name, code = self.compile()
        kept = "; the machine code is kept for the next time" if path is not None and keep(path, name, code) else ""
        tell(f"compiled {self.called} in {time.monotonic() - begun:.1f} s{kept}")
        return name, code

    def find_place(self) -> Path | None:
        """Code is kept for these sources, libraries and processor, and no others; None where nothing can be kept."""
        about = [version("numba"), version("llvmlite"), binding.get_process_triple(), binding.get_host_cpu_name()]
        about.append(binding.get_host_cpu_features().flatten())
        sources = b"".join(map(Path.read_bytes, self.sources))
        key = hashlib.sha256(sources + "\n".join(about).encode()).hexdigest()[:16]
        folder = cache_folder() / "compiled"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return folder / f"{self.name}-{key}.o"


def read(path: Path) -> tuple[str, bytes] | None:
    """The function's name and the object file; None if it is not there, not as it was written, or written by somebody else: it
    would run with all rights of this user."""
    try:
        with open(path, "rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            digest, name, code = file.read().split(b"\n", 2)
        return (name.decode("ascii"), code) if digest == digest_of(name, code) else None
    except (OSError, ValueError):
        return None


def keep(path: Path, name: str, code: bytes) -> bool:
    """Whole or not at all: others may be reading or writing it."""
    new = beside(path)
    try:
        new.write_bytes(b"\n".join((digest_of(name.encode("ascii"), code), name.encode("ascii"), code)))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        return False
    return True


def digest_of(name: bytes, code: bytes) -> bytes:
    """Of both: LLVM ends the process if it is asked for a name that is not in the code."""
    return hashlib.sha256(name + b"\n" + code).hexdigest().encode("ascii")


def link(name: str, code: bytes) -> int:
    """Where the function begins, in memory that is never given back: threads may be in it for as long as the process lives."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _linked.append(engine)
    address: int = engine.get_function_address(name)
    return address


def to_object(assembly: str) -> bytes:
    """Machine code of a module, for this processor."""
    target = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    code: bytes = target.emit_object(binding.parse_assembly(assembly))
    return code
