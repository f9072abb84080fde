"""Attention: every kernel and every form of the mask is compared with the definition."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_models import assert_same, draw, draw_ids, tiny_model
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.kernels.openmp_waiting import find_openmp_parallel
from lilliput.kernels.training_attention import can_attend
from lilliput.model.attention import Capture, PassState, attend, attention_weights
from lilliput.model.attention_mask import Visibility, first_keys, visible
from lilliput.model.kv_cache import Cache, LayerCache

positions = st.lists(st.integers(-1, 6), min_size=1, max_size=5)


@given(q=positions, k=positions, causal=st.booleans(), window=st.none() | st.integers(1, 5), data=st.data())
def test_visible_equals_its_definition(
    q: list[int], k: list[int], causal: bool, window: int | None, data: st.DataObject
) -> None:
    q_doc = data.draw(st.lists(st.integers(0, 2), min_size=len(q), max_size=len(q)))
    k_doc = data.draw(st.lists(st.integers(0, 2), min_size=len(k), max_size=len(k)))
    seen = visible(*(torch.tensor([x]) for x in (q, k, q_doc, k_doc)), causal, window)
    for i, (q_at, q_in) in enumerate(zip(q, q_doc, strict=True)):
        for j, (k_at, k_in) in enumerate(zip(k, k_doc, strict=True)):
            near = window is None or abs(q_at - k_at) < window
            assert seen[0, i, j] == (q_in == k_in and k_in != 0 and near and not (causal and k_at > q_at))


def explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute softmax over the visible keys, one query at a time; `mask` is (B, T, K)."""
    rows, heads, tokens, dim = q.shape
    out = torch.zeros_like(q)
    weights = q.new_zeros(rows, heads, tokens, k.shape[2])
    for b in range(rows):
        for h in range(heads):
            group = h * k.shape[1] // heads
            for t in range(tokens):
                keys = mask[b, t].nonzero()[:, 0]
                if len(keys):
                    share = (k[b, group, keys] @ q[b, h, t] / math.sqrt(dim)).softmax(dim=0)
                    weights[b, h, t, keys] = share.detach()
                    out[b, h, t] = share @ v[b, group, keys]
    return out, weights


def make_visibility(kind: str, tokens: int, keys: int) -> tuple[Visibility, Tensor]:
    if kind == "all":
        return Visibility(), torch.ones(2, tokens, keys, dtype=torch.bool)
    if kind == "lower":
        return Visibility(lower=True), torch.ones(2, tokens, keys, dtype=torch.bool).tril()
    mask = draw(2 if kind == "mask" else 1, tokens, keys, seed=7) > 0.3
    mask[0, 1] = mask[0, -1] = False  # two queries without visible keys
    return Visibility(mask[:, None]), mask.expand(2, -1, -1)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", ["all", "lower", "mask", "shared mask"])
def test_attend_equals_softmax_over_visible_keys(kind: str, kv_heads: int) -> None:
    tokens, keys = (5, 5) if kind == "lower" else (5, 7)
    visibility, mask = make_visibility(kind, tokens, keys)
    parts = [draw(2, 4, tokens, 8, seed=1), draw(2, kv_heads, keys, 8, seed=2), draw(2, kv_heads, keys, 8, seed=3)]
    ours, theirs = ([part.clone().requires_grad_() for part in parts] for _ in range(2))
    fast = attend(*ours, visibility)
    slow, weights = explicit(*theirs, mask)
    assert_same(fast, slow)
    assert_same(attention_weights(ours[0], ours[1], visibility), weights)
    towards = draw(*fast.shape, seed=4)
    (fast * towards).sum().backward()
    (slow * towards).sum().backward()
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine.grad, other.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_queries_without_visible_keys_give_zeros(dtype: torch.dtype) -> None:
    """With more keys than a block of the kernel (512): no visible key in all blocks, or in the first block."""
    q, k, v = (draw(1, 2, n, 16, seed=n).to(dtype).requires_grad_() for n in (70, 600, 600))
    mask = draw(1, 1, 70, 600, seed=5) > 0.0
    mask[..., 3, :] = mask[..., 69, :] = False
    mask[..., 10:20, :512] = False
    out = attend(q, k, v, Visibility(mask))
    out.square().sum().backward()
    weights = attention_weights(q, k, Visibility(mask))
    assert torch.equal(out[:, :, [3, 69]], torch.zeros(1, 2, 2, 16, dtype=dtype))
    assert_same(out, weights @ v, 1e-12 if dtype == torch.float64 else 1e-5)
    assert all(torch.isfinite(part.grad).all() for part in (q, k, v))
    assert not q.grad[:, :, [3, 69]].any()


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    shuffled=st.none() | st.randoms(use_true_random=False),
    window=st.none() | st.integers(1, 7),
)
def test_first_keys_equal_the_mask(
    lengths: list[int], padding: int, shuffled: random.Random | None, window: int | None
) -> None:
    """For consecutive documents and padding, and for shuffled tokens, where `first_keys` may return None."""
    tokens = [(at, number) for number, length in enumerate(lengths, start=1) for at in range(length)]
    tokens += [(-1, 0)] * padding
    if shuffled is not None:
        shuffled.shuffle(tokens)
    pos, doc = (torch.tensor([column]) for column in zip(*tokens, strict=True))
    first, place = first_keys(pos, doc, window), torch.arange(len(tokens))
    assert first is not None or shuffled is not None
    if first is not None:
        between = (place >= first[:, :, None]) & (place <= place[:, None])
        assert torch.equal(between, visible(pos, pos, doc, doc, True, window))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("packed", [False, True])
