"""Forbidding tokens: never the last one of a row."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lilliput.decoding.row_history import RowHistory, flat_places, forbid, require

V = 5
NO = -math.inf
rows = st.lists(st.just(NO) | st.integers(-3, 3).map(float), min_size=V, max_size=V).filter(lambda row: max(row) > NO)
batches = st.lists(st.tuples(rows, st.lists(st.integers(0, V - 1), max_size=V)), min_size=1, max_size=4)


def test_generated_and_remaining_tokens() -> None:
    text = RowHistory([9, 1, 2, 3, 4], 3, 7)
    assert (text.written, text.left) == (2, 5)


def test_flat_places() -> None:
    assert flat_places([[1, 4], [], np.array([0])], V).tolist() == [1, 4, 10]


@given(batch=batches)
def test_forbid_removes_tokens_unless_no_other_is_left(batch: list[tuple[list[float], list[int]]]) -> None:
    table = torch.tensor([row for row, _ in batch])
    after = forbid(table, [ids for _, ids in batch]).tolist()
    for (row, ids), left in zip(batch, after, strict=True):
        ruled = [NO if id_ in ids else value for id_, value in enumerate(row)]
        assert left == (ruled if max(ruled) > NO else row)
    assert table.tolist() == [row for row, _ in batch], "arguments are not changed"


@given(batch=st.lists(st.tuples(rows, st.none() | st.integers(0, V - 1)), min_size=1, max_size=4))
def test_require_keeps_one_token_unless_it_is_forbidden(batch: list[tuple[list[float], int | None]]) -> None:
    table = torch.tensor([row for row, _ in batch])
    after = require(table, {place: id_ for place, (_, id_) in enumerate(batch) if id_ is not None}).tolist()
    for (row, wanted), left in zip(batch, after, strict=True):
        free = wanted is None or row[wanted] == NO
        assert left == (row if free else [value if id_ == wanted else NO for id_, value in enumerate(row)])
    assert table.tolist() == [row for row, _ in batch], "arguments are not changed"


def test_without_ids_the_values_stay_the_same() -> None:
    table = torch.tensor([[1.0, 2.0]])
    assert torch.equal(forbid(table, [[]]), table)
    assert torch.equal(require(table, {}), table)
