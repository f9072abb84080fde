"""Threads that compute a pass: the thread of the caller, and helpers that wait for the next pass.

Owns: the arrays of a pass, the helper threads, their sleep. Does not own: the computation (`loops`).

A helper stays awake for some milliseconds after a pass, because the next pass usually starts sooner, and then sleeps.
Threads synchronise only in compiled code, so they do not wait for the GIL during a pass.

While other programs use the CPUs, fewer threads compute: a pass of two threads that share their CPUs with others takes up to
two hundred times as long as a pass of one. The number of threads does not change a bit of the result.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from lilliput.kernels.decoding_pass.compiled_function import get_machine_code
from lilliput.kernels.decoding_pass.key_value_slots import KeyValueSlots
from lilliput.kernels.decoding_pass.layout import (
    ANNOUNCE,
    ASLEEP,
    CHUNK,
    CLOSED,
    CONTROL,
    KEYS_AHEAD,
    KEYS_PER_STEP,
    LEAVE,
    ROUND,
    TOKENS,
    WANTED,
    Arrays,
    Floats,
    PackedWeights,
    addresses,
    build_scratch_layout,
    zeros_on_lines,
)
from lilliput.kernels.machine_load import MachineLoad
from lilliput.kernels.registers import padded


class ThreadTeam:
    """`load`: use fewer threads on a busy machine; None: always use all."""

    def __init__(self, packed: PackedWeights, slots: KeyValueSlots, threads: int, load: MachineLoad | None) -> None:
        self.slots, self.plan, self.threads, self.load = slots, packed.plan, threads, load
        self.active = threads  # threads that compute a pass
        self.layout, floats, shorts = build_scratch_layout(packed.plan, threads)
        control = np.zeros(CONTROL, dtype=np.int64)
        control[ASLEEP] = threads - 1
        ids, pos, handles, wanted = (np.zeros(CHUNK, dtype=np.int64) for _ in range(4))
        sizes = CHUNK, CHUNK, CHUNK * padded(packed.plan.context, KEYS_PER_STEP) + KEYS_AHEAD
        new_slots, list_begins, key_offsets = (np.zeros((len(slots.groups), size), dtype=np.int64) for size in sizes)
        self.arrays = Arrays(
            control, slots.layers, packed.head, slots.groups, packed.floats, packed.bytes,
            zeros_on_lines(floats, np.float32), np.zeros(shorts, np.int16), slots.memory, slots.table,
            ids, pos, handles, new_slots, list_begins, key_offsets, wanted,
        )  # fmt: skip
        self.generation = slots.generation
        self.process = os.getpid()
        self.closed = self.running = False
        self.code = get_machine_code()
        self.update_addresses()
        self.wake_events = [threading.Event() for _ in range(threads - 1)]
        for thread, event in enumerate(self.wake_events, start=1):
            threading.Thread(
                target=self.run_helper, args=(thread, event), daemon=True, name=f"lilliput {thread}"
            ).start()

    def run_helper(self, thread: int, event: threading.Event) -> None:
        last_round = 0
        while not self.closed:
            event.wait()
            event.clear()
            now = int(self.arrays.control[ROUND])
            if thread < self.active and now != last_round:  # else the event was set before the helper slept
                last_round = self.code.run(self.numbers_at, now - 1, thread, self.active)

    def run(self, tokens: int, wanted: int) -> Floats:
        """Compute one pass over the arrays; return logits (wanted, V), which are valid until the next pass."""
        if self.generation != self.slots.generation:
            self.replace_arrays()
        if self.load is not None and (active := self.load.undisturbed(self.threads)) != self.active:
            self.send_helpers_to_sleep()
            self.active = active
        control = self.arrays.control
        control[TOKENS], control[WANTED] = tokens, wanted
        self.running = True
        if self.active > 1 and self.code.run(self.numbers_at, 0, ANNOUNCE, self.active):
            for event in self.wake_events[: self.active - 1]:
                event.set()
        self.code.run(self.numbers_at, 0, 0, self.active)
        self.running = False
        first, step = self.layout.logits, self.layout.logits_step
        logits = self.arrays.scratch[first : first + wanted * step].reshape(wanted, step)
        return logits[:, : self.plan.vocab_size]

    def update_addresses(self) -> None:
        self.numbers = addresses(self.plan, self.layout, self.arrays)
        self.numbers_at = self.numbers.ctypes.data

    def replace_arrays(self) -> None:
        """Use the new memory and table after they have grown."""
        self.send_helpers_to_sleep()
        self.arrays = self.arrays._replace(memory=self.slots.memory, table=self.slots.table)
        self.update_addresses()
        self.generation = self.slots.generation

    def send_helpers_to_sleep(self) -> None:
        """Wait until all helpers have left the compiled code."""
        control = self.arrays.control
        control[LEAVE] = 1
        while control[ASLEEP] < self.threads - 1:
            time.sleep(0)
        control[LEAVE] = 0

    @property
    def usable(self) -> bool:
        """Return False after an interrupted pass (helpers still wait) and in a forked process (it has no helpers)."""
        return not self.running and self.process == os.getpid()

    def close(self) -> None:
        """End the helpers, also if they wait in an interrupted pass."""
        self.closed = True
        self.arrays.control[[LEAVE, CLOSED]] = 1
        for event in self.wake_events:
            event.set()