def test_compiled_attention_equals_the_mask(packed: bool, window: int | None) -> None:
    """Compiled attention is used in training in float32."""
    ids, doc = draw_ids(2, 40), torch.ones(2, 40, dtype=torch.long)
    doc[0, 13:], doc[:, 35:] = 2, 0
    pos = torch.arange(40).expand(2, -1).clone()
    pos[0, 13:] -= 13
    state = PassState(ids, True, pos if packed else None, doc if packed else None, None, None)
    visibility = state.visibility(window, state.pos)
    assert visibility.starts is not None
    q, k, v = (draw(2, 2, 40, 16, seed=seed).float().requires_grad_() for seed in range(3))
    assert can_attend(q, k, v) == (find_openmp_parallel() is not None)
    by_mask = attention_weights(q, k, visibility) @ v
    assert_same(attend(q, k, v, visibility, training=True), by_mask, 1e-6)
    assert_same(attend(q, k, v, visibility), by_mask, 1e-6)


def expand(visibility: Visibility, tokens: int, keys: int, rows: int) -> Tensor:
    full = torch.ones(tokens, keys, dtype=torch.bool)
    full = full.tril() if visibility.lower else full
    return full.expand(rows, -1, -1) if visibility.mask is None else visibility.mask[:, 0].expand(rows, -1, -1)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(any), min_size=1, max_size=8),
    window=st.none() | st.integers(1, 7),
    padding_first=st.booleans(),
)
def test_visibility_with_a_cache_equals_the_mask(
    chunks: list[tuple[int, int]], window: int | None, padding_first: bool
) -> None:
    """For any sequence of passes, the visible keys are those of the mask over all tokens of the row."""
    layer = LayerCache(2, 1, 1, window, torch.zeros(1, dtype=torch.float64))
    cache = Cache([layer], 2)
    for counts in chunks:
        before, tokens = list(cache.lengths), max(counts)
        at = torch.arange(tokens)
        gaps = torch.tensor([[tokens - count if padding_first else 0] for count in counts])
        real = (at >= gaps) & (at < gaps + torch.tensor(counts)[:, None])
        pos = torch.where(real, torch.tensor(before)[:, None] + at - gaps, -1)
        state = PassState(draw_ids(2, tokens), True, None if real.all() else pos, None, cache, None)
        k = pos[:, None, :, None].double()  # a key is its position
        k, _, k_pos = layer.update(k, k, state.pos)
        seen = expand(state.visibility(window, k_pos), tokens, k.shape[2], 2)
        cache.advance(tokens)
        assert cache.lengths == [length + count for length, count in zip(before, counts, strict=True)]
        for row, token in real.nonzero().tolist():
            place = int(pos[row, token])
            first = 0 if window is None else max(0, place + 1 - window)
            assert sorted(k[row, 0, seen[row, token], 0].tolist()) == list(range(first, place + 1))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 6, 9])
@pytest.mark.parametrize("documents", [None, [[1, 1, 1, 2, 2, 0], [1, 2, 3, 3, 3, 3]]])
def test_visibility_without_a_cache_equals_the_mask(
    causal: bool, window: int | None, documents: list[list[int]] | None
) -> None:
    doc = None if documents is None else torch.tensor(documents)
    state = PassState(draw_ids(2, 6), causal, None, doc, None, None)
    seen = expand(state.visibility(window, state.pos), 6, 6, 2)
    expected = torch.ones(2, 6, 6, dtype=torch.bool) if doc is None else doc[:, :, None] == doc[:, None, :]
    for q in range(6):
        for k in range(6):
            far = (causal and k > q) or (window is not None and abs(q - k) >= window)
            expected[:, q, k] &= not far
    if doc is not None:
        expected &= (doc != 0)[:, None, :]
    assert torch.equal(seen, expected)


