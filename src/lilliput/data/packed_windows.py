"""Split documents into windows and pack windows into rows: arithmetic on lengths, millions of them in a second or two.

Owns: where windows start and how long they are (aligned, or one at every offset), and best-fit packing. Does
not own: tokens, batches and their order (`batches`).

A window has at most `context` predictions of one document. It *starts* at the token before its first prediction,
which is its first input; a document's first window starts at the separator before the document.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def predictions_of(offsets: Integers, ends: bool) -> Integers:
    """Return the number of predictions of each document: its tokens, plus one if the vocabulary has an end token."""
    return np.diff(offsets) if ends else np.diff(offsets) - 1


def cut_windows(offsets: Integers, context: int, ends: bool) -> tuple[Integers, Integers]:
    """Return the start and the number of predictions of each aligned window. Each prediction is in one window."""
    begins, sizes = offsets[:-1] - 1, predictions_of(offsets, ends)
    counts = -(-sizes // context)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # within its document
    starts = np.repeat(begins, counts) + number * context
    lengths = np.minimum(context, np.repeat(sizes, counts) - number * context)
    return starts, lengths


class OverlappingWindows:
    """A window of `context` predictions at every offset of every document; a shorter document is one window.

    There are nearly as many windows as tokens, so they are not stored: window i is found by a search in the documents.
    """

    def __init__(self, offsets: Integers, context: int, ends: bool) -> None:
        self.context, self.begins, self.predictions = context, offsets[:-1] - 1, predictions_of(offsets, ends)
        counts = np.where(self.predictions > 0, np.maximum(1, self.predictions - context + 1), 0)
        self.after: Integers = np.cumsum(counts)  # windows up to the end of each document
        self.firsts = self.after - counts

    def __len__(self) -> int:
        return int(self.after[-1])

    def find(self, windows: Integers) -> tuple[Integers, Integers]:
        """Return the starts and the numbers of predictions of these windows."""
        document = np.searchsorted(self.after, windows, side="right")
        starts = self.begins[document] + windows - self.firsts[document]
        return starts, np.minimum(self.context, self.predictions[document])


def pack(lengths: Integers, context: int) -> tuple[Integers, Integers]:
    """Pack by best-fit decreasing; return the windows in row order, and the borders of the rows in that order.

    A window goes to the row with the least free space that fits it; among equals, to the row that reached this
    space last. Windows of one length are placed together: the best row for one of them stays the best for the next
    until it is full, so all rows with equal free space are filled in one step.
    """
    small = np.uint16 if context < 1 << 16 else np.int64  # NumPy uses a radix sort for 16 bits
    longest_first = np.argsort((context - lengths).astype(small), kind="stable")
    row_of = np.empty(len(lengths), np.int64)  # of each window, longest first
    rows = placed = 0
    stacks: dict[int, list[Integers]] = {}  # rows by free space, in pieces, the newest at the end
    spaces: list[int] = []  # the keys of `stacks`, sorted

    def put(taken: Integers, space: int) -> None:
        if space and len(taken):
            if space not in stacks:
                bisect.insort(spaces, space)
            stacks.setdefault(space, []).append(taken)

    def take(space: int, most: int) -> Integers:
        """Remove and return at most `most` rows with this free space, the newest first."""
        newest = stacks[space].pop()
        if not stacks[space]:
            del stacks[space], spaces[bisect.bisect_left(spaces, space)]
        put(newest[:-most], space)
        return newest[::-1][:most]

    for length, left in reversed(list(enumerate(np.bincount(lengths).tolist()))):
        while left:
            at = bisect.bisect_left(spaces, length)
            space = spaces[at] if at < len(spaces) else context  # of a new row
            each = space // length
            needed = -(-left // each)
            if at < len(spaces):
                taken = take(space, needed)
            else:
                taken, rows = np.arange(rows, rows + needed), rows + needed
            count = min(left, each * len(taken))
            row_of[placed : placed + count] = np.repeat(taken, each)[:count]
            full, rest = divmod(count, each)
            put(taken[:full], space - each * length)
            put(taken[full:], space - rest * length)  # the last row, if too few windows are left to fill it
            placed, left = placed + count, left - count
    order = longest_first[np.argsort(row_of, kind="stable")]
    return order, np.concatenate(([0], np.cumsum(np.bincount(row_of, minlength=rows)))).astype(np.int64)
