"""The compiled pass as a Python callable.

Owns: the C signature. Does not own: caching and loading (`kernels.code_cache`), compiling (`compilation`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lilliput.kernels.code_cache import Kernel

WORD = ctypes.c_int64
# Pointers to the result and to an exception, then numbers, last_round, thread, threads. ctypes releases the GIL
# during the call.
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, WORD, WORD, WORD)


def compile_pass() -> tuple[str, bytes]:
    from lilliput.kernels.decoding_pass.compilation import compile_pass

    return compile_pass()


PASS = Kernel("pass", "the numba engine", sorted(Path(__file__).parent.glob("*.py")), compile_pass)


@dataclass(frozen=True)
class MachineCode:
    function: Callable[..., int]

    def run(self, numbers: int, last_round: int, thread: int, threads: int) -> int:
        """Call `compilation.run_pass`; `numbers` is the address of the array of numbers."""
        result, exception = WORD(), WORD()
        self.function(ctypes.addressof(result), ctypes.addressof(exception), numbers, last_round, thread, threads)
        return result.value


def get_machine_code(report: Callable[[str], None] | None = None) -> MachineCode:
    """Load the cached code or compile it; `report` gets messages about a compilation."""
    return MachineCode(FUNCTION(PASS.load(report)))
