"""The key-value cache of the compiled engine: memory in slots, and a table of the slots of each row.

Owns: the memory, in slots of one token (for all layers with the same window: a group), handles of rows, and the table of
slots. Does not own: the keys and values written there (`loops`).

A row is a handle: a line of the table, which holds the slot of each position that is still visible to the row. Rows may
share slots, so dropping, copying and reordering rows copies at most lines of the table, not keys or values. A new token
takes a new slot; when no slot is free, unused slots are collected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lilliput.kernels.decoding_pass.layout import (
    CAPACITY,
    CHUNK,
    COLUMN,
    GROUP,
    GROUP_FIELDS,
    KEYS,
    SPAN,
    WINDOW,
    Ints,
    Longs,
    PackedWeights,
    zeros_on_lines,
)

FIRST_SLOTS, FIRST_ROWS = 64, 4


class KeyValueSlots:
    """`memory` and `table` are replaced when they grow (`generation` counts this), never during a pass."""

    def __init__(self, packed: PackedWeights) -> None:
        plan = packed.plan
        self.head_step, self.sides = plan.head_step, 2 * plan.kv_heads  # heads of keys, then of values
        self.layers = packed.layers.copy()
        self.groups = np.zeros((len(packed.windows), GROUP_FIELDS), dtype=np.int64)
        self.groups[:, WINDOW] = packed.windows
        # A windowed row keeps a window plus a pass: the first token of a pass needs its window after the last is written.
        self.groups[:, SPAN] = [min(plan.context, window - 1 + CHUNK) for window in packed.windows]
        self.groups[:, COLUMN] = np.cumsum(self.groups[:, SPAN]) - self.groups[:, SPAN]
        self.memory = np.zeros(0, dtype=np.float32)
        self.table = np.zeros((FIRST_ROWS, int(self.groups[:, SPAN].sum())), dtype=np.int32)
        self.held = [0] * FIRST_ROWS  # tokens of each row
        self.most_held = [0] * FIRST_ROWS  # largest length that each row has had: a ring has overwritten older entries
        self.free_handles = list(reversed(range(FIRST_ROWS)))  # handles not in use
        self.free_slots: list[Longs] = [np.zeros(0, dtype=np.int64) for _ in self.groups]
        self.generation = 0
        for group in range(len(self.groups)):
            self.grow(group, FIRST_SLOTS)

    def grow(self, group: int, capacity: int) -> None:
        """Grow a group to `capacity` slots; the contents of the old ones are kept."""
        capacities = self.groups[:, CAPACITY].copy()
        capacities[group] = capacity
        sizes = self.sides * self.head_step * capacities[self.layers[:, GROUP]]
        begins = np.cumsum(sizes) - sizes
        memory = zeros_on_lines(int(sizes.sum()), np.float32)
        for row, begin in zip(self.layers, begins, strict=True):
            old, new = int(self.groups[row[GROUP], CAPACITY]), int(capacities[row[GROUP]])
            if old:
                shape = (self.sides, -1, self.head_step)
                before = self.memory[row[KEYS] : row[KEYS] + self.sides * old * self.head_step].reshape(shape)
                memory[begin : begin + self.sides * new * self.head_step].reshape(shape)[:, :old] = before
        self.free_slots[group] = np.concatenate(
            (self.free_slots[group], np.arange(self.groups[group, CAPACITY], capacity))
        )
        self.layers[:, KEYS] = begins
        self.groups[group, CAPACITY] = capacity
        self.memory = memory
        self.generation += 1

    def allocate(self, group: int, count: int) -> Longs:
        """Return free slots for `count` new tokens."""
        if len(self.free_slots[group]) < count:
            self.collect_unused(group, count)
        taken, self.free_slots[group] = self.free_slots[group][:count], self.free_slots[group][count:]
        return taken

    def add_tokens(self, handles: Sequence[int], positions: Sequence[int], slots: Longs) -> None:
        """Add new tokens to rows: write a new slot in every group to `slots` (groups, N) and to the table."""
        lines, places = np.array(handles), np.array(positions)
        for group, (_, column, span, _) in enumerate(self.groups.tolist()):
            taken = self.allocate(group, len(handles))
            slots[group, : len(handles)] = taken
            self.table[lines, column + places % span] = taken
        for handle, pos in zip(handles, positions, strict=True):
            self.held[handle] = pos + 1
            self.most_held[handle] = max(self.most_held[handle], pos + 1)

    def collect_unused(self, group: int, count: int) -> None:
        """Free the slots that no row refers to; grow unless that frees half of them, so that collections are rare."""
        capacity = int(self.groups[group, CAPACITY])
        unused = np.ones(capacity, dtype=bool)
        for handle in set(range(len(self.held))).difference(self.free_handles):
            unused[self.row_slots(handle, group)] = False
        self.free_slots[group] = np.flatnonzero(unused)
        if len(self.free_slots[group]) < max(count, capacity // 2):
            self.grow(group, max(2 * capacity, capacity + count))

    def row_slots(self, handle: int, group: int) -> Ints:
        """Return the slots that a row refers to."""
        _, column, span, _ = self.groups[group]
        slots: Ints = self.table[handle, column : column + min(span, self.held[handle])]
        return slots

    def new_row(self) -> int:
        if not self.free_handles:
            rows = len(self.held)
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))
            self.held += [0] * rows
            self.most_held += [0] * rows
            self.free_handles += reversed(range(rows, 2 * rows))
            self.generation += 1
        handle = self.free_handles.pop()
        self.held[handle] = self.most_held[handle] = 0
        return handle

    def copy_row(self, handle: int) -> int:
        copy = self.new_row()
        self.table[copy] = self.table[handle]
        self.held[copy], self.most_held[copy] = self.held[handle], self.most_held[handle]
        return copy

    def release(self, handles: Sequence[int]) -> None:
        self.free_handles += handles

    def can_truncate(self, handle: int, length: int) -> bool:
        """Return whether the row still holds all that is visible to tokens after the first `length`."""
        oldest = np.maximum(0, self.most_held[handle] - self.groups[:, SPAN])
        return bool((oldest <= np.maximum(0, length - self.groups[:, WINDOW] + 1)).all())

    def count_bytes(self, handles: Sequence[int]) -> int:
        """Return the bytes of keys and values of these rows; shared slots count once."""
        tokens = 0
        for group in range(len(self.groups)):
            slots = np.concatenate([self.row_slots(handle, group) for handle in handles])
            tokens += len(np.unique(slots)) * int((self.layers[:, GROUP] == group).sum())
        return tokens * self.sides * self.head_step * 4
