"""Device, precision, threads and the measured speed of the machine.

Owns: the choice of device and floating-point type, global settings of torch and of the memory allocator, the memory of a
device, and the speed of matrix products, which is measured once per machine and stored in the cache folder of the user.
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
from typing import Any, NamedTuple, TypeGuard

import torch

from lilliput.errors import UserError
from lilliput.storage.atomic_files import json_bytes, parse_object, write_whole
from lilliput.storage.environment import machine_memory

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
WORTH = 1.1  # minimum speed of bfloat16 relative to float32: its lower precision must be worth it
LONG_ENOUGH = 2e-3  # seconds of one product, so that its overhead is small
LARGEST = 8192  # 256 MB in float32
MEASUREMENTS = "machine.json"  # in the cache folder


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one, else the CPU."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((kind for kind, is_there in found.items() if is_there), "cpu")
    if not found.get(name, True):
        what, fix = f"device {name!r} is not available on this machine", "set train.device to cpu or auto"
        raise UserError(what, None, fix=fix, code="device.missing", setting="train.device")
    try:
        return torch.device(name)
    except RuntimeError as error:
        what, fix = f"unknown device {name!r}", "set train.device to cpu, cuda, mps or auto"
        raise UserError(what, None, fix=fix, code="device.missing", setting="train.device") from error


class PrecisionChoice(NamedTuple):
    """The floating-point type of products, and a note for the user."""

    dtype: torch.dtype
    note: str | None


def choose_precision(name: str, device: torch.device) -> PrecisionChoice:
    """Return the precision; `auto` is bfloat16 if it is measured faster than float32, else float32 (float16 can overflow)."""
    wanted = PRECISIONS["bfloat16" if name == "auto" else name]
    if wanted in (torch.float32, torch.float64):
        if wanted is torch.float64 and device.type == "mps":
            what, fix = "float64 requires a device other than mps", "set train.device to cpu"
            raise UserError(what, fix=fix, code="device.precision", setting="train.precision")
        return PrecisionChoice(wanted, None)
    here, called = "CPU" if device.type == "cpu" else device.type, "bfloat16" if name == "auto" else name
    try:
        ratio = known_flops(device, wanted) / known_flops(device, torch.float32)
    except (RuntimeError, TypeError) as error:  # torch raises these for types that the device does not support
        if name == "auto":
            return PrecisionChoice(torch.float32, f"using float32: this {here} does not support bfloat16")
        what, fix = f"this {here} does not support {name}", "set train.precision to auto"
        raise UserError(what, fix=fix, code="device.precision", setting="train.precision") from error
    comparison = f"{called} is {format_ratio(ratio)} than float32 on this {here}"
    if name == "auto":
        chosen = wanted if ratio >= WORTH else torch.float32
        return PrecisionChoice(chosen, f"using {'bfloat16' if chosen is wanted else 'float32'}: {comparison}")
    return PrecisionChoice(wanted, comparison if ratio < 1.0 else None)


def format_ratio(ratio: float) -> str:
    """Return a ratio of speeds with two digits: 0.0083 -> "120 times slower"."""
    size = max(ratio, 1.0 / ratio)
    digits = 1 - math.floor(math.log10(size))
    return f"{round(size, digits):,.{max(digits, 0)}f} times {'faster' if ratio >= 1.0 else 'slower'}"


def prepare_machine(threads: int | None) -> None:
    """Set the number of threads and configure the allocator, once, before the first large tensor."""
    if threads is not None:
        torch.set_num_threads(threads)
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory; return False where there is no mallopt (macOS, Windows, musl).

    Every step allocates the same blocks again, and memory that was returned to the kernel costs page faults (about 90,000
    per step of a 6M-parameter model)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # constants of malloc.h
    wanted = ((mmap_threshold, 1 << 30), (trim_threshold, 2**31 - 1), (top_pad, 64 << 20))
    done = [bool(mallopt(name, value)) for name, value in wanted]
    return all(done)


def known_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the highest FLOP/s known in this type on this machine: of products, measured once, or of training, if it was
    faster (`remember_reached`). On a CPU it is that of all threads.

    If the cache cannot be read or written, the measurement (0.2 s) is repeated."""
    kind = str(dtype).removeprefix("torch.")
    found = recall(device).get(kind)
    if not is_measured(found):
        found = measure_flops(device, dtype)
        remember(device, kind, found)
    return found * (torch.get_num_threads() if device.type == "cpu" else 1)


def remember_reached(device: torch.device, dtype: torch.dtype, flops: float) -> None:
    """Store a speed that training reached and that is above the measured one: other programs disturbed the measurement."""
    speed = flops / (torch.get_num_threads() if device.type == "cpu" else 1)
    kind = str(dtype).removeprefix("torch.")
    found = recall(device).get(kind)
    if not is_measured(found) or speed > found:
        remember(device, kind, speed)


def is_measured(value: Any) -> TypeGuard[float]:
    """Return whether a value of the cache can be a measurement: a positive number."""
    return isinstance(value, float) and 0.0 < value < math.inf


def recall(device: torch.device) -> dict[str, Any]:
    """Return what was measured on this machine, by name; nothing if the cache cannot be read."""
    found = read_measurements().get(name_machine(device))
    return found if isinstance(found, dict) else {}


def remember(device: torch.device, name: str, value: Any) -> None:
    """Store a measurement of this machine, a value of JSON, if the cache can be written."""
    with suppress(OSError, UserError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        measured = recall(device) | {name: value}
        write_whole(cache_folder() / MEASUREMENTS, json_bytes(read_measurements() | {name_machine(device): measured}))


def read_measurements() -> dict[str, Any]:
    """Return the measurements of all machines that share this cache folder."""
    with suppress(OSError, ValueError):
        return parse_object((cache_folder() / MEASUREMENTS).read_bytes())
    return {}


def device_memory(device: torch.device) -> int | None:
    """Return the memory of the GPU, or of the machine, in bytes; None where the system does not report it."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of this process in bytes: on a CUDA device that of its tensors, else that of the process; None
    where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory(device: torch.device) -> None:
    """Return freed memory to the system and set the peak to the present memory, where the system allows it (Linux, CUDA).

    Work that is not part of a run, such as the measurement of a step, must not count in the peak of the run."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def cache_folder() -> Path:
    """Return the cache folder of this user: $XDG_CACHE_HOME/lilliput, by default ~/.cache/lilliput."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lilliput"


def name_machine(device: torch.device) -> str:
    """Return what determines the speed: the processor and the version of torch."""
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
    """Return the model name with a digest of the CPU features: virtual machines use one name for different processors."""
    first_core = cpuinfo.partition("\n\n")[0]
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first_core.splitlines())
    }
    features = fields.get("flags", fields.get("Features", ""))  # x86, ARM
    return f"{fields.get('model name', platform.machine())} {hashlib.sha256(features.encode()).hexdigest()[:8]}"


def measure_flops(device: torch.device, dtype: torch.dtype, seconds: float = 0.1) -> float:
    """Return the FLOP/s of the fastest of several square products; on a CPU, of one thread.

    One thread, because on busy cores two threads wait for each other up to a hundred times longer than they compute. Sizes
    are tried from small to large, because an emulated type can be a hundred times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = 256
        while True:
            a = torch.randn(size, size, device=device).to(dtype)
            time_product(a)  # the first call selects and prepares a kernel
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
    """Return the seconds of one product; on a CPU, the CPU time of the thread."""
    clock = time.thread_time if a.device.type == "cpu" else time.perf_counter
    began = clock()
    torch.mm(a, a)
    getattr(torch, a.device.type).synchronize()
    return clock() - began
