"""Which tokens step n sees: each prediction once an epoch, in an order that nothing but (seed, epoch) decides."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.batches import IGNORED, Batch, Batches, Rows

corpora = st.lists(st.integers(1, 23), min_size=1, max_size=40)  # predictions of each document, its end included
contexts = st.integers(1, 9)


def make_rows(sizes: list[int], context: int, dtype: str = "int64") -> Rows:
    """A token file in which token i is the number i: what a batch holds then tells where it came from."""
    offsets = np.concatenate(([1], 1 + np.cumsum(sizes))).astype(np.int64)
    return Rows(np.arange(offsets[-1], dtype=dtype), offsets, context)


def windows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """(ids, targets) of every window, by `doc`; a batch without it has one window a row."""
    doc = batch.doc if batch.doc is not None else np.where(batch.targets == IGNORED, 0, 1)
    return [
        (batch.ids[row][doc[row] == number].tolist(), batch.targets[row][doc[row] == number].tolist())
        for row in range(len(doc))
        for number in range(1, doc[row].max() + 1)
    ]


@given(sizes=corpora, context=contexts)
def test_each_prediction_is_in_one_window_of_its_document(sizes: list[int], context: int) -> None:
    rows = make_rows(sizes, context)
    windows = windows_of(rows.batch(np.arange(len(rows))))
    predicted = sorted(target for _, targets in windows for target in targets)
    assert predicted == list(range(1, 1 + sum(sizes)))
    starts = list(itertools.accumulate([1, *sizes]))
    for ids, targets in windows:
        document = next(i for i in range(len(sizes)) if starts[i] <= targets[0] < starts[i + 1])
        assert targets[-1] < starts[document + 1], "a window ends with its document"
        assert (targets[0] - starts[document]) % context == 0, "a window is aligned to its document"
        assert len(targets) == min(context, starts[document + 1] - targets[0])
        assert ids == [target - 1 for target in targets], "an input is the token before its target"


@given(sizes=corpora, context=contexts)
def test_a_batch_says_positions_documents_and_padding(sizes: list[int], context: int) -> None:
    rows = make_rows(sizes, context)
    batch = rows.batch(np.arange(len(rows)))
    assert batch.ids.shape == batch.targets.shape
    assert batch.ids.shape[1] == rows.sizes.max() <= context
    assert batch.tokens == sum(sizes) == rows.sizes.sum()
    if batch.doc is None or batch.pos is None:
        assert batch.doc is None
        assert batch.pos is None
        assert all(rows.borders[1:] - rows.borders[:-1] == 1)
        return
    padding = batch.doc == 0
    assert ((batch.targets == IGNORED) == padding).all()
    assert ((batch.pos == -1) == padding).all()
    for row in range(len(rows)):
        real = batch.doc[row][~padding[row]].tolist()
        assert padding[row].tolist() == sorted(padding[row]), "padding stands on the right"
        assert real == sorted(real)
        assert set(real) == set(range(1, max(real) + 1))
        for number in set(real):
            here = batch.pos[row][batch.doc[row] == number]
            assert here.tolist() == list(range(len(here)))


@given(sizes=corpora, context=contexts)
def test_packing_fits_and_leaves_no_two_rows_that_would_fit_one(sizes: list[int], context: int) -> None:
    rows = make_rows(sizes, context)
    assert (rows.sizes <= context).all()
    assert (rows.sizes > 0).all()
    assert sum(sorted(rows.sizes)[:2]) > context or len(rows) < 2


@given(sizes=corpora, context=contexts, batch=st.integers(1, 7), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_has_every_row_once(sizes: list[int], context: int, batch: int, seed: int, epoch: int) -> None:
    rows = make_rows(sizes, context)
    batches = Batches(rows, batch, seed)
    first = epoch * batches.epoch_batches
    taken = [batches.at(position).tolist() for position in range(first, first + batches.epoch_batches)]
    assert sorted(row for part in taken for row in part) == list(range(len(rows)))
    assert all(0 < len(part) <= batch for part in taken)
    assert sum(len(part) < batch for part in taken) <= 1


@given(sizes=corpora, seed=st.integers(0, 5), skips=st.lists(st.integers(0, 40), max_size=6))
def test_order_is_pure_in_seed_and_position(sizes: list[int], seed: int, skips: list[int]) -> None:
    """Whatever was asked for before, in whatever order, by whatever object."""
    rows = make_rows(sizes, 5)
    one, other = Batches(rows, 3, seed), Batches(rows, 3, seed)
    for position in skips:
        one.at(position)
    assert all(np.array_equal(one.at(position), other.at(position)) for position in range(40))


def test_seeds_and_epochs_differ() -> None:
    rows = make_rows([5] * 60, 5)
    orders = [
        [tuple(Batches(rows, 4, seed).at(position)) for position in range(epoch * 15, epoch * 15 + 15)]
        for seed, epoch in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    ]
    assert len({tuple(order) for order in orders}) == 5
    assert all(set(a) != set(b) for a, b in itertools.combinations(orders, 2)), "other rows meet each other"


@given(sizes=corpora, taken=st.integers(0, 30))
def test_a_restart_at_any_position_goes_on_the_same(sizes: list[int], taken: int) -> None:
    rows = make_rows(sizes, 4)
    whole, again = Batches(rows, 3, 7), Batches(rows, 3, 7)
    for _ in range(taken):
        next(whole)
    again.load_state_dict(whole.state_dict())
    for _ in range(10):
        left, right = next(whole), next(again)
        assert np.array_equal(left.ids, right.ids)
        assert np.array_equal(left.targets, right.targets)
        assert np.array_equal(left.rows, right.rows)
    assert whole.state_dict() == again.state_dict() == {"position": taken + 10}


@given(sizes=corpora, batch=st.integers(1, 7), processes=st.integers(1, 4))
def test_ranks_partition_every_batch(sizes: list[int], batch: int, processes: int) -> None:
    """Also the last of an epoch, which may have fewer rows than there are processes."""
    rows = make_rows(sizes, 5)
    whole = Batches(rows, batch, 3)
    ranks = [Batches(rows, batch, 3, rank, processes) for rank in range(processes)]
    for position in range(2 * whole.epoch_batches):
        parts = [next(rank) for rank in ranks]
        together = np.concatenate([part.rows for part in parts])
        assert sorted(together) == sorted(whole.at(position))
        assert sum(part.tokens for part in parts) == next(whole).tokens
        assert max(len(part.rows) for part in parts) - min(len(part.rows) for part in parts) <= 1


def test_a_process_without_rows_gets_padding() -> None:
    batch = next(Batches(make_rows([4], 5), 1, 0, rank=1, processes=2))
    assert batch.tokens == 0
    assert len(batch.rows) == 0
    assert batch.ids.tolist() == [[0]]
    assert batch.targets.tolist() == [[IGNORED]]


def test_little_is_padded() -> None:
    """Rows of like length are put together: sizes are spread evenly, so unsorted batches would pad by nearly half."""
    sizes = np.random.default_rng(0).integers(1, 65, 4000).tolist()
    rows = make_rows(sizes, 64)
    assert rows.sizes.sum() / (len(rows) * 64) > 0.98, "packing"
    lonely = make_rows([33 + size // 2 for size in sizes], 66)  # no two fit one row
    batches = Batches(lonely, 16, 0)
    taken = [next(batches) for _ in range(batches.epoch_batches)]
    assert sum(part.tokens for part in taken) / sum(part.ids.size for part in taken) > 0.97


def test_the_sample_is_fixed() -> None:
    rows = make_rows(list(range(1, 40)), 6)
    sample = rows.sample(10, seed=4)
    assert len(sample) == len(set(sample.tolist())) == 10
    assert np.array_equal(sample, rows.sample(10, seed=4))
    assert not np.array_equal(sample, rows.sample(10, seed=5))
    assert (np.diff(rows.sizes[sample]) <= 0).all(), "longest first"
    assert sorted(rows.sample(10**6, seed=4)) == list(range(len(rows))), "asked for more than there is: all"


@given(sizes=corpora, context=contexts, batch=st.integers(1, 7))
def test_in_order_has_each_prediction_once(sizes: list[int], context: int, batch: int) -> None:
    rows = make_rows(sizes, context)
    parts = list(rows.in_order(batch))
    assert Counter(t for part in parts for t in part.targets.ravel().tolist() if t != IGNORED) == Counter(
        range(1, 1 + sum(sizes))
    )
    lengths = [size for part in parts for size in rows.sizes[part.rows]]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("sizes", [[1], [2], [40], [1, 1]])
def test_short_corpora(sizes: list[int]) -> None:
    rows = make_rows(sizes, 8)
    batches = Batches(rows, 16, 0)
    for _ in range(3):
        assert next(batches).tokens == sum(sizes)


def test_an_empty_document_is_its_end_alone() -> None:
    rows = make_rows([3, 1, 4], 8)  # the second has no token but its end
    windows = windows_of(rows.batch(np.arange(len(rows))))
    assert sorted(windows) == [([0, 1, 2], [1, 2, 3]), ([3], [4]), ([4, 5, 6, 7], [5, 6, 7, 8])]


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_token_files_of_any_width_come_out_as_int64(dtype: str) -> None:
    rows = make_rows([9, 30], 16, dtype)
    batch = rows.batch(np.arange(len(rows)))
    assert batch.ids.dtype == batch.targets.dtype == np.int64
    assert batch.tokens == 39
