"""The numba engine: a whole pass in machine code, for a CPU and few rows at a time.

Owns: `Rows` over the slots, and cutting what is to be read into passes. Does not own: the arithmetic (`kernels`, `products`),
the layout of weights (`packing`), keys and values (`slots`), the threads (`team`).

Every weight is read once a pass for all its rows, which is all that counts while they are few: a net of 7 million weights has
29 MB to be read for every token. A row's logits are the same alone and in any batch, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lilliput.decoding.engines.compiled.kernels import compute
from lilliput.decoding.engines.compiled.layout import CHUNK
from lilliput.decoding.engines.compiled.packing import Quantise, pack
from lilliput.decoding.engines.compiled.slots import Slots
from lilliput.decoding.engines.compiled.team import Team
from lilliput.model.transformer import Transformer

SMALL = 300_000  # weights below which a second thread costs more than it brings


def count_compilations() -> int:
    """How often in this process the pass was compiled, and not found on disk."""
    misses: dict[Any, int] = getattr(compute, "stats").cache_misses  # noqa: B009  # a function, for all that mypy knows
    return sum(misses.values())


class NumbaRows:
    """Handles of rows in the engine's slots, given back when the rows are no longer wanted."""

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
        slots.release([handle for place, handle in enumerate(old) if place not in taken])
        self.handles = new

    def pick(self, places: Sequence[int]) -> NumbaRows:
        return NumbaRows(self.engine, [self.engine.slots.copy_row(self.handles[place]) for place in places])

    def join(self, others: NumbaRows) -> None:
        assert others.engine is self.engine
        self.handles = self.handles + others.handles
        others.handles = []

    def truncate(self, length: int) -> None:
        slots = self.engine.slots
        assert all(0 <= length <= held for held in self.lengths)
        if not all(slots.can_truncate(handle, length) for handle in self.handles):
            raise ValueError(f"a windowed layer no longer holds what a length of {length} needs: prefill again")
        for handle in self.handles:
            slots.held[handle] = length

    @property
    def nbytes(self) -> int:
        return self.engine.slots.count_bytes(self.handles)


class NumbaEngine:
    """Holds a copy of the model's weights as they are now. `threads`: as many as torch uses, one for a very small net."""

    name = "numba"

    def __init__(self, model: Transformer, threads: int | None = None, quantise: Quantise = None) -> None:
        self.packed = pack(model, quantise)
        self.context = model.settings.context
        self.vocab_size = self.packed.plan.vocab_size
        self.slots = Slots(self.packed)
        weights = self.packed.floats.size + self.packed.bytes.size
        self.team = Team(self.packed, self.slots, threads or (1 if weights < SMALL else torch.get_num_threads()))

    def __del__(self) -> None:
        if hasattr(self, "team"):
            self.team.close()

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, NumbaRows]:
        rows = NumbaRows(self, [self.slots.new_row() for _ in views])
        return rows.step(views), rows

    def read(self, handles: Sequence[int], ids: Sequence[Sequence[int]]) -> Tensor:
        """Logits (B, V) after the last of the new tokens of each row."""
        assert len(ids) == len(handles) and all(ids), "every row takes at least one token"
        arrays, slots = self.team.arrays, self.slots
        lines: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        ends: list[int] = []  # the last token of each row
        for handle, new in zip(handles, ids, strict=True):
            held = slots.held[handle]
            lines += [handle] * len(new)
            positions += range(held, held + len(new))
            tokens += new
            ends.append(len(tokens) - 1)
        assert max(positions) < self.context, "a row holds no more than the context"
        passes = -(-len(tokens) // CHUNK)
        logits = []
        for part in range(passes):
            first, last = len(tokens) * part // passes, len(tokens) * (part + 1) // passes
            wanted = [end - first for end in ends if first <= end < last]
            size = last - first
            arrays.ids[:size], arrays.pos[:size] = tokens[first:last], positions[first:last]
            arrays.handles[:size], arrays.wanted[: len(wanted)] = lines[first:last], wanted
            slots.enter(lines[first:last], positions[first:last], arrays.slots)
            logits.append(self.team.run(size, len(wanted)))
        return torch.from_numpy(logits[0] if passes == 1 else np.concatenate(logits))
