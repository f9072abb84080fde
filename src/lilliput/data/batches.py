"""Which tokens step n sees.

Owns: cutting documents into windows, packing windows into rows, and the order of rows, a pure function of (seed, epoch)
that is sliced over processes: neither evaluation, nor a restart, nor the number of processes changes it. Does not own:
token files (`prepare`) or tensors (NumPy arrays go out).

A window is at most `context` predictions of one document: it starts at the document's start or a multiple of `context`
from it, and its first input is the token before it (end-of-text for a document's first). A row is one or more windows,
each a document of its own to the model. Rows of like length are put together, so that little is padded.

B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

IGNORED = -100  # the target of padding: torch's own convention
POOL = 32  # batches whose rows are sorted by length together: enough to pad little, few enough to stay random


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T). `pos` and `doc` are None where every row is one window from position 0."""

    ids: Integers
    targets: Integers
    pos: Integers | None
    doc: Integers | None
    rows: Integers  # the rows' numbers in the packing, to name a batch by

    @property
    def tokens(self) -> int:
        """Predictions that count."""
        return int((self.targets != IGNORED).sum())


class Rows:
    """The windows of a token file, packed: `starts` and `lengths` of windows, and for each row a slice of them.

    `tokens` begins with an end-of-text; document i is tokens[offsets[i] : offsets[i + 1]], whose last is its
    end-of-text.
    """

    def __init__(self, tokens: NDArray[Any], offsets: Integers, context: int) -> None:
        self.tokens, self.context = tokens, context
        starts, lengths = cut_windows(offsets, context)
        order, borders = pack(lengths, context)
        self.starts, self.lengths, self.borders = starts[order], lengths[order], borders
        sums = np.concatenate(([0], np.cumsum(self.lengths)))
        self.sizes: Integers = sums[borders[1:]] - sums[borders[:-1]]  # predictions in each row

    def __len__(self) -> int:
        return len(self.borders) - 1

    def batch(self, rows: Integers) -> Batch:
        """The chosen rows side by side, padded on the right to the longest of them.

        No rows (a process may have none of an epoch's last batch) come out as one token of padding, so that its
        gradients are zeros and not missing.
        """
        shape = (max(1, len(rows)), int(self.sizes[rows].max(initial=1)))
        ids, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        pos, doc = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        for place, row in enumerate(rows):
            at = 0
            for number, window in enumerate(range(self.borders[row], self.borders[row + 1]), start=1):
                start, length = int(self.starts[window]), int(self.lengths[window])
                piece = np.asarray(self.tokens[start : start + length + 1], dtype=np.int64)
                here = slice(at, at + length)
                ids[place, here], targets[place, here] = piece[:-1], piece[1:]
                pos[place, here], doc[place, here] = np.arange(length), number
                at += length
        if (doc <= 1).all():
            # One window a row and padding after it: a causal model needs no mask to ignore what comes later.
            return Batch(ids, targets, None, None, rows)
        return Batch(ids, targets, pos, doc, rows)

    def sample(self, count: int, seed: int) -> Integers:
        """A fixed sample of rows, sorted by length."""
        chosen = np.random.default_rng((seed, len(self))).permutation(len(self))[:count]
        return by_length(chosen, self.sizes)

    def in_order(self, batch: int) -> Iterator[Batch]:
        """Every row once, longest first."""
        rows = by_length(np.arange(len(self)), self.sizes)
        for start in range(0, len(rows), batch):
            yield self.batch(rows[start : start + batch])


def by_length(rows: Integers, sizes: Integers) -> Integers:
    return rows[np.argsort(-sizes[rows], kind="stable")]


def cut_windows(offsets: Integers, context: int) -> tuple[Integers, Integers]:
    """Where each window's first input stands, and how many predictions it holds. Each prediction is in one window."""
    begins, sizes = offsets[:-1] - 1, np.diff(offsets)  # a document of n tokens and its end is n + 1 predictions
    counts = -(-sizes // context)
    document = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = begins[document] + number * context
    lengths = np.minimum(context, sizes[document] - number * context)
    return starts, lengths


def pack(lengths: Integers, context: int) -> tuple[Integers, Integers]:
    """Best-fit decreasing: the windows in row order, and the borders of the rows in that order.

    Rows with the same room left are interchangeable, so a list of them for each amount of room makes it linear in
    windows.
    """
    rooms: list[list[int]] = [[] for _ in range(context + 1)]
    rows: list[list[int]] = []
    for window in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[window])
        room = next((room for room in range(length, context + 1) if rooms[room]), None)
        if room is None:
            rows.append([])
            row, room = len(rows) - 1, context
        else:
            row = rooms[room].pop()
        rows[row].append(window)
        if room > length:
            rooms[room - length].append(row)
    order = np.array([window for row in rows for window in row], dtype=np.int64)
    return order, np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)


class Batches:
    """The endless sequence of micro-batches of a run, with its position."""

    def __init__(self, rows: Rows, batch: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        self.rows, self.size, self.seed = rows, batch, seed
        self.rank, self.processes = rank, processes
        self.position = 0  # micro-batches taken
        self.epoch_batches = -(-len(rows) // batch)
        self.order: tuple[int, list[Integers]] | None = None

    def __next__(self) -> Batch:
        rows = self.at(self.position)
        self.position += 1
        return self.rows.batch(rows)

    def at(self, position: int) -> Integers:
        """This process's rows of a micro-batch: a pure function of (seed, position)."""
        epoch, index = divmod(position, self.epoch_batches)
        if self.order is None or self.order[0] != epoch:
            self.order = epoch, self.shuffle(epoch)
        return self.order[1][index][self.rank :: self.processes]

    def shuffle(self, epoch: int) -> list[Integers]:
        generator = np.random.default_rng((self.seed, epoch))
        shuffled = generator.permutation(len(self.rows))
        pool = POOL * self.size
        pools = [by_length(shuffled[start : start + pool], self.rows.sizes) for start in range(0, len(shuffled), pool)]
        batches = [rows[start : start + self.size] for rows in pools for start in range(0, len(rows), self.size)]
        return [batches[index] for index in generator.permutation(len(batches))]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
