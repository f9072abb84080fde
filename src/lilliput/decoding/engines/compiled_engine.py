"""The numba engine: a whole forward pass in compiled code, for small batches on a CPU.

Owns: `NumbaRows`, and splitting tokens into passes. Does not own: the arithmetic, the key-value slots and the threads
(`kernels.decoding_pass`), or the layout of weights (`compiled_weights`).

A pass reads every weight once for all rows. With few rows this memory traffic is the whole cost: 29 MB per token for a
model of 7 million weights. The logits of a row are the same alone and in any batch, bit for bit. An engine must not be used
by two threads at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lilliput.decoding.engines.compiled_weights import Quantise, pack
from lilliput.kernels.decoding_pass.key_value_slots import KeyValueSlots
from lilliput.kernels.decoding_pass.layout import CHUNK
from lilliput.kernels.decoding_pass.thread_team import ThreadTeam
from lilliput.kernels.machine_load import MachineLoad, machine_load
from lilliput.kernels.registers import PANEL, padded
from lilliput.model.transformer import Transformer

SMALL = 300_000  # number of weights below which a second thread costs more time than it saves


class NumbaRows:
    """Handles of rows in the engine's slots, released when this object is deleted."""

    def __init__(self, engine: NumbaEngine, handles: list[int]) -> None:
        self.engine, self.handles = engine, handles

    def __del__(self) -> None:
        self.engine.slots.release(self.handles)

    @property
    def lengths(self) -> list[int]:
        return [self.engine.slots.held[handle] for handle in self.handles]

    def step(self, ids: Sequence[Sequence[int]]) -> Tensor:
        return self.engine.read(self.handles, ids)

    def reorder(self, places: Sequence[int]) -> None:
        slots, old = self.engine.slots, self.handles
        taken: set[int] = set()
        new = []
        for place in places:
            new.append(slots.copy_row(old[place]) if place in taken else old[place])
            taken.add(place)
        self.handles = new
        slots.release([handle for place, handle in enumerate(old) if place not in taken])

    def pick(self, places: Sequence[int]) -> NumbaRows:
        return NumbaRows(self.engine, [self.engine.slots.copy_row(self.handles[place]) for place in places])

    def join(self, others: NumbaRows) -> None:
        assert others.engine is self.engine
        joined, others.handles = others.handles, []  # in this order: a handle must not be released twice
        self.handles = self.handles + joined

    def truncate(self, length: int) -> None:
        slots = self.engine.slots
        cut = [handle for handle in self.handles if slots.held[handle] > length]
        if not all(slots.can_truncate(handle, length) for handle in cut):
            raise ValueError(f"a windowed layer has dropped keys that length {length} requires: prefill again")
        for handle in cut:
            slots.held[handle] = length

    @property
    def nbytes(self) -> int:
        return self.engine.slots.count_bytes(self.handles)


class NumbaEngine:
    """Computes with a copy of the model's current weights. `threads` defaults to torch's number, or 1 for a very small model,
    and to fewer while other programs use the CPUs."""

    name = "numba"

    def __init__(self, model: Transformer, threads: int | None = None, quantise: Quantise = None) -> None:
        self.packed = pack(model, quantise)
        self.context = model.settings.context
        self.slots = KeyValueSlots(self.packed)
        load = machine_load() if threads is None else None
        if threads is None:
            panels = padded(self.packed.plan.dim, PANEL) // PANEL  # of the smallest matrix: more threads would be idle
            weights = self.packed.floats.size + self.packed.bytes.size
            threads = 1 if weights < SMALL else min(torch.get_num_threads(), panels)
        self.team = self.new_team(threads, load)

    def new_team(self, threads: int, load: MachineLoad | None) -> ThreadTeam:
        team = ThreadTeam(self.packed, self.slots, threads, load)
        weakref.finalize(self, team.close)  # runs at the interpreter's exit too, when __del__ is not reliable
        return team

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, NumbaRows]:
        rows = NumbaRows(self, [self.slots.new_row() for _ in views])
        return rows.step(views), rows

    def read(self, handles: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens to rows and return the logits (B, V) after the last token of each row."""
        assert len(ids) == len(handles) and all(ids), "every row takes at least one token"
        if not self.team.usable:
            self.team.close()
            self.team = self.new_team(self.team.threads, self.team.load)
        slots = self.slots
        before = [slots.held[handle] for handle in handles]
        lines: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        ends: list[int] = []  # the last token of each row
        for handle, held, new in zip(handles, before, ids, strict=True):
            lines += [handle] * len(new)
            positions += range(held, held + len(new))
            tokens += new
            ends.append(len(tokens) - 1)
        # Compiled code does not check bounds: it would read other memory.
        if max(positions) >= self.context or min(tokens) < 0 or max(tokens) >= self.packed.plan.vocab_size:
            raise IndexError("a row exceeds the context, or a token id exceeds the vocabulary")
        try:
            return self.run_passes(lines, positions, tokens, ends)
        except BaseException:  # including KeyboardInterrupt: restore the rows' lengths
            for handle, held in zip(handles, before, strict=True):
                slots.held[handle] = held
            raise

    def run_passes(
        self, lines: Sequence[int], positions: Sequence[int], tokens: Sequence[int], ends: Sequence[int]
    ) -> Tensor:
        """Return the logits of the tokens at `ends`; `lines` are the handles of the tokens' rows."""
        arrays, passes, done = self.team.arrays, -(-len(tokens) // CHUNK), 0
        logits = np.empty((len(ends), self.packed.plan.vocab_size), np.float32)
        for part in range(passes):
            first, last = len(tokens) * part // passes, len(tokens) * (part + 1) // passes
            wanted = [end - first for end in ends if first <= end < last]
            size = last - first
            arrays.ids[:size], arrays.pos[:size] = tokens[first:last], positions[first:last]
            arrays.handles[:size], arrays.wanted[: len(wanted)] = lines[first:last], wanted
            self.slots.add_tokens(lines[first:last], positions[first:last], arrays.slots)
            # Copied by NumPy: torch would start its own threads for many rows.
            logits[done : done + len(wanted)] = self.team.run(size, len(wanted))
            done += len(wanted)
        return torch.from_numpy(logits)
