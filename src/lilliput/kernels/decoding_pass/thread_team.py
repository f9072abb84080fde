"""Threads that compute a pass together: the caller's own, and helpers that wait for the next pass.

Owns: the arrays of a pass, the helpers, their sleep. Does not own: what is computed (`loops`).

A helper stays awake for some milliseconds after a pass, for the next token comes in less, and then sleeps.
Nothing but the compiled code is shared by threads, so that the interpreter's lock is never waited for.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from lilliput.kernels.decoding_pass.function import get_machine_code
from lilliput.kernels.decoding_pass.key_value_slots import Slots
from lilliput.kernels.decoding_pass.layout import (
    ANNOUNCE,
    ASLEEP,
    CHUNK,
    CLOSED,
    CONTROL,
    KEYS_AHEAD,
    KEYS_TOGETHER,
    LEAVE,
    ROUND,
    TOKENS,
    WANTED,
    Arrays,
    Floats,
    PackedWeights,
    addresses,
    build_room,
    zeros_on_lines,
)
from lilliput.kernels.registers import padded


class Team:
    def __init__(self, packed: PackedWeights, slots: Slots, parts: int) -> None:
        self.slots, self.plan, self.parts = slots, packed.plan, parts
        self.room, floats, shorts = build_room(packed.plan, parts)
        control = np.zeros(CONTROL, dtype=np.int64)
        control[ASLEEP] = parts - 1
        ids, pos, handles, wanted = (np.zeros(CHUNK, dtype=np.int64) for _ in range(4))
        sizes = CHUNK, CHUNK, CHUNK * padded(packed.plan.context, KEYS_TOGETHER) + KEYS_AHEAD
        new_slots, begins, places = (np.zeros((len(slots.groups), size), dtype=np.int64) for size in sizes)
        self.arrays = Arrays(
            control, slots.layers, packed.head, slots.groups, packed.floats, packed.bytes,
            zeros_on_lines(floats, np.float32), np.zeros(shorts, np.int16), slots.memory, slots.table,
            ids, pos, handles, new_slots, begins, places, wanted,
        )  # fmt: skip
        self.grown = slots.grown
        self.process = os.getpid()
        self.closed = self.running = False
        self.code = get_machine_code()
        self.tell_addresses()
        self.bells = [threading.Event() for _ in range(parts - 1)]
        for part, bell in enumerate(self.bells, start=1):
            threading.Thread(target=self.help, args=(part, bell), daemon=True, name=f"lilliput {part}").start()

    def help(self, part: int, bell: threading.Event) -> None:
        seen = 0
        while not self.closed:
            bell.wait()
            bell.clear()
            if self.arrays.control[ROUND] != seen:  # else the bell rang before it had fallen asleep
                seen = self.code.run(self.numbers_at, seen, part, self.parts)

    def run(self, tokens: int, wanted: int) -> Floats:
        """One pass over what stands in the arrays; logits (wanted, V), which stay until the next one."""
        if self.grown != self.slots.grown:
            self.renew()
        control = self.arrays.control
        control[TOKENS], control[WANTED] = tokens, wanted
        self.running = True
        if self.parts > 1 and self.code.run(self.numbers_at, 0, ANNOUNCE, self.parts):
            for bell in self.bells:
                bell.set()
        self.code.run(self.numbers_at, 0, 0, self.parts)
        self.running = False
        first, step = self.room.logits, self.room.logits_step
        logits = self.arrays.scratch[first : first + wanted * step].reshape(wanted, step)
        return logits[:, : self.plan.vocab_size]

    def tell_addresses(self) -> None:
        self.numbers = addresses(self.plan, self.room, self.arrays)
        self.numbers_at = self.numbers.ctypes.data

    def renew(self) -> None:
        """Memory or table have grown: everybody is given the new ones, after all have left the compiled code."""
        control = self.arrays.control
        control[LEAVE] = 1
        while control[ASLEEP] < self.parts - 1:
            time.sleep(0)
        control[LEAVE] = 0
        self.arrays = self.arrays._replace(memory=self.slots.memory, table=self.slots.table)
        self.tell_addresses()
        self.grown = self.slots.grown

    @property
    def usable(self) -> bool:
        """Not after a pass that was broken off, in which helpers still wait, nor in a forked process, which has none."""
        return not self.running and self.process == os.getpid()

    def close(self) -> None:
        """The helpers end, and leave a pass that was broken off."""
        self.closed = True
        self.arrays.control[[LEAVE, CLOSED]] = 1
        for bell in self.bells:
            bell.set()
