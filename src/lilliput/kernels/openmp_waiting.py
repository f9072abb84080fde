"""How torch's OpenMP threads wait for each other: by spinning, or by sleeping while other programs need the CPUs.

Owns: the choice, repeated while torch computes. Does not own: the load (`machine_load`), the threads (torch's libgomp).

A waiting thread of libgomp spins for some milliseconds before it sleeps. On a quiet machine that is fastest: the next
operation begins sooner. On a busy one the spinning thread keeps the CPU that the thread it waits for needs, and training
can be thirty times slower. libgomp spins only shortly if the process has more OpenMP threads than CPUs (its manual,
GOMP_SPINCOUNT). So on a busy machine a thread that does nothing holds additional OpenMP threads, which sleep; when the
others have ended, it lets them go. Results do not change: every operation has the same number of threads.

A user who sets GOMP_SPINCOUNT or OMP_WAIT_POLICY decides instead.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

import torch

from lilliput.kernels.machine_load import MachineLoad, machine_load
from lilliput.kernels.openmp import find_openmp_parallel

CHOSEN_BY_USER = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


class OpenMPWaiting:
    """`parallel` is GOMP_parallel."""

    def __init__(self, load: MachineLoad, parallel: Any) -> None:
        self.load, self.parallel = load, parallel
        self.released: threading.Event | None = None  # ends the thread that holds the others; None: spinning

    def adapt(self, threads: int) -> None:
        """Spin or sleep, by the load; `threads` compute together."""
        busy = self.load.undisturbed(threads) < threads
        if busy and self.released is None:
            self.released, held = threading.Event(), threading.Event()
            # The threads that compute, and these, are one more than there are CPUs.
            many = max(2, self.load.cpus - threads + 2)
            threading.Thread(
                target=self.hold, args=(many, held, self.released), daemon=True, name="lilliput load"
            ).start()
            held.wait()
        elif not busy and self.released is not None:
            self.released.set()
            self.released = None

    def hold(self, many: int, held: threading.Event, released: threading.Event) -> None:
        """Create `many` OpenMP threads (one is this thread). They belong to this thread, and end with it."""
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing
        self.parallel(nothing, None, many, 0)
        held.set()
        released.wait()


@cache
def openmp_waiting() -> OpenMPWaiting | None:
    """Return the choice for this process; None if the user has chosen, or torch does not use libgomp."""
    parallel = find_openmp_parallel()
    if parallel is None or any(name in os.environ for name in CHOSEN_BY_USER):
        return None
    return OpenMPWaiting(machine_load(), parallel)


def adapt_waiting() -> None:
    """Adapt the waiting of torch's threads to the load. Call this before each pass; it measures at most every 0.5 s."""
    if torch.compiler.is_compiling():
        return
    waiting, threads = openmp_waiting(), torch.get_num_threads()
    if waiting is not None and threads > 1:
        waiting.adapt(threads)
