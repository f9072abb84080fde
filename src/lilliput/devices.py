"""What the machine does well.

Owns: choosing the device and the type of numbers, the number of threads, and what torch and the memory allocator are told
once at the start. Does not own: anything that is computed there.
"""

from __future__ import annotations

import ctypes
import time

import torch

from lilliput.errors import UserError


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one, else the CPU."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((kind for kind, is_there in found.items() if is_there), "cpu")
    if not found.get(name, True):
        raise UserError(f"there is no {name} device that torch can use here", None, "the device cpu, or auto")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UserError(f"there is no kind of device {name!r}", None, "cpu, cuda, mps or auto") from error


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """`auto` is float32: the one type that every device computes fast and safely."""
    if name == "float64" and device.type == "mps":
        raise UserError("train.precision is float64, and mps knows no float64", hint="--train.device cpu")
    return torch.float64 if name == "float64" else torch.float32


def prepare_machine(threads: int | None) -> None:
    """Once, before the first tensor of size."""
    if threads is not None:
        torch.set_num_threads(threads)
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed: every step asks for the same blocks again, and each that went back to the kernel costs
    page faults (about 90,000 in a step of a 6M-parameter model). False where there is no mallopt (macOS, Windows, musl)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # the numbers of malloc.h
    wanted = ((mmap_threshold, 1 << 30), (trim_threshold, 2**31 - 1), (top_pad, 64 << 20))
    done = [bool(mallopt(name, value)) for name, value in wanted]
    return all(done)


def measure_flops(size: int = 1024, seconds: float = 0.2) -> float:
    """Floating-point operations per second of a float32 matrix product on this CPU, measured."""
    a = torch.randn(size, size)
    torch.mm(a, a)
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        began = time.perf_counter()
        torch.mm(a, a)
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)
