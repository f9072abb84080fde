"""Where keys and values of read tokens stand, and which rows see them.

Owns: the memory, in slots of one token (all layers of one window: a group), handles of rows, and their table
of slots. Does not own: what is written there (`loops`).

A row is a handle: a line of the table, which says for each position that the row still sees in which slot its
keys and values are. Rows may share slots, so that dropping, doubling and reordering rows moves lines of the
table at most, and no keys or values. A token that is read takes a slot of its own; slots that no line names
are found and taken again when the free ones run out.
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


class Slots:
    """`memory` and `table` are replaced when they grow (`grown` counts how often): never while a pass is running."""

    def __init__(self, packed: PackedWeights) -> None:
        plan = packed.plan
        self.head_step, self.sides = plan.head_step, 2 * plan.kv_heads  # heads of keys, then of values
        self.layers = packed.layers.copy()
        self.groups = np.zeros((len(packed.windows), GROUP_FIELDS), dtype=np.int64)
        self.groups[:, WINDOW] = packed.windows
        # Of a windowed row one window is kept, and a pass: its first token sees all of its own window when its last is written.
        self.groups[:, SPAN] = [min(plan.context, window - 1 + CHUNK) for window in packed.windows]
        self.groups[:, COLUMN] = np.cumsum(self.groups[:, SPAN]) - self.groups[:, SPAN]
        self.memory = np.zeros(0, dtype=np.float32)
        self.table = np.zeros((FIRST_ROWS, int(self.groups[:, SPAN].sum())), dtype=np.int32)
        self.held = [0] * FIRST_ROWS  # tokens of each row
        self.most = [0] * FIRST_ROWS  # that it ever held: what a ring has overwritten stays lost
        self.idle = list(reversed(range(FIRST_ROWS)))  # handles that nobody has
        self.free: list[Longs] = [np.zeros(0, dtype=np.int64) for _ in self.groups]
        self.grown = 0
        for group in range(len(self.groups)):
            self.grow(group, FIRST_SLOTS)

    def grow(self, group: int, capacity: int) -> None:
        """More slots; what the old ones hold stays in them."""
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
        self.free[group] = np.concatenate((self.free[group], np.arange(self.groups[group, CAPACITY], capacity)))
        self.layers[:, KEYS] = begins
        self.groups[group, CAPACITY] = capacity
        self.memory = memory
        self.grown += 1

    def take(self, group: int, count: int) -> Longs:
        """Slots for so many new tokens."""
        if len(self.free[group]) < count:
            self.collect(group, count)
        taken, self.free[group] = self.free[group][:count], self.free[group][count:]
        return taken

    def enter(self, handles: Sequence[int], positions: Sequence[int], slots: Longs) -> None:
        """New tokens of rows: each has a slot in every group, which is told in `slots` (groups, N)."""
        lines, places = np.array(handles), np.array(positions)
        for group, (_, column, span, _) in enumerate(self.groups.tolist()):
            taken = self.take(group, len(handles))
            slots[group, : len(handles)] = taken
            self.table[lines, column + places % span] = taken
        for handle, pos in zip(handles, positions, strict=True):
            self.held[handle] = pos + 1
            self.most[handle] = max(self.most[handle], pos + 1)

    def collect(self, group: int, count: int) -> None:
        """Find the slots that no row sees any more; grow unless that frees half of them, so that it is seldom done."""
        capacity = int(self.groups[group, CAPACITY])
        unused = np.ones(capacity, dtype=bool)
        for handle in set(range(len(self.held))).difference(self.idle):
            unused[self.line(handle, group)] = False
        self.free[group] = np.flatnonzero(unused)
        if len(self.free[group]) < max(count, capacity // 2):
            self.grow(group, max(2 * capacity, capacity + count))

    def line(self, handle: int, group: int) -> Ints:
        """The slots that a row names."""
        _, column, span, _ = self.groups[group]
        slots: Ints = self.table[handle, column : column + min(span, self.held[handle])]
        return slots

    def new_row(self) -> int:
        if not self.idle:
            rows = len(self.held)
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))
            self.held += [0] * rows
            self.most += [0] * rows
            self.idle += reversed(range(rows, 2 * rows))
            self.grown += 1
        handle = self.idle.pop()
        self.held[handle] = self.most[handle] = 0
        return handle

    def copy_row(self, handle: int) -> int:
        copy = self.new_row()
        self.table[copy] = self.table[handle]
        self.held[copy], self.most[copy] = self.held[handle], self.most[handle]
        return copy

    def release(self, handles: Sequence[int]) -> None:
        self.idle += handles

    def can_truncate(self, handle: int, length: int) -> bool:
        """Whether all is still held that the tokens after the first `length` may see."""
        oldest = np.maximum(0, self.most[handle] - self.groups[:, SPAN])
        return bool((oldest <= np.maximum(0, length - self.groups[:, WINDOW] + 1)).all())

    def count_bytes(self, handles: Sequence[int]) -> int:
        """Of the keys and values that these rows name; what they share is counted once."""
        tokens = 0
        for group in range(len(self.groups)):
            slots = np.concatenate([self.line(handle, group) for handle in handles])
            tokens += len(np.unique(slots)) * int((self.layers[:, GROUP] == group).sum())
        return tokens * self.sides * self.head_step * 4
