"""What the tiles assume of a processor. Needs no numba, so that code which was compiled before is run without it."""

from __future__ import annotations

from llvmlite import binding  # type: ignore[import-untyped]

LINE = 64  # bytes of a cache line
LANES = 8  # numbers of 32 bits in a register of AVX2; LLVM makes do with other registers
PANEL = 16  # outputs of a panel: one cache line of float32 for each step of the depth, and one register of AVX-512
PAIR = 2  # steps of the depth that the tiles of whole numbers take at a time


def padded(width: int, unit: int) -> int:
    return -(-width // unit) * unit


def wide_registers() -> bool:
    """Whether the processor has AVX-512: 32 registers of 16 numbers, where AVX2 has 16 of 8."""
    return bool(binding.get_host_cpu_features().get("avx512f"))
