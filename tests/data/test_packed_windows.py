"""Windows and packing: the vectorised arithmetic equals a plain loop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.packed_windows import OverlappingWindows, cut_windows, pack

contexts = st.integers(1, 9)
corpora = st.lists(st.integers(0, 23), min_size=1, max_size=40)  # tokens of each document, without the end token


def offsets_of(sizes: list[int]) -> np.ndarray:
    return np.concatenate(([1], 1 + np.cumsum(np.array(sizes) + 1))).astype(np.int64)


def pack_by_loop(lengths: list[int], context: int) -> list[list[int]]:
    """Return the rows of best-fit decreasing as lists of windows, one window at a time."""
    rooms: list[list[int]] = [[] for _ in range(context + 1)]
    rows: list[list[int]] = []
    for window in sorted(range(len(lengths)), key=lambda window: -lengths[window]):
        length = lengths[window]
        room = next((room for room in range(length, context + 1) if rooms[room]), None)
        if room is None:
            rows.append([])
            row, room = len(rows) - 1, context
        else:
            row = rooms[room].pop()
        rows[row].append(window)
        if room > length:
            rooms[room - length].append(row)
    return rows


@given(context=st.integers(1, 30), data=st.data())
def test_packing_equals_a_plain_loop(context: int, data: st.DataObject) -> None:
    """The order of windows and rows is equal too, so that older runs stay reproducible."""
    lengths = data.draw(st.lists(st.integers(1, context), max_size=150))
    order, borders = pack(np.array(lengths, np.int64), context)
    found = [order[first:after].tolist() for first, after in itertools.pairwise(borders)]
    assert found == pack_by_loop(lengths, context)


def test_packing_many_windows_equals_a_plain_loop() -> None:
    """Enough windows of each length to fill thousands of rows, the last one partly."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(64, generator.geometric(0.05, 20_000))
    order, borders = pack(lengths, 64)
    found = [order[first:after].tolist() for first, after in itertools.pairwise(borders)]
    assert found == pack_by_loop(lengths.tolist(), 64)


@given(sizes=corpora, context=contexts, ends=st.booleans())
def test_there_is_a_window_at_every_offset(sizes: list[int], context: int, ends: bool) -> None:
    offsets = offsets_of(sizes)
    windows = OverlappingWindows(offsets, context, ends)
    expected = []
    for begin, size in zip(offsets[:-1] - 1, sizes, strict=True):
        predictions = size + ends
        last = max(0, predictions - context)
        expected += [(begin + at, min(context, predictions)) for at in range(last + 1) if predictions]
    starts, lengths = windows.find(np.arange(len(windows)))
    assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == expected


@given(sizes=corpora, context=contexts, ends=st.booleans())
def test_aligned_windows_are_every_context_th_overlapping_window(sizes: list[int], context: int, ends: bool) -> None:
    """The windows of a document are adjacent and contain each prediction once."""
    offsets = offsets_of(sizes)
    starts, lengths = cut_windows(offsets, context, ends)
    assert (lengths > 0).all() and (lengths <= context).all()
    predicted = [int(start) + 1 + at for start, length in zip(starts, lengths, strict=True) for at in range(length)]
    separators = set((offsets[1:] - 1).tolist())
    assert predicted == [at for at in range(1, offsets[-1]) if ends or at not in separators]


@pytest.mark.parametrize("context", [1, 1000, 1 << 16, 1 << 17])
def test_contexts_of_any_size(context: int) -> None:
    lengths = np.array([1, context, 1, max(1, context - 1)])
    order, borders = pack(lengths, context)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    assert [order[first:after].tolist() for first, after in itertools.pairwise(borders)] == pack_by_loop(
        lengths.tolist(), context
    )
