"""Compiled attention and its gradients, compared with explicit attention weights in float64."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from helpers.dropout_masks import attention_mask_of, tensor_mask_of
from helpers.tiny_models import draw_ids, gradients, tiny_model
from lilliput.kernels import dropout, training_attention
from lilliput.kernels.dropout import NO_MASK, RANGE, DropoutMask, draw_mask
from lilliput.kernels.openmp import find_openmp_parallel
from lilliput.kernels.training_attention import attend_compiled, can_attend
from lilliput.model import attention
from lilliput.model.attention import attention_weights
from lilliput.model.attention_mask import Visibility
from lilliput.model.language_loss import IGNORED, language_loss

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" and find_openmp_parallel() is None, reason="torch's OpenMP library was not found"
)


def projection(rows: int, heads: int, kv_heads: int, tokens: int, size: int) -> Tensor:
    """Return (B, T, H + 2G, D), of which q, k and v are views."""
    return torch.randn(rows, tokens, heads + 2 * kv_heads, size, generator=torch.Generator().manual_seed(1))


def split(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (part.transpose(1, 2) for part in torch.split(qkv, [heads, kv_heads, kv_heads], dim=2))
    return q, k, v


def by_weights(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, dropped: DropoutMask = NO_MASK) -> Tensor:
    """Compute attention with explicit weights and an explicit mask of dropout."""
    place = torch.arange(q.shape[2])
    mask = (place[:, None] >= place) & (place >= starts[:, :, None])  # (B, T, K)
    weights = attention_weights(q, k, Visibility(mask[:, None]))
    weights = weights * attention_mask_of(dropped, *q.shape[:3]) / (1 - dropped.threshold / RANGE)
    return weights @ v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def outcome(
    attend: object, qkv: Tensor, heads: int, kv_heads: int, starts: Tensor, *dropout: object
) -> tuple[Tensor, Tensor]:
    assert callable(attend)
    leaf = qkv.detach().clone().requires_grad_()
    out = attend(*split(leaf, heads, kv_heads), starts, *dropout)
    out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype))
    assert leaf.grad is not None
    return out.detach(), leaf.grad


def documents(rows: int, tokens: int) -> Tensor:
    """Return the first keys of rows with three documents and padding, of different lengths in each row."""
    starts = torch.zeros(rows, tokens, dtype=torch.int64)
    for row in range(rows):
        first, second, end = (tokens * share // 100 for share in (20 + 5 * row, 55, 90 - 7 * row))
        starts[row, first:second] = first
        starts[row, second:end] = second
        starts[row, end:] = torch.arange(end, tokens) + 1  # no visible keys
    return starts


SHAPES = [
    (2, 3, 3, 256, 48),
    (1, 4, 2, 37, 32),
    (2, 2, 1, 200, 16),
    (1, 2, 2, 5, 64),
    (1, 2, 2, 130, 80),
    (2, 2, 2, 1, 16),
]


def starts_of(mask: str, rows: int, tokens: int) -> Tensor:
    if mask == "window":
        return (torch.arange(tokens) - 16).clamp(min=0)[None]
    return documents(rows, tokens) if mask == "documents" else torch.zeros(1, tokens, dtype=torch.int64)


@pytest.mark.parametrize(("rows", "heads", "kv_heads", "tokens", "size"), SHAPES)
@pytest.mark.parametrize("mask", ["all", "window", "documents"])
def test_equal_to_the_weights_in_float64(
    rows: int, heads: int, kv_heads: int, tokens: int, size: int, mask: str
) -> None:
    starts = starts_of(mask, rows, tokens)
    qkv = projection(rows, heads, kv_heads, tokens, size)
    exact = outcome(by_weights, qkv.double(), heads, kv_heads, starts)
    found = outcome(attend_compiled, qkv, heads, kv_heads, starts)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, atol=3e-6, rtol=1e-5)


def test_large_scores_do_not_overflow() -> None:
    starts = torch.zeros(1, 40, dtype=torch.int64)
    qkv = projection(1, 2, 2, 40, 16) * 30
    exact = outcome(by_weights, qkv.double(), 2, 2, starts)
    for one, other in zip(outcome(attend_compiled, qkv, 2, 2, starts), exact, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-3, rtol=1e-4)


def test_bits_do_not_depend_on_batch_or_threads() -> None:
    qkv, starts = projection(4, 3, 1, 70, 32), documents(4, 70)
    whole, before = outcome(attend_compiled, qkv, 3, 1, starts), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = outcome(attend_compiled, qkv, 3, 1, starts)
    finally:
        torch.set_num_threads(before)
    alone = attend_compiled(*split(qkv[2:3], 3, 1), starts[2:3])
    assert torch.equal(whole[0], single[0]) and torch.equal(whole[1], single[1])
    assert torch.equal(whole[0][2:3], alone)


def test_unsupported_inputs_use_torch() -> None:
    q, k, v = split(projection(1, 2, 2, 8, 16), 2, 2)
    assert can_attend(q, k, v)
    assert not can_attend(q.double(), k.double(), v.double())
    assert not can_attend(q, k[:, :, :4], v[:, :, :4])
    assert not can_attend(q[..., :12], k[..., :12], v[..., :12])
    assert not can_attend(q.transpose(2, 3).contiguous().transpose(2, 3), k, v)


# Dropout of attention weights.


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[DropoutMask]:
    """The masks that attention and layers draw, in order."""
    drawn: list[DropoutMask] = []

    def recorded(p: float) -> DropoutMask:
        drawn.append(draw_mask(p))
        return drawn[-1]

    monkeypatch.setattr(training_attention, "draw_mask", recorded)
    monkeypatch.setattr(dropout, "draw_mask", recorded)
    return drawn


@pytest.mark.parametrize(("rows", "heads", "kv_heads", "tokens", "size"), SHAPES)
@pytest.mark.parametrize("mask", ["all", "window", "documents"])
@pytest.mark.parametrize("p", [0.2, 0.8])
def test_dropout_equals_the_masked_weights_in_float64(
    rows: int, heads: int, kv_heads: int, tokens: int, size: int, mask: str, p: float, masks: list[DropoutMask]
) -> None:
    starts, qkv = starts_of(mask, rows, tokens), projection(rows, heads, kv_heads, tokens, size)
    found = outcome(attend_compiled, qkv, heads, kv_heads, starts, p)
    (drawn,) = masks
    assert drawn.threshold == round(p * RANGE)
    exact = outcome(by_weights, qkv.double(), heads, kv_heads, starts, drawn)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


def test_mask_of_dropout_bit_for_bit(masks: list[DropoutMask]) -> None:
    """Equal scores, and values of which each is 1 in one dimension: the outputs are the weights."""
    rows, heads, tokens = 3, 4, 96
    q = torch.zeros(rows, heads, tokens, tokens)
    v = torch.eye(tokens).expand(rows, heads, -1, -1).contiguous()
    weights = attend_compiled(q, q, v, torch.zeros(1, tokens, dtype=torch.long), 0.3)
    expected = attention_mask_of(masks[0], rows, heads, tokens).tril()
    assert torch.equal(weights != 0, expected)
    visible = torch.arange(1, tokens + 1, dtype=torch.float64)[:, None]
    torch.testing.assert_close(weights.double(), expected / visible / 0.7, atol=0.0, rtol=1e-6)


def test_masks_of_rows_heads_and_calls_are_uncorrelated() -> None:
    rows, heads, tokens = 3, 4, 256
    lower = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    kept = [attention_mask_of(draw_mask(0.2), rows, heads, tokens)[:, :, lower].double() for _ in range(2)]
    numbers = torch.cat(kept).flatten(0, 1)  # (calls, rows and heads; visible weights)
    numbers = (numbers - 0.8) / math.sqrt(0.16)
    products = numbers @ numbers.T / math.sqrt(numbers.shape[1])
    assert products.fill_diagonal_(0.0).abs().max() < 5.0
    assert abs(numbers.sum()) < 5.0 * math.sqrt(numbers.numel()), "the share of kept weights"


def test_dropout_does_not_depend_on_threads() -> None:
    qkv, starts, before, found = projection(4, 3, 1, 70, 32), documents(4, 70), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            found.append(outcome(attend_compiled, qkv, 3, 1, starts, 0.2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for again in found[1:] for one, other in zip(again, found[0], strict=True))


def test_the_seed_of_torch_determines_dropout() -> None:
    q, k, v = split(projection(1, 2, 2, 40, 16), 2, 2)
    starts, found = torch.zeros(1, 40, dtype=torch.long), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found += [attend_compiled(q, k, v, starts, 0.2), attend_compiled(q, k, v, starts, 0.2)]
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[0], found[4])


def test_no_dropout_draws_nothing(masks: list[DropoutMask]) -> None:
    qkv, before = projection(1, 2, 2, 8, 16), torch.get_rng_state()
    outcome(attend_compiled, qkv, 2, 2, torch.zeros(1, 8, dtype=torch.long))
    assert not masks and torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_a_model_with_dropout_equal_float64(
    packed: bool, masks: list[DropoutMask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All dropout of a model is compiled; the same masks, applied explicitly in float64, give the same gradients."""
    shape = {"dim": 64, "heads": 4, "kv_heads": 2, "head_dim": 32, "layers": 2, "context": 48}
    model = tiny_model(**shape, window=(7, None), positions="rotary", dropout=0.3).train().float()
    ids, targets, doc = draw_ids(2, 48), draw_ids(2, 48, seed=1), torch.ones(2, 48, dtype=torch.long)
    doc[0, 20:], doc[:, 40:] = 2, 0
    pos = torch.arange(48).expand(2, -1).clone()
    pos[0, 20:] -= 20
    place = (pos, doc) if packed else (None, None)
    language_loss(model, ids, targets, *place).goal.backward()
    found, waiting = gradients(model), iter(list(masks))
    assert len(masks) == 1 + 2 * 3 and len(set(masks)) == len(masks)  # embedding; attention and two residuals per layer

    def attend_explicitly(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, *_: object) -> Tensor:
        assert visibility.starts is not None
        return by_weights(q, k, v, visibility.starts, next(waiting))

    def drop_explicitly(layer: dropout.Dropout, x: Tensor) -> Tensor:
        mask = next(waiting)
        return x * tensor_mask_of(mask, *x.shape) / (1 - mask.threshold / RANGE)

    monkeypatch.setattr(attention, "attend", attend_explicitly)
    monkeypatch.setattr(dropout.Dropout, "forward", drop_explicitly)
    model.double().zero_grad()
    language_loss(model, ids, targets, *place).goal.backward()
    assert next(waiting, None) is None
    for name, exact in gradients(model).items():
        torch.testing.assert_close(found[name].double(), exact, atol=1e-5 * float(exact.abs().max()), rtol=1e-4)


