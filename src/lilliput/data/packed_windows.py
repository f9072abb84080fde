"""Documents cut into windows, windows packed into rows: arithmetic on lengths, for millions of them in a second or two.

Owns: where windows begin and how long they are (aligned, or one at every offset), and best-fit packing. Does
not own: tokens, batches and their order (`batches`).

A window is at most `context` predictions of one document. The token before it is its first input, so it
*starts* there: a document's first window at the separator before the document.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def predictions_of(offsets: Integers, ends: bool) -> Integers:
    """Predictions of each document: its tokens, and its end where the vocabulary has a token for that."""
    return np.diff(offsets) if ends else np.diff(offsets) - 1


def cut_windows(offsets: Integers, context: int, ends: bool) -> tuple[Integers, Integers]:
    """Where each aligned window starts, and how many predictions it holds. Each prediction is in one window."""
    begins, sizes = offsets[:-1] - 1, predictions_of(offsets, ends)
    counts = -(-sizes // context)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # within its document
    starts = np.repeat(begins, counts) + number * context
    lengths = np.minimum(context, np.repeat(sizes, counts) - number * context)
    return starts, lengths


class OverlappingWindows:
    """A window of `context` predictions at every offset of every document; a shorter document is one window.

    There are nearly as many as tokens, so none is kept: window i is found by a search among the documents.
    """

    def __init__(self, offsets: Integers, context: int, ends: bool) -> None:
        self.context, self.begins, self.predictions = context, offsets[:-1] - 1, predictions_of(offsets, ends)
        counts = np.where(self.predictions > 0, np.maximum(1, self.predictions - context + 1), 0)
        self.after: Integers = np.cumsum(counts)  # windows up to and with each document
        self.firsts = self.after - counts

    def __len__(self) -> int:
        return int(self.after[-1])

    def find(self, windows: Integers) -> tuple[Integers, Integers]:
        """Where these start, and how many predictions they hold."""
        document = np.searchsorted(self.after, windows, side="right")
        starts = self.begins[document] + windows - self.firsts[document]
        return starts, np.minimum(self.context, self.predictions[document])


def pack(lengths: Integers, context: int) -> tuple[Integers, Integers]:
    """Best-fit decreasing: the windows in row order, and the borders of the rows in that order.

    A window goes to the row with the least room that holds it; of such rows, to the one that came to this room last.
    Windows of one length are placed together: a row that is the best fit for one of them stays so for the next until it
    holds no more, so all rows of one room take their share in one stroke.
    """
    small = np.uint16 if context < 1 << 16 else np.int64  # NumPy sorts 16 bits by counting them
    longest_first = np.argsort((context - lengths).astype(small), kind="stable")
    row_of = np.empty(len(lengths), np.int64)  # of each window, longest first
    rows = placed = 0
    stacks: dict[int, list[Integers]] = {}  # by room: rows in pieces, the newest at the end
    rooms: list[int] = []  # those of the stacks, sorted

    def put(taken: Integers, room: int) -> None:
        if room and len(taken):
            if room not in stacks:
                bisect.insort(rooms, room)
            stacks.setdefault(room, []).append(taken)

    def take(room: int, most: int) -> Integers:
        """Up to so many rows that have this room, the newest first."""
        newest = stacks[room].pop()
        if not stacks[room]:
            del stacks[room], rooms[bisect.bisect_left(rooms, room)]
        put(newest[:-most], room)
        return newest[::-1][:most]

    for length, left in reversed(list(enumerate(np.bincount(lengths).tolist()))):
        while left:
            at = bisect.bisect_left(rooms, length)
            room = rooms[at] if at < len(rooms) else context  # of a new row
            each = room // length
            needed = -(-left // each)
            if at < len(rooms):
                taken = take(room, needed)
            else:
                taken, rows = np.arange(rows, rows + needed), rows + needed
            count = min(left, each * len(taken))
            row_of[placed : placed + count] = np.repeat(taken, each)[:count]
            full, rest = divmod(count, each)
            put(taken[:full], room - each * length)
            put(taken[full:], room - rest * length)  # the last, where the windows are too few to fill it
            placed, left = placed + count, left - count
    order = longest_first[np.argsort(row_of, kind="stable")]
    return order, np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=rows)))).astype(np.int64)
