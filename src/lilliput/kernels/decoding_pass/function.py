"""The compiled pass, as the threads call it.

Owns: what the function is given. Does not own: keeping and loading it (`kernels.code_cache`), making it
(`compilation`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lilliput.kernels.code_cache import Kernel

WORD = ctypes.c_int64
# Places for the outcome and for an exception, then numbers, seen, part and parts. The interpreter's lock is let go meanwhile.
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3, WORD, WORD, WORD)


def compile_pass() -> tuple[str, bytes]:
    from lilliput.kernels.decoding_pass.compilation import compile_pass

    return compile_pass()


PASS = Kernel("pass", "the numba engine", sorted(Path(__file__).parent.glob("*.py")), compile_pass)


@dataclass(frozen=True)
class MachineCode:
    function: Callable[..., int]

    def run(self, numbers: int, seen: int, part: int, parts: int) -> int:
        """See `compilation.enter`; `numbers` is where they begin."""
        outcome, exception = WORD(), WORD()
        self.function(ctypes.addressof(outcome), ctypes.addressof(exception), numbers, seen, part, parts)
        return outcome.value


def get_machine_code(tell: Callable[[str], None] | None = None) -> MachineCode:
    """Found on disk, or made now; `tell` hears of that."""
    return MachineCode(FUNCTION(PASS.load(tell)))
