"""Batches: each prediction once per epoch, in an order that depends only on (seed, epoch)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.data.batches import (
    IGNORED,
    Batches,
    DocumentRows,
    LabelledWindowRows,
    LanguageBatch,
    OverlappingRows,
    PackedRows,
    RowSource,
)
from lilliput.data.prepare.token_files import TokenFile

corpora = st.lists(st.integers(1, 23), min_size=1, max_size=40)  # predictions of each document, including the end token
contexts = st.integers(1, 9)


START = 1_000_000  # not a token of any file


def make_file(sizes: list[int], dtype: str = "int64", ends: bool = True, labels: list[int] | None = None) -> TokenFile:
    """Token i is the number i, so a batch shows the origin of its tokens. Sizes include the end token."""
    offsets = np.concatenate(([1], 1 + np.cumsum(sizes))).astype(np.int64)
    classes = None if labels is None else np.array(labels, np.int32)
    return TokenFile(np.arange(offsets[-1], dtype=dtype), offsets, np.array(sizes), labels=classes, ends=ends)


def make_rows(sizes: list[int], context: int, dtype: str = "int64") -> PackedRows:
    return PackedRows(make_file(sizes, dtype), context, START)


def windows_of(batch: LanguageBatch) -> list[tuple[list[int], list[int]]]:
    """Return (ids, targets) of every window, by `doc`; a batch without `doc` has one window per row.

    START is replaced by the token of the file at this position, the one before the first target.
    """
    doc = batch.doc if batch.doc is not None else np.where(batch.targets == IGNORED, 0, 1)
    ids = np.where(batch.ids == START, batch.targets - 1, batch.ids)
    return [
        (ids[row][doc[row] == number].tolist(), batch.targets[row][doc[row] == number].tolist())
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
def test_a_batch_has_positions_documents_and_padding(sizes: list[int], context: int) -> None:
    rows = make_rows(sizes, context)
    batch = rows.batch(np.arange(len(rows)))
    assert batch.ids.shape == batch.targets.shape
    assert batch.ids.shape[1] == rows.row_sizes.max() <= context
    assert batch.tokens == sum(sizes) == rows.row_sizes.sum() and batch.counts == (batch.tokens,)
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
def test_rows_fit_and_no_two_rows_fit_into_one(sizes: list[int], context: int) -> None:
    rows = make_rows(sizes, context)
    assert (rows.row_sizes <= context).all()
    assert (rows.row_sizes > 0).all()
    assert sum(sorted(rows.row_sizes)[:2]) > context or len(rows) < 2


@given(sizes=corpora, context=contexts, batch=st.integers(1, 7), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_contains_every_row_once(sizes: list[int], context: int, batch: int, seed: int, epoch: int) -> None:
    rows = make_rows(sizes, context)
    batches = Batches(rows, batch, seed)
    first = epoch * batches.epoch_batches
    taken = [batches.at(position).tolist() for position in range(first, first + batches.epoch_batches)]
    assert sorted(row for part in taken for row in part) == list(range(len(rows)))
    assert all(0 < len(part) <= batch for part in taken)
    assert sum(len(part) < batch for part in taken) <= 1


@given(sizes=corpora, seed=st.integers(0, 5), skips=st.lists(st.integers(0, 40), max_size=6))
def test_order_depends_only_on_seed_and_position(sizes: list[int], seed: int, skips: list[int]) -> None:
    """Earlier requests, their order, and the object do not matter."""
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
def test_a_restart_at_any_position_continues_the_same_order(sizes: list[int], taken: int) -> None:
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
    """Also the last batch of an epoch, which may have fewer rows than there are processes."""
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


def test_batches_have_little_padding() -> None:
    """Rows of similar length share a batch. Sizes are uniform, so unsorted batches would be nearly half padding."""
    sizes = np.random.default_rng(0).integers(1, 65, 4000).tolist()
    rows = make_rows(sizes, 64)
    assert rows.row_sizes.sum() / (len(rows) * 64) > 0.98, "packing"
    unpacked = make_rows([33 + size // 2 for size in sizes], 66)  # no two fit one row
    batches = Batches(unpacked, 16, 0)
    taken = [next(batches) for _ in range(batches.epoch_batches)]
    assert sum(part.tokens for part in taken) / sum(part.ids.size for part in taken) > 0.97


def test_the_sample_is_reproducible() -> None:
    rows = make_rows(list(range(1, 40)), 6)
    sample = rows.sample(10, seed=4)
    assert len(sample) == len(set(sample.tolist())) == 10
    assert np.array_equal(sample, rows.sample(10, seed=4))
    assert not np.array_equal(sample, rows.sample(10, seed=5))
    assert (np.diff(rows.sizes(sample)) <= 0).all(), "longest first"
    assert sorted(rows.sample(10**6, seed=4)) == list(range(len(rows))), "asked for more than there is: all"


@given(sizes=corpora, context=contexts, batch=st.integers(1, 7))
def test_in_order_contains_each_prediction_once(sizes: list[int], context: int, batch: int) -> None:
    rows = make_rows(sizes, context)
    parts = list(rows.in_order(batch))
    assert Counter(t for part in parts for t in part.targets.ravel().tolist() if t != IGNORED) == Counter(
        range(1, 1 + sum(sizes))
    )
    lengths = [size for part in parts for size in rows.sizes(part.rows)]
    assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("sizes", [[1], [2], [40], [1, 1]])
def test_short_corpora(sizes: list[int]) -> None:
    rows = make_rows(sizes, 8)
    batches = Batches(rows, 16, 0)
    for _ in range(3):
        assert next(batches).tokens == sum(sizes)


def test_an_empty_document_is_an_end_token() -> None:
    rows = make_rows([3, 1, 4], 8)  # the second has only its end token
    windows = windows_of(rows.batch(np.arange(len(rows))))
    assert sorted(windows) == [([0, 1, 2], [1, 2, 3]), ([3], [4]), ([4, 5, 6, 7], [5, 6, 7, 8])]


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_batches_are_int64_for_any_type_of_token_file(dtype: str) -> None:
    rows = make_rows([9, 30], 16, dtype)
    batch = rows.batch(np.arange(len(rows)))
    assert batch.ids.dtype == batch.targets.dtype == np.int64
    assert batch.tokens == 39


# ---- start and end of a document


@given(sizes=corpora, context=contexts, overlapping=st.booleans())
def test_start_is_the_first_input_of_documents_only(sizes: list[int], context: int, overlapping: bool) -> None:
    kind = OverlappingRows if overlapping else PackedRows
    rows = kind(make_file(sizes), context, START)
    begun = []
    for batch in rows.in_order(3):
        assert (batch.ids != START)[batch.targets == IGNORED].all()
        begun += batch.targets[batch.ids == START].tolist()
        kept = (batch.ids != START) & (batch.targets != IGNORED)
        assert (batch.ids[kept] == batch.targets[kept] - 1).all()
    assert sorted(begun) == list(itertools.accumulate([1, *sizes[:-1]])), "the first prediction of each, once"


@given(sizes=corpora, context=contexts, overlapping=st.booleans())
def test_a_separator_is_never_a_target(sizes: list[int], context: int, overlapping: bool) -> None:
    """Without an end token, the separator after a document is not predicted."""
    file = make_file(sizes, ends=False)
    if sum(sizes) == len(sizes):
        return  # documents of nothing but separators: `prepare` refuses those
    kind = OverlappingRows if overlapping else PackedRows
    targets = [t for batch in kind(file, context, START).in_order(3) for t in batch.targets.ravel() if t != IGNORED]
    separators = set((file.offsets[1:] - 1).tolist())
    assert set(targets) == set(range(1, int(file.offsets[-1]))) - separators
    assert overlapping or len(targets) == file.predictions


# ---- overlapping windows


@given(sizes=corpora, context=contexts, batch=st.integers(1, 7))
def test_an_epoch_of_overlapping_rows_contains_every_window_once(sizes: list[int], context: int, batch: int) -> None:
    rows = OverlappingRows(make_file(sizes), context, START)
    batches = Batches(rows, batch, seed=3)
    found = []
    for _ in range(batches.epoch_batches):
        part = next(batches)
        assert part.pos is None and part.doc is None, "one window a row, from position 0"
        found += [tuple(targets) for _, targets in windows_of(part)]
    expected = []
    for first, size in zip(itertools.accumulate([1, *sizes[:-1]]), sizes, strict=True):
        last = max(0, size - context)
        expected += [tuple(range(first + at, first + at + min(context, size))) for at in range(last + 1)]
    assert Counter(found) == Counter(expected)


def test_overlapping_rows_of_a_hundred_million_tokens_are_not_stored() -> None:
    """A window is computed on request: two arrays over documents, none over windows."""
    offsets = np.array([1, 100_000_001], np.int64)
    tokens = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (100_000_001,), (0,))
    rows = OverlappingRows(TokenFile(tokens, offsets, np.array([1])), 32, START)
    assert len(rows) == 100_000_000 - 31
    assert sum(value.nbytes for value in vars(rows.windows).values() if isinstance(value, np.ndarray)) < 100
    assert rows.batch(np.array([0, len(rows) - 1])).ids.shape == (2, 32)


# ---- labelled documents


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20), context=contexts, batch=st.integers(1, 7))
def test_a_labelled_row_is_the_start_of_its_document(sizes: list[int], context: int, batch: int) -> None:
    labels = [index % 3 for index in range(len(sizes))]
    file = make_file(sizes, labels=labels)
    rows, seen = DocumentRows(file, context), []
    for part in rows.in_order(batch):
        assert part.counts == (len(part.rows),)
        for place, row in enumerate(part.rows.tolist()):
            real = part.pos[place] >= 0 if part.pos is not None else np.ones(part.ids.shape[1], bool)
            first, words = int(file.offsets[row]), min(context, sizes[row] - 1)
            assert part.ids[place][real].tolist() == list(range(first, first + words)), "no start, no end"
            assert part.pos is None or part.pos[place][real].tolist() == list(range(words))
            assert part.labels[place] == labels[row]
        assert part.tokens == sum(min(context, sizes[row] - 1) for row in part.rows.tolist())
        seen += part.rows.tolist()
    assert sorted(seen) == list(range(len(sizes)))


def test_labelled_rows_of_one_length_need_no_positions() -> None:
    assert DocumentRows(make_file([5, 5], labels=[0, 1]), 8).batch(np.arange(2)).pos is None
    assert DocumentRows(make_file([5, 6], labels=[0, 1]), 8).batch(np.arange(2)).pos is not None


def test_a_labelled_batch_without_rows_is_one_token_of_padding() -> None:
    batch = DocumentRows(make_file([5], labels=[0]), 8).batch(np.arange(0))
    assert batch.pos is not None
    assert (batch.ids.tolist(), batch.pos.tolist(), batch.labels.tolist()) == ([[0]], [[-1]], [IGNORED])
    assert (batch.tokens, batch.counts) == (0, (0,))


# ---- both: labelled windows


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20), context=contexts, ends=st.booleans())
def test_labelled_windows_contain_each_prediction_and_label_once(sizes: list[int], context: int, ends: bool) -> None:
    """The windows are those of packed rows; the label is in the row of the document's first window."""
    labels = [index % 3 for index in range(len(sizes))]
    file = make_file(sizes, labels=labels, ends=ends)
    if not file.predictions:
        return  # documents of nothing but separators: `prepare` refuses those
    rows, packed = LabelledWindowRows(file, context, START), PackedRows(file, context, START)
    whole, reference = rows.batch(np.arange(len(rows))), packed.batch(np.arange(len(packed)))
    assert sorted(found for found in windows_of(whole) if found[1]) == sorted(windows_of(reference))
    assert whole.counts == (file.predictions, len(sizes))
    assert sorted(whole.labels[whole.labels != IGNORED]) == sorted(labels)
    for place, label in enumerate(whole.labels):
        real = whole.targets[place] != IGNORED
        if real.any():  # tokens are numbers, so the first target identifies the document
            document = int(np.searchsorted(file.offsets, whole.targets[place, 0], side="right")) - 1
            begins = whole.ids[place, 0] == START
            assert begins == (whole.targets[place, 0] == file.offsets[document])
            assert label == (labels[document] if begins else IGNORED)
        else:
            assert label != IGNORED and sizes.count(1), "nothing to read, but a label to tell"


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20), context=contexts, batch=st.integers(1, 7))
def test_positions_of_labelled_windows_mark_the_padding(sizes: list[int], context: int, batch: int) -> None:
    rows = LabelledWindowRows(make_file(sizes, labels=[0] * len(sizes)), context, START)
    parts = list(rows.in_order(batch))
    for part in parts:
        real = part.targets != IGNORED
        assert part.doc is None
        assert (part.pos is None) == real.all()
        pos = np.arange(real.shape[1]) if part.pos is None else part.pos
        assert (np.broadcast_to(pos, real.shape) == np.where(real, np.arange(real.shape[1]), -1)).all()
    lengths = [size for part in parts for size in rows.sizes(part.rows)]
    assert lengths == sorted(lengths, reverse=True) and sum(lengths) == sum(sizes)


