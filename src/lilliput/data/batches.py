"""Rows, batches and their order.

Owns: rows (windows of text, labelled documents, or labelled windows), batches of rows, and the order of rows. The
order is a pure function of (seed, epoch), sliced over processes: evaluation, a restart and the number of processes
do not change it. Does not own: token files (`token_files`), the arithmetic of windows (`packed_windows`) or tensors
(batches are NumPy arrays).

A row of a language model has one or more windows, which the model sees as separate documents. The first input of a
window is the token before it, or `start` for the first window of a document. A row of a classifier is the beginning
of one document. A row of the task `both` is one window. Rows of similar length share a batch to reduce padding.

Shapes: B rows, T positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lilliput.data.packed_windows import Integers, OverlappingWindows, cut_windows, pack, predictions_of

if TYPE_CHECKING:
    from lilliput.data.prepare.token_files import TokenFile

IGNORED = -100  # the target or label of padding, torch's default ignore_index
POOL = 32  # batches whose rows are sorted by length together: enough for little padding, few enough to stay random


@dataclass(frozen=True)
class Batch(ABC):
    """Inputs (B, T), padded on the right. `pos` is None if no row needs it: see the subclasses."""

    ids: Integers
    pos: Integers | None  # within the document; -1 is padding
    rows: Integers  # numbers of the rows, which identify the batch

    @property
    @abstractmethod
    def tokens(self) -> int:
        """The number of tokens that count in the loss."""

    @property
    @abstractmethod
    def counts(self) -> tuple[int, ...]:
        """The divisors of the summed losses."""


@dataclass(frozen=True)
class LanguageBatch(Batch):
    """`pos` and `doc` are None if every row is one window: causal attention ignores the padding on the right."""

    targets: Integers  # (B, T)
    doc: Integers | None  # number of the window within its row; 0 is padding

    @property
    def tokens(self) -> int:
        return int((self.targets != IGNORED).sum())

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.tokens,)


@dataclass(frozen=True)
class BothBatch(LanguageBatch):
    """One window per row. `pos` is None if no row is padded: attention needs no mask, but the mean over a row does."""

    labels: Integers  # (B,), the label of the document in the row of its first window, else IGNORED

    @property
    def documents(self) -> int:
        return int((self.labels != IGNORED).sum())

    @property
    def counts(self) -> tuple[int, ...]:
        return self.tokens, self.documents


@dataclass(frozen=True)
class LabelledBatch(Batch):
    """`pos` is None if no row is padded. An encoder attends to the whole row, so padding needs a mask."""

    labels: Integers  # (B,)

    @property
    def tokens(self) -> int:
        return int((self.pos >= 0).sum()) if self.pos is not None else self.ids.size

    @property
    def counts(self) -> tuple[int, ...]:
        return (int((self.labels != IGNORED).sum()),)


AnyBatch = TypeVar("AnyBatch", bound=Batch)


class RowSource(ABC, Generic[AnyBatch]):
    """The rows of one split."""

    def __init__(self, file: TokenFile, context: int) -> None:
        # Plain arrays: indexing an np.memmap creates another memmap, at ten times the cost.
        self.tokens, self.offsets, self.context = np.asarray(file.tokens), np.asarray(file.offsets), context

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sizes(self, rows: Integers) -> Integers:
        """Return the number of tokens in each of these rows."""

    @abstractmethod
    def batch(self, rows: Integers) -> AnyBatch:
        """Return these rows as a batch, padded on the right to the longest of them.

        A batch without rows (possible for a process in the last batch of an epoch) has one token of padding, so that
        its gradients are zero instead of missing.
        """

    def sample(self, count: int, seed: int) -> Integers:
        """Return a random sample of rows that depends on the seed only, longest first."""
        chosen = shuffled(len(self), np.random.default_rng((seed, len(self))))[:count]
        return self.by_length(chosen.astype(np.int64))

    def in_order(self, batch: int, rank: int = 0, processes: int = 1) -> Iterator[AnyBatch]:
        """Yield every row once, longest first."""
        return self.cut(self.by_length(np.arange(len(self))), batch, rank, processes)

    def cut(self, rows: Integers, batch: int, rank: int = 0, processes: int = 1) -> Iterator[AnyBatch]:
        """Yield for each batch of these rows the part of one process."""
        for first in range(0, len(rows), batch):
            yield self.batch(rows[first : first + batch][rank::processes])

    def by_length(self, rows: Integers) -> Integers:
        return rows[np.argsort(-self.sizes(rows), kind="stable")]


class WindowRows(RowSource[AnyBatch]):
    """Rows of windows. `start` is the first input of a document."""

    def __init__(self, file: TokenFile, context: int, start: int) -> None:
        super().__init__(file, context)
        self.start = start

    def lay_out(self, rows: Integers, counts: Integers, starts: Integers, lengths: Integers) -> LanguageBatch:
        """Return a batch whose row i has `counts[i]` windows; `starts` and `lengths` list the windows of all rows."""
        after = np.cumsum(lengths)  # end of each window in the concatenated tokens of all rows
        row_after = np.concatenate(([0], after))[np.cumsum(counts)]
        sizes = np.diff(row_after, prepend=0)
        shape = (max(1, len(rows)), int(sizes.max(initial=1)))
        # For each token of all rows: its position in the window, and in the batch.
        within = np.arange(lengths.sum()) - np.repeat(after - lengths, lengths)
        place = np.arange(len(within)) + np.repeat(np.arange(len(rows)) * shape[1] - (row_after - sizes), sizes)
        source = np.repeat(starts, lengths) + within
        ids, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        ids.ravel()[place], targets.ravel()[place] = self.tokens[source], self.tokens[source + 1]
        begins = self.offsets[np.searchsorted(self.offsets, starts + 1)] == starts + 1  # first windows of documents
        ids.ravel()[place[(after - lengths)[begins]]] = self.start
        if counts.max(initial=1) == 1:
            return LanguageBatch(ids, None, rows, targets, None)
        pos, doc = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        number = np.arange(1, len(lengths) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
        pos.ravel()[place], doc.ravel()[place] = within, np.repeat(number, lengths)
        return LanguageBatch(ids, pos, rows, targets, doc)


class PackedRows(WindowRows[LanguageBatch]):
    """Aligned windows: each prediction once per epoch. Several short windows share a row."""

    def __init__(self, file: TokenFile, context: int, start: int) -> None:
        super().__init__(file, context, start)
        starts, lengths = cut_windows(self.offsets, context, file.ends)
        order, self.borders = pack(lengths, context)  # row i has the windows borders[i] to borders[i + 1]
        self.starts, self.lengths = starts[order], lengths[order]
        sums = np.concatenate(([0], np.cumsum(self.lengths)))
        self.row_sizes = np.diff(sums[self.borders])

    def __len__(self) -> int:
        return len(self.row_sizes)

    def sizes(self, rows: Integers) -> Integers:
        return self.row_sizes[rows]

    def batch(self, rows: Integers) -> LanguageBatch:
        firsts = self.borders[rows]
        counts = self.borders[rows + 1] - firsts
        windows = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return self.lay_out(rows, counts, self.starts[windows], self.lengths[windows])


class OverlappingRows(WindowRows[LanguageBatch]):
    """A window at every offset of every document, one per row."""

    def __init__(self, file: TokenFile, context: int, start: int) -> None:
        super().__init__(file, context, start)
        self.windows = OverlappingWindows(self.offsets, context, file.ends)

    def __len__(self) -> int:
        return len(self.windows)

    def sizes(self, rows: Integers) -> Integers:
        return self.windows.find(rows)[1]

    def batch(self, rows: Integers) -> LanguageBatch:
        return self.lay_out(rows, np.ones(len(rows), np.int64), *self.windows.find(rows))


class LabelledWindowRows(WindowRows[BothBatch]):
    """Aligned windows, one per row: each prediction once per epoch, and each label once, with the first window.

    A document without predictions (no tokens, and no end token in the vocabulary) is a row of padding with a label.
    """

    def __init__(self, file: TokenFile, context: int, start: int) -> None:
        super().__init__(file, context, start)
        assert file.labels is not None
        starts, lengths = cut_windows(self.offsets, context, file.ends)
        empty = self.offsets[:-1][predictions_of(self.offsets, file.ends) == 0] - 1
        self.starts = np.concatenate((starts, empty))
        self.lengths = np.concatenate((lengths, np.zeros_like(empty)))
        document = np.searchsorted(self.offsets, self.starts + 1, side="right") - 1
        first = self.offsets[document] == self.starts + 1
        self.labels = np.where(first, np.asarray(file.labels)[document], IGNORED).astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts)

    def sizes(self, rows: Integers) -> Integers:
        return self.lengths[rows]

    def batch(self, rows: Integers) -> BothBatch:
        starts, lengths = self.starts[rows], self.lengths[rows]
        some = lengths > 0
        plain = self.lay_out(rows, some.astype(np.int64), starts[some], lengths[some])
        real = plain.targets != IGNORED  # (B, T)
        pos = None if real.all() else np.where(real, np.arange(real.shape[1]), -1)
        labels = self.labels[rows] if len(rows) else np.array([IGNORED])
        return BothBatch(plain.ids, pos, rows, plain.targets, None, labels)


class DocumentRows(RowSource[LabelledBatch]):
    """Labelled documents: the first `context` tokens of each, without start and end tokens."""

    def __init__(self, file: TokenFile, context: int) -> None:
        super().__init__(file, context)
        assert file.labels is not None
        self.labels = np.asarray(file.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def sizes(self, rows: Integers) -> Integers:
        lengths: Integers = self.offsets[rows + 1] - 1 - self.offsets[rows]
        return np.minimum(self.context, lengths)

    def batch(self, rows: Integers) -> LabelledBatch:
        sizes = self.sizes(rows) if len(rows) else np.zeros(1, np.int64)
        column = np.arange(max(1, sizes.max()))
        real = column < sizes[:, None]  # (B, T)
        ids = np.zeros(real.shape, np.int64)
        ids[real] = self.tokens[(self.offsets[rows][:, None] + column)[real[: len(rows)]]]
        labels = self.labels[rows].astype(np.int64) if len(rows) else np.array([IGNORED])
        return LabelledBatch(ids, None if real.all() else np.where(real, column, -1), rows, labels)


def shuffled(count: int, generator: np.random.Generator) -> NDArray[Any]:
    """Return a random permutation, as uint32 if possible: overlapping windows are as numerous as tokens."""
    order = np.arange(count, dtype=np.uint32 if count <= 1 << 32 else np.int64)
    generator.shuffle(order)
    return order


class Batches(Generic[AnyBatch]):
    """The endless sequence of micro-batches of a run, with the position in it."""

    def __init__(self, rows: RowSource[AnyBatch], batch: int, seed: int, rank: int = 0, processes: int = 1) -> None:
        self.rows, self.size, self.seed = rows, batch, seed
        self.rank, self.processes = rank, processes
        self.position = 0  # micro-batches taken
        self.epoch_batches = -(-len(rows) // batch)
        self.order: tuple[int, NDArray[Any], NDArray[Any]] | None = None  # epoch, shuffled rows, shuffled batches
        self.taken = np.zeros(0, np.int64)  # rows of the last micro-batch, of all processes

    def __next__(self) -> AnyBatch:
        self.taken = self.at(self.position)
        self.position += 1
        return self.rows.batch(self.taken[self.rank :: self.processes])

    def at(self, position: int) -> Integers:
        """Return the rows of a micro-batch, of all processes: a pure function of (seed, position).

        Rows are shuffled, sorted by length within each pool, divided into batches, and the batches shuffled. Only the
        requested batch is computed.
        """
        epoch, index = divmod(position, self.epoch_batches)
        if self.order is None or self.order[0] != epoch:
            generator = np.random.default_rng((self.seed, epoch))
            self.order = epoch, shuffled(len(self.rows), generator), shuffled(self.epoch_batches, generator)
        _, rows, batches = self.order
        pool, inside = divmod(int(batches[index]), POOL)
        alike = self.rows.by_length(rows[pool * POOL * self.size :][: POOL * self.size].astype(np.int64))
        return alike[inside * self.size :][: self.size]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]
