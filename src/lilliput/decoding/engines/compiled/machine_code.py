"""The compiled pass of this machine: found on disk, or made once and kept there.

Owns: the file, when it is good, and loading it into the process. Does not own: making it (`compilation`, which needs numba:
importing that takes a second, and calling its function with all arrays a tenth of a millisecond on a busy machine, so neither is
done where the file is there).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]

from lilliput.devices import cache_folder
from lilliput.files import beside
from lilliput.model import norms

WORD = ctypes.c_int64
# Places for the outcome and for an exception, then numbers, seen, part and parts. The interpreter's lock is let go meanwhile.
PASS = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, WORD, WORD, WORD)


@dataclass(frozen=True)
class MachineCode:
    function: Callable[..., int]
    holder: Any  # what owns the memory that the code is in

    def run(self, numbers: int, seen: int, part: int, parts: int) -> int:
        """See `compilation.enter`; `numbers` is where they begin."""
        outcome, exception = WORD(), WORD()
        self.function(ctypes.addressof(outcome), ctypes.addressof(exception), numbers, seen, part, parts)
        return outcome.value


_loaded: list[MachineCode] = []  # in this process: one, or none yet
_loading = threading.Lock()  # compiling twice at a time takes twice as long


def get_machine_code(tell: Callable[[str], None] | None = None) -> MachineCode:
    """Found on disk, or made now; `tell` hears of that, for it takes a while."""
    with _loading:
        if not _loaded:
            path = find_place()
            found = None if path is None else read(path)
            _loaded.append(load(*(found or make(path, tell or (lambda sentence: None)))))
        return _loaded[0]


def make(path: Path | None, tell: Callable[[str], None]) -> tuple[str, bytes]:
    """The function's name, and the object file, kept for the next time if there is a place for it."""
    tell("compiling the numba engine for this machine ...")
    begun = time.monotonic()
    from lilliput.decoding.engines.compiled.compilation import compile_pass

    name, code = compile_pass()
    kept = "; the machine code is kept for the next time" if path is not None and keep(path, name, code) else ""
    tell(f"compiled the numba engine in {time.monotonic() - begun:.1f} s{kept}")
    return name, code


def find_place() -> Path | None:
    """Code is kept for these sources, libraries and processor, and no others; None where nothing can be kept."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(norms.__file__)]  # the norms' epsilon is compiled in
    about = [version("numba"), version("llvmlite"), binding.get_process_triple(), binding.get_host_cpu_name()]
    about.append(binding.get_host_cpu_features().flatten())
    key = hashlib.sha256(b"".join(map(Path.read_bytes, sources)) + "\n".join(about).encode()).hexdigest()[:16]
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder / f"pass-{key}.o"


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


def load(name: str, code: bytes) -> MachineCode:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return MachineCode(PASS(engine.get_function_address(name)), engine)
