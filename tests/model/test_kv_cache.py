"""The key-value cache: returned keys, growth, copying and rearranging rows, truncation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_models import assert_same, draw, draw_ids, tiny_model
from lilliput.model.kv_cache import Cache, LayerCache

LIKE = torch.zeros(1, dtype=torch.float64)
chunks = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def fill(cache: Cache, tokens: int, seed: int = 0) -> None:
    """Add tokens with random keys and values to each row."""
    pos, _ = cache.expect(tokens, None)
    for number, layer in enumerate(cache.layers):
        k, v = (draw(cache.rows, 3, tokens, 2, seed=seed + 10 * number + kind) for kind in (1, 2))
        layer.update(k, v, pos)
    cache.advance(tokens)


def small_cache(rows: int, *windows: int | None) -> Cache:
    return Cache([LayerCache(rows, 3, 2, window, LIKE) for window in windows], rows)


def content(cache: Cache, row: int) -> list[Tensor]:
    """Return what each layer still holds of a row, in the order of positions."""
    length = cache.lengths[row]
    return [
        torch.cat([layer.held[:, row, :, columns] for columns in layer.columns(0, length)], dim=2)
        for layer in cache.layers
    ]


def assert_held(cache: Cache, rows: list[int], expected: list[list[Tensor]]) -> None:
    for row, tensors in zip(rows, expected, strict=True):
        assert all(torch.equal(mine, other) for mine, other in zip(content(cache, row), tensors, strict=True))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of copied tokens, by copy and layer."""
    counts: list[int] = []
    copy = LayerCache.copy_row

    def counted(layer: LayerCache, source: LayerCache, row: int, to: int, first: int, last: int) -> None:
        counts.append(sum(columns.stop - columns.start for columns in layer.columns(first, last)))
        copy(layer, source, row, to, first, last)

    monkeypatch.setattr(LayerCache, "copy_row", counted)
    return counts


@given(chunks=chunks, window=st.none() | st.integers(1, 6))
def test_update_returns_all_visible_keys(chunks: list[int], window: int | None) -> None:
    cache = Cache([LayerCache(2, 3, 4, window, LIKE)], 2)
    total, before = sum(chunks), 0
    keys, values = draw(2, 3, total, 4, seed=1), draw(2, 3, total, 4, seed=2)
    for chunk in chunks:
        after = before + chunk
        pos, plain = cache.expect(chunk, None)
        k, v, k_pos = cache.layers[0].update(keys[:, :, before:after], values[:, :, before:after], pos)
        cache.advance(chunk)
        assert plain and k.shape[2] == v.shape[2] == k_pos.shape[1]
        shown = k_pos[0].tolist()
        assert len(set(shown)) == len(shown)
        assert set(range(0 if window is None else max(0, before - (window - 1)), after)) <= set(shown)
        assert torch.equal(k, keys[:, :, k_pos[0]]) and torch.equal(v, values[:, :, k_pos[0]])
        before = after


def test_windowed_layer_has_bounded_size() -> None:
    cache = small_cache(1, 4)
    for at in range(300):
        fill(cache, 1, seed=at)
        assert cache.layers[0].keys.shape[2] <= 4
    assert cache.nbytes == 4 * 2 * 3 * 2 * 8  # the window, keys and values of 3 heads of 2 float64


@pytest.mark.parametrize("window", [None, 700])
def test_columns_grow_by_doubling(window: int | None) -> None:
    cache, moves = small_cache(1, window), 0
    (layer,) = cache.layers
    for at in range(1000):
        buffer = layer.held
        fill(cache, 1, seed=at)
        moves += layer.held is not buffer
    assert moves == 11
    assert cache.nbytes == (1024 if window is None else 700) * 2 * 3 * 2 * 8


def test_rows_grow_by_doubling_and_new_rows_are_zero() -> None:
    """Uninitialised memory may hold NaN, and NaN times a weight of 0 is NaN."""
    cache, other, moves = small_cache(1, None), small_cache(1, None), 0
    fill(cache, 5)
    fill(other, 3, seed=1)
    for _ in range(63):
        buffer = cache.layers[0].held
        cache.append(other, [0])
        moves += cache.layers[0].held is not buffer
    assert (cache.rows, moves, cache.layers[0].held.shape[1]) == (64, 6, 64)
    assert not cache.layers[0].held[:, 1:, :, 3:].any()


@pytest.mark.parametrize(
    ("rows", "copies"),
    [
        ([0, 1, 2, 3], 0),
        ([3, 1, 0, 2], 0),  # a change of order moves nothing
        ([0, 1, 2], 0),
        ([0, 2, 3], 1),  # one is removed: the last takes its place
        ([3, 2], 2),
        ([2, 2, 0, 1], 1),
        ([1, 1, 1, 1, 3, 3], 4),
        ([3, 3, 3], 3),
    ],
)
@pytest.mark.parametrize("windows", [(None,), (4,), (3, None)])
def test_rearrange_copies_as_few_rows_as_possible(
    rows: list[int], copies: int, windows: tuple[int | None, ...], copied: list[int]
) -> None:
    cache = small_cache(4, *windows)
    fill(cache, 7)
    before = [content(cache, row) for row in rows]
    where = cache.rearrange(rows)
    assert sorted(where) == list(range(len(rows)))
    assert_held(cache, where, before)
    assert len(copied) == copies * len(windows)


