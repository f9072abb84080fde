"""The cache as storage, and moving its rows about under a real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lilliput.decoding.stream import prefill, step
from lilliput.model.cache import LayerCache
from tiny import assert_same, draw, draw_ids, tiny_model

WINDOWS = [None, 4, (3, None)]
chunks = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(chunks=chunks, window=st.none() | st.integers(1, 6))
def test_update_gives_what_may_be_seen_and_never_touches_earlier_views(chunks: list[int], window: int | None) -> None:
    layer = LayerCache(2, 3, 4, window, torch.zeros(1, dtype=torch.float64))
    total = sum(chunks)
    keys, values, pos = draw(2, 3, total, 4, seed=1), draw(2, 3, total, 4, seed=2), torch.arange(total).expand(2, -1)
    before, views = 0, []
    for chunk in chunks:
        after = before + chunk
        first = 0 if window is None else max(0, before - (window - 1))
        view = layer.update(keys[:, :, before:after], values[:, :, before:after], pos[:, before:after])
        expected = keys[:, :, first:after], values[:, :, first:after], pos[:, first:after]
        views.append((view, expected))
        before = after
    for view, expected in views:  # all of them, also those given long ago
        assert all(torch.equal(mine, other) for mine, other in zip(view, expected, strict=True))


def test_a_windowed_layer_stays_small() -> None:
    model = tiny_model(window=4, context=24, positions=None)
    _, cache = prefill(model, [draw_ids(200).tolist()])
    sizes = []
    for at in range(200, 300):
        step(model, [1], [at], cache)
        sizes.append(cache.nbytes)
    entry = 2 * 4 * 4 * 8 + 8  # keys and values of 4 heads of 4 float64, and a position
    assert max(sizes) == 3 * 2 * 4 * entry  # three layers, twice the window


def test_a_full_layer_grows_by_doubling() -> None:
    layer = LayerCache(1, 1, 1, None, torch.zeros(1))
    moves, buffer = 0, layer.keys
    for at in range(1000):
        layer.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), torch.tensor([[at]]))
        moves, buffer = moves + (layer.keys is not buffer), layer.keys
    assert moves <= 11
    assert layer.nbytes <= 2 * 1000 * (4 + 4 + 8)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_reorder_moves_drops_and_doubles_rows(window: Any, positions: str) -> None:
    model = tiny_model(window=window, positions=positions, kv_heads=2)
    views = [draw_ids(n, seed=n).tolist() for n in (9, 6, 3)]
    _, cache = prefill(model, views)
    cache.reorder(torch.tensor([2, 0, 2, 1]))
    moved = [views[2], views[0], views[2], views[1]]
    for new in ([1, 2, 3, 4], [5, 6, 7, 8]):
        logits = step(model, new, [len(view) for view in moved], cache)
        moved = [[*view, id_] for view, id_ in zip(moved, new, strict=True)]
        for row, view in enumerate(moved):
            assert_same(logits[row], model(torch.tensor([view]))[0, -1])
    assert cache.rows == 4


@pytest.mark.parametrize("window", WINDOWS)
def test_repeat_makes_rows_that_then_part(window: Any) -> None:
    model, view = tiny_model(window=window), draw_ids(2, 7).tolist()
    _, cache = prefill(model, view)
    cache.repeat(3)
    logits = step(model, [0, 1, 2, 3, 4, 5], [7] * 6, cache)
    for row in range(6):
        assert_same(logits[row], model(torch.tensor([[*view[row // 3], row]]))[0, -1])


@torch.inference_mode()
def test_truncate_goes_back() -> None:
    model, ids = tiny_model(), draw_ids(2, 9)
    _, cache = prefill(model, ids.tolist())
    cache.truncate(5)
    assert cache.length == 5
    other = draw_ids(2, 3, seed=8)
    assert_same(model(other, cache=cache), model(torch.cat((ids[:, :5], other), dim=1))[:, 5:])
    cache.truncate(0)
    assert_same(model(other, cache=cache), model(other))


@pytest.mark.parametrize("window", [4, (None, 4)])
def test_truncate_is_refused_whole_where_a_window_has_forgotten(window: Any) -> None:
    """Refused before any layer is cut, so that the cache is still good for what it holds."""
    model, ids = tiny_model(window=window), draw_ids(1, 9)
    _, cache = prefill(model, ids[:, :8].tolist())
    for length in (7, 3, 0):
        with pytest.raises(ValueError, match=f"length of {length}.*prefill again"):
            cache.truncate(length)
    assert_same(step(model, [int(ids[0, 8])], [8], cache), model(ids)[:, -1])


def test_truncate_within_a_window_that_has_forgotten_nothing() -> None:
    model, ids = tiny_model(window=6), draw_ids(1, 5)
    _, cache = prefill(model, ids.tolist())
    cache.truncate(2)
    assert_same(step(model, [3], [2], cache), model(torch.tensor([[*ids[0, :2].tolist(), 3]]))[:, -1])


def test_an_encoder_has_no_cache() -> None:
    with pytest.raises(AssertionError, match="nothing to cache"):
        tiny_model(task="classifier", classes=3).new_cache(1)
