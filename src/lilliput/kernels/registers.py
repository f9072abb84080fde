"""Sizes of vectors and panels that the tiles assume. Imports no numba, so that cached code runs without it."""

from __future__ import annotations

from llvmlite import binding  # type: ignore[import-untyped]

LINE = 64  # bytes of a cache line
LANES = 8  # 32-bit numbers in an AVX2 register; LLVM splits or joins them for other registers
PANEL = 16  # outputs of a panel: one cache line of float32 per step of the depth, one AVX-512 register
PAIR = 2  # steps of the depth that integer tiles take at a time


def padded(width: int, unit: int) -> int:
    """Round up to a multiple of `unit`."""
    return -(-width // unit) * unit


def wide_registers() -> bool:
    """Return whether the processor has AVX-512: 32 registers of 16 floats (AVX2: 16 registers of 8)."""
    return bool(binding.get_host_cpu_features().get("avx512f"))