CAPTURED: list[dict[str, Any]] = [
    {"positions": "rotary", "kv_heads": 2, "window": (3, None), "qk_norm": True},
    {"positions": "learned", "norm": "layer", "norm_placement": "post", "feed_forward": "gelu"},
    {"task": "classifier", "classes": 3, "positions": "sinusoidal", "window": 4},
]


@pytest.mark.parametrize("case", CAPTURED, ids=["decoder", "post", "encoder"])
@pytest.mark.parametrize("padded", [False, True])
def test_capture_does_not_change_the_output(case: dict[str, Any], padded: bool) -> None:
    model, ids = tiny_model(**case), draw_ids(2, 9)
    pos = torch.stack((torch.arange(9), torch.arange(9) - 3)).clamp(min=-1) if padded else None
    everything, chosen = Capture(), Capture(layers=frozenset({2}), heads=(3, 1))
    plain = model(ids, pos=pos)
    assert torch.equal(model(ids, pos=pos, capture=everything), plain)
    assert torch.equal(model(ids, pos=pos, capture=chosen), plain)
    assert sorted(everything.weights) == [0, 1, 2]
    assert list(chosen.weights) == [2]
    assert torch.equal(chosen.weights[2][0], everything.weights[2][0][:, [3, 1]])
    at = torch.arange(9).expand(2, -1) if pos is None else pos
    real = (at >= 0).long()
    for layer, window in enumerate(model.windows):
        (weights,) = everything.weights[layer]  # (B, H, T, K)
        seen = visible(at, at, real, real, model.causal, window)[:, None].expand_as(weights)
        assert_same(weights.sum(dim=-1), real[:, None].expand(2, 4, 9).double())
        assert not weights[~seen].any()
        assert (weights[seen] > 0).all()
        assert not weights.requires_grad


def test_captured_weights_reproduce_the_attention_output() -> None:
    """In the first block, values mixed with the captured weights equal the attention output."""
    model, ids = tiny_model(positions=None, kv_heads=2), draw_ids(2, 7)
    capture = Capture(layers=frozenset({0}))
    attention = model.blocks[0].attention
    taken: list[Tensor] = []
    handle = attention.inner.register_forward_hook(lambda module, inputs, output: taken.append(output))
    model(ids, capture=capture)
    handle.remove()
    x = attention.norm(model.embedding(ids))
    q, k, v = attention.inner.qkv(x).view(2, 7, 8, 4).transpose(1, 2).split((4, 2, 2), dim=1)
    out, weights = explicit(q, k, v, torch.ones(2, 7, 7, dtype=torch.bool).tril())
    assert_same(capture.weights[0][0], weights)
    assert_same(taken[0], attention.inner.out(out.transpose(1, 2).flatten(2)))


def test_capture_during_decoding_equals_rows_of_one_pass() -> None:
    model, ids = tiny_model(window=(3, None), kv_heads=2, positions="rotary"), draw_ids(1, 8)
    whole, decoding = Capture(), Capture()
    model(ids, capture=whole)
    _, rows = TorchEngine(model, decoding).prefill([ids[0, :4].tolist()])
    for at in range(4, 8):
        rows.step([[int(ids[0, at])]])
    for layer, window in enumerate(model.windows):
        assert len(decoding.weights[layer]) == 5
        for at, weights in enumerate(decoding.weights[layer][1:], start=4):
            first = 0 if window is None else at + 1 - window
            assert weights.shape == (1, 4, 1, at + 1 - first)
            assert_same(weights[:, :, 0], whole.weights[layer][0][:, :, at, first : at + 1])


def test_weights_are_computed_only_for_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*parts: object) -> Tensor:
        raise AssertionError("weights were computed")

    monkeypatch.setattr("lilliput.model.attention.attention_weights", refuse)
    model, ids = tiny_model(), draw_ids(1, 5)
    assert model(ids).shape == (1, 5, 17)
    assert model(ids, capture=Capture(layers=frozenset())).shape == (1, 5, 17)
    with pytest.raises(AssertionError, match="weights were computed"):
        model(ids, capture=Capture())


@pytest.mark.parametrize(
    ("window", "windows"), [(None, [None] * 3), (5, [5] * 3), ((3, None), [3, None, 3]), ((1, 2, 3, 4), [1, 2, 3])]
)
def test_window_pattern_repeats_over_layers(window: Any, windows: list[int | None]) -> None:
    assert tiny_model(window=window).windows == windows


def test_packed_rows_have_no_cache() -> None:
    model, ids = tiny_model(), draw_ids(1, 3)
    with pytest.raises(AssertionError, match="one document"):
        model(ids, doc=torch.ones(1, 3, dtype=torch.long), cache=model.new_cache(1))