def test_labelled_windows_without_rows_are_one_token_of_padding() -> None:
    batch = LabelledWindowRows(make_file([5], labels=[0]), 8, START).batch(np.arange(0))
    assert batch.pos is not None
    assert (batch.ids.tolist(), batch.pos.tolist(), batch.labels.tolist()) == ([[0]], [[-1]], [IGNORED])
    assert (batch.targets.tolist(), batch.counts) == ([[IGNORED]], (0, 0))


@pytest.mark.parametrize("kind", ["packed", "overlapping", "labelled", "both"])
def test_token_files_are_memory_mapped(tmp_path: Path, kind: str) -> None:
    """Only the requested parts of the file are read into memory."""
    file = make_file([900, 100], "<u2", labels=[0, 1])
    file.tokens.tofile(tmp_path / "tokens")
    mapped = TokenFile(
        np.memmap(tmp_path / "tokens", dtype="<u2", mode="r"), file.offsets, file.document_bytes, file.labels
    )
    makers: dict[str, Callable[[TokenFile], RowSource[Any]]] = {
        "packed": lambda file: PackedRows(file, 16, START),
        "overlapping": lambda file: OverlappingRows(file, 16, START),
        "labelled": lambda file: DocumentRows(file, 16),
        "both": lambda file: LabelledWindowRows(file, 16, START),
    }
    rows = makers[kind](mapped)
    assert np.shares_memory(rows.tokens, mapped.tokens)
    assert np.array_equal(rows.batch(np.arange(2)).ids, makers[kind](file).batch(np.arange(2)).ids)
