"""Compiled attention and its gradients, compared with explicit attention weights in float64."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from helpers.tiny_models import draw_ids, gradients, tiny_model
from lilliput.kernels.openmp_waiting import find_openmp_parallel
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


def by_weights(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Compute attention with explicit weights."""
    place = torch.arange(q.shape[2])
    mask = (place[:, None] >= place) & (place >= starts[:, :, None])  # (B, T, K)
    return attention_weights(q, k, Visibility(mask[:, None])) @ v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def outcome(attend: object, qkv: Tensor, heads: int, kv_heads: int, starts: Tensor) -> tuple[Tensor, Tensor]:
    assert callable(attend)
    leaf = qkv.detach().clone().requires_grad_()
    out = attend(*split(leaf, heads, kv_heads), starts)
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


@pytest.mark.parametrize(("rows", "heads", "kv_heads", "tokens", "size"), SHAPES)
@pytest.mark.parametrize("mask", ["all", "window", "documents"])
def test_equal_to_the_weights_in_float64(
    rows: int, heads: int, kv_heads: int, tokens: int, size: int, mask: str
) -> None:
    starts = torch.zeros(1, tokens, dtype=torch.int64)
    if mask == "window":
        starts = (torch.arange(tokens) - 16).clamp(min=0)[None]
    elif mask == "documents":
        starts = documents(rows, tokens)
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


@pytest.mark.parametrize("head_dim", [None, 32])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_of_a_model_equal_float64(
    packed: bool, head_dim: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With windows, grouped heads and rotary positions; evaluation does not use the kernel."""
    calls: list[Tensor] = []

    def recorded(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        calls.append(starts)
        return attend_compiled(q, k, v, starts)

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