def test_beams_copy_only_different_tokens(copied: list[int]) -> None:
    """Four beams share a prompt of 50 tokens; one beam is replaced after every token."""
    cache = small_cache(1, None, 8)
    fill(cache, 50)
    cache.rearrange([0, 0, 0, 0])
    assert copied == [50, 8] * 3
    copied.clear()
    fill(cache, 1, seed=1)
    where = cache.rearrange([0, 1, 2, 2])
    assert copied == [1, 1]
    for step in range(2, 20):
        fill(cache, 1, seed=step)
        before = [content(cache, row) for row in (where[2], where[3], where[1], where[1])]
        where = cache.rearrange([where[2], where[3], where[1], where[1]])
        assert_held(cache, where, before)
    assert max(copied) <= 4  # all beams descend from one beam of a few tokens ago


def read_unequally(cache: Cache, counts: tuple[int, int]) -> None:
    """Add a different number of tokens to each of two rows of a cache with one layer."""
    at, before = torch.arange(max(counts)), torch.tensor(cache.lengths)[:, None]
    pos, _ = cache.expect(len(at), torch.where(at < torch.tensor(counts)[:, None], before + at, -1))
    cache.layers[0].update(draw(2, 3, len(at), 2, seed=8), draw(2, 3, len(at), 2, seed=9), pos)
    cache.advance(len(at))


@pytest.mark.parametrize(("counts", "length"), [((3, 1), 9), ((2, 1), 7)])
def test_overwritten_window_is_copied_completely(counts: tuple[int, int], length: int, copied: list[int]) -> None:
    """A row has overwritten tokens that both rows had in common, also if it is then truncated to the other's length."""
    cache = small_cache(1, 4)
    fill(cache, 6)
    cache.rearrange([0, 0])
    read_unequally(cache, counts)
    cache.truncate(length)
    copied.clear()
    before = content(cache, 1)
    where = cache.rearrange([1, 1])
    assert copied == [4]
    assert_held(cache, where, [before, before])


def test_copy_remembers_overwritten_tokens() -> None:
    cache = small_cache(1, 4)
    fill(cache, 8)
    cache.rearrange([0, 0])
    cache.truncate(7)
    read_unequally(cache, (1, 0))
    cache.rearrange([1])
    with pytest.raises(ValueError, match="prefill again"):
        cache.truncate(6)


@pytest.mark.parametrize("windows", [(None,), (4,), (3, None)])
def test_picked_and_appended_rows_are_copies(windows: tuple[int | None, ...]) -> None:
    cache, other = small_cache(3, *windows), small_cache(2, *windows)
    fill(cache, 7)
    fill(other, 2, seed=5)
    mine, theirs = [content(cache, row) for row in range(3)], [content(other, row) for row in range(2)]
    picked = cache.pick([2, 0, 2])
    assert_held(picked, [0, 1, 2], [mine[2], mine[0], mine[2]])
    cache.append(other, [1, 0])
    assert cache.lengths == [7, 7, 7, 2, 2]
    assert_held(cache, [0, 1, 2, 3, 4], [*mine, theirs[1], theirs[0]])
    fill(cache, 3, seed=6)
    assert_held(picked, [0, 1, 2], [mine[2], mine[0], mine[2]])
    assert_held(other, [0, 1], theirs)
    fill(picked, 1, seed=7)
    assert picked.lengths == [8, 8, 8]


@torch.inference_mode()
def test_truncate() -> None:
    model, ids = tiny_model(), draw_ids(2, 9)
    cache = model.new_cache(2)
    model(ids, cache=cache)
    cache.truncate(5)
    assert cache.length == 5
    other = draw_ids(2, 3, seed=8)
    assert_same(model(other, cache=cache), model(torch.cat((ids[:, :5], other), dim=1))[:, 5:])
    cache.truncate(0)
    assert_same(model(other, cache=cache), model(other))


@torch.inference_mode()
@pytest.mark.parametrize("window", [4, (None, 4)])
def test_truncate_of_overwritten_tokens_is_an_error(window: Any) -> None:
    """The error leaves the cache unchanged. Truncating to the current length is always possible."""
    model, ids = tiny_model(window=window), draw_ids(1, 9)
    cache = model.new_cache(1)
    model(ids[:, :8], cache=cache)
    for length in (6, 3, 0):
        with pytest.raises(ValueError, match=f"length {length} .*prefill again"):
            cache.truncate(length)
    assert_same(model(ids[:, 8:], cache=cache), model(ids)[:, -1:])
    cache.truncate(8)
    with pytest.raises(ValueError, match="prefill again"):
        cache.truncate(7)  # the ninth token has overwritten an older one
    assert_same(model(ids[:, 8:], cache=cache), model(ids)[:, -1:])


@torch.inference_mode()
def test_truncate_within_a_window() -> None:
    model, ids = tiny_model(window=6), draw_ids(1, 5)
    cache = model.new_cache(1)
    model(ids, cache=cache)
    cache.truncate(2)
    assert_same(model(torch.tensor([[3, 4]]), cache=cache), model(torch.tensor([[*ids[0, :2].tolist(), 3, 4]]))[:, 2:])


def test_truncated_tokens_do_not_count_as_equal() -> None:
    cache = small_cache(1, None)
    fill(cache, 5)
    cache.rearrange([0, 0])
    cache.truncate(2)
    fill(cache, 3, seed=3)  # the rows now differ where they were equal
    before = content(cache, 0)
    assert_held(cache, cache.rearrange([0, 0]), [before, before])


@pytest.mark.parametrize(
    "announced",
    [lambda cache: cache.expect(1, torch.tensor([[5], [4]])), lambda cache: (fill(cache, 1), cache.advance(2))],
)
def test_unexpected_pass_fails_an_assertion(announced: Callable[[Cache], object]) -> None:
    cache = small_cache(2, None)
    fill(cache, 4)
    with pytest.raises(AssertionError, match=r"continue at the end|not the pass"):
        announced(cache)


def test_encoder_has_no_cache() -> None:
    with pytest.raises(AssertionError, match="nothing to cache"):
        tiny_model(task="classifier", classes=3).new_cache(1)
