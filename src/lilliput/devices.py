"""What the machine does well.

Owns: choosing the device and the type of numbers, the number of threads, what torch and the memory allocator
are told once at the start, and how fast products are here: measured once, and remembered for the machine in
the user's cache folder. Does not own: anything that is computed there.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from lilliput.errors import UserError
from lilliput.storage.atomic_files import json_bytes, parse_object, write_whole

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
WORTH = (
    1.1  # times faster than float32 that bfloat16 must be: its seven bits of precision are not given away for nothing
)
LONG_ENOUGH = 2e-3  # seconds of one product: starting it is little beside that
LARGEST = 8192  # 256 MB in float32


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one, else the CPU."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((kind for kind, is_there in found.items() if is_there), "cpu")
    if not found.get(name, True):
        what, fix = f"torch cannot use a {name} device on this machine", "set train.device to cpu or auto"
        raise UserError(what, None, fix=fix, code="device.missing", setting="train.device")
    try:
        return torch.device(name)
    except RuntimeError as error:
        what, fix = f"unknown device {name!r}", "set train.device to cpu, cuda, mps or auto"
        raise UserError(what, None, fix=fix, code="device.missing", setting="train.device") from error


class PrecisionChoice(NamedTuple):
    """The type that products are computed in, and what there is to say about it."""

    dtype: torch.dtype
    note: str | None


def choose_precision(name: str, device: torch.device) -> PrecisionChoice:
    """`auto` is bfloat16 where it is measured to be faster than float32, else float32; never float16, which can overflow."""
    wanted = PRECISIONS["bfloat16" if name == "auto" else name]
    if wanted in (torch.float32, torch.float64):
        if wanted is torch.float64 and device.type == "mps":
            what, fix = "train.precision is float64, which mps does not support", "set train.device to cpu"
            raise UserError(what, fix=fix, code="device.precision", setting="train.precision")
        return PrecisionChoice(wanted, None)
    here, called = "CPU" if device.type == "cpu" else device.type, "bfloat16" if name == "auto" else name
    try:
        ratio = known_flops(device, wanted) / known_flops(device, torch.float32)
    except (RuntimeError, TypeError) as error:  # what torch raises for a type that a device does not have
        if name == "auto":
            return PrecisionChoice(torch.float32, f"this {here} has no bfloat16: using float32")
        what, fix = f"train.precision is {name}, which this {here} does not support", "set train.precision to auto"
        raise UserError(what, fix=fix, code="device.precision", setting="train.precision") from error
    how = f"{called} is {tell_ratio(ratio)} than float32 on this {here}"
    if name == "auto":
        chosen = wanted if ratio >= WORTH else torch.float32
        return PrecisionChoice(chosen, f"{how}: using {'bfloat16' if chosen is wanted else 'float32'}")
    return PrecisionChoice(wanted, how if ratio < 1.0 else None)


def tell_ratio(ratio: float) -> str:
    """Two digits are more than a measurement is good for: 0.0083 -> "120 times slower"."""
    size = max(ratio, 1.0 / ratio)
    digits = 1 - math.floor(math.log10(size))
    return f"{round(size, digits):,.{max(digits, 0)}f} times {'faster' if ratio >= 1.0 else 'slower'}"


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


def known_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of products in this type, as they were once measured on this machine; on a CPU
    by all threads. A cache that cannot be read or written costs a fifth of a second, and nothing else."""
    path, machine, kind = cache_folder() / "machine.json", name_machine(device), str(dtype).removeprefix("torch.")
    known: dict[str, dict[str, float]] = {}
    with suppress(OSError, ValueError):
        known = parse_object(path.read_bytes())
    speeds = known.get(machine)
    speeds = speeds if isinstance(speeds, dict) else {}
    found = speeds.get(kind)
    if not isinstance(found, float) or not 0.0 < found < math.inf:
        found = speeds[kind] = measure_flops(device, dtype)
        with suppress(OSError, UserError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json_bytes({**known, machine: speeds}))
    return found * (torch.get_num_threads() if device.type == "cpu" else 1)


def cache_folder() -> Path:
    """Of this user: $XDG_CACHE_HOME/lilliput, by default ~/.cache/lilliput."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lilliput"


def name_machine(device: torch.device) -> str:
    """What decides a speed: the chip and torch."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif sys.platform == "linux":
        try:
            name = name_processor(Path("/proc/cpuinfo").read_text("utf-8", "replace"))
        except OSError:
            name = platform.machine()
    else:
        name = platform.processor()
    return f"{device.type} {name}, torch {torch.__version__}"


def name_processor(cpuinfo: str) -> str:
    """Virtual machines call very different chips by one name ("AMD EPYC"): what this one can do is told by a digest beside it."""
    first_core = cpuinfo.partition("\n\n")[0]
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first_core.splitlines())}
    abilities = told.get("flags", told.get("Features", ""))  # the second is ARM's word
    return f"{told.get('model name', platform.machine())} {hashlib.sha256(abilities.encode()).hexdigest()[:8]}"


def measure_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Of the quickest of several square products; on a CPU, by one thread.

    One: where other programs keep the cores busy, two threads wait for each other a hundred times longer than they compute, in
    every product. A type that is emulated can be a hundred times slower: sizes are tried from small to large, so that the time
    stays short.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = 256
        while True:
            a = torch.randn(size, size, device=device).to(dtype)
            time_product(a)  # the first of its kind chooses and prepares a kernel
            took = time_product(a)
            if took >= LONG_ENOUGH or size == LARGEST:
                break
            size *= 2
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            took = min(took, time_product(a))
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 / took


def time_product(a: torch.Tensor) -> float:
    """On a CPU the time that the thread computed: not what other programs took in between."""
    clock = time.thread_time if a.device.type == "cpu" else time.perf_counter
    began = clock()
    torch.mm(a, a)
    getattr(torch, a.device.type).synchronize()
    return clock() - began