def test_16_bit_floats_use_torch(masks: list[DropoutMask]) -> None:
    """Under autocast only the embedding is float32: its dropout is compiled, attention and residuals are torch's."""
    model = tiny_model(dim=64, heads=4, layers=2, dropout=0.3).train().float()
    with torch.autocast("cpu", torch.bfloat16):
        language_loss(model, draw_ids(2, 24), draw_ids(2, 24, seed=1), None, None).goal.backward()
    assert len(masks) == 1


# In a model.


@pytest.mark.parametrize("head_dim", [None, 32])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_a_model_equal_float64(
    packed: bool, head_dim: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows, grouped heads and rotary positions; evaluation does not use the kernel."""
    calls: list[Tensor] = []

    def recorded(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, dropout: float) -> Tensor:
        calls.append(starts)
        return attend_compiled(q, k, v, starts, dropout)

    monkeypatch.setattr(attention, "attend_compiled", recorded)
    shape = {"dim": 64, "heads": 4, "kv_heads": 2, "head_dim": head_dim, "layers": 2, "context": 48}
    model = tiny_model(**shape, window=(7, None), positions="rotary").train()
    ids, doc = draw_ids(2, 48), torch.ones(2, 48, dtype=torch.long)
    doc[0, 20:], doc[:, 40:] = 2, 0
    pos = torch.arange(48).expand(2, -1).clone()
    pos[0, 20:] -= 20
    place = (pos, doc) if packed else (None, None)
    targets = draw_ids(2, 48, seed=1).masked_fill(doc == 0, IGNORED) if packed else draw_ids(2, 48, seed=1)
    language_loss(model, ids, targets, *place).goal.backward()
    exact = gradients(model)
    assert not calls
    model.float().zero_grad()
    language_loss(model, ids, targets, *place).goal.backward()
    assert len(calls) == 2
    for name, gradient in gradients(model).items():
        scale = float(exact[name].abs().max())
        torch.testing.assert_close(gradient.double(), exact[name], atol=1e-5 * scale, rtol=1e-4)
    with torch.no_grad():
        language_loss(model.eval(), ids, targets, *place)
    assert len(calls) == 2
