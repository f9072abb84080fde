"""The combined head and cross-entropy, compared with torch's plain cross-entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.tiny_models import assert_same, draw_ids, gradients, tiny_model
from lilliput.data import batches
from lilliput.model import language_loss as loss
from lilliput.model.language_loss import IGNORED, language_loss
from lilliput.model.transformer import Transformer

CASES: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tied": True},
    "bias": {"bias_head": True},
    "tied, bias": {"tied": True, "bias_head": True},
    "many tokens": {"vocab_size": 701},
    "capped": {"soft_cap": 3.0},
    "capped, bias": {"soft_cap": 0.5, "bias_head": True},
}
TERMS = {"plain": (0.0, 0.0), "smoothed": (0.3, 0.0), "penalised": (0.0, 0.2), "both": (0.1, 0.05)}


def plain(
    model: Transformer,
    ids: Tensor,
    targets: Tensor,
    pos: Tensor | None = None,
    doc: Tensor | None = None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    logits, goals = model(ids, pos=pos, doc=doc).flatten(0, 1), targets.flatten()
    nats = F.cross_entropy(logits, goals, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return nats + z_loss * logits[goals != IGNORED].logsumexp(dim=-1).square().sum()


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (40, 23)])
@pytest.mark.parametrize("ignored", ["none", "some", "a row"])
@pytest.mark.parametrize("chunk", [None, 1, 5000])  # one chunk, one token per chunk, or a smaller last chunk
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_value_and_gradients_equal_plain_cross_entropy(
    case: dict[str, Any],
    shape: tuple[int, int],
    ignored: str,
    chunk: int | None,
    terms: tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if chunk == 1 and shape == (40, 23):
        shape = (4, 23)  # one product per token is slow
    if chunk is not None:
        monkeypatch.setattr("lilliput.model.language_loss.CHUNK_NUMBERS", chunk)
    vocab_size = case.get("vocab_size", 17)
    model = tiny_model(layers=1, **case)
    ids, targets = (draw_ids(*shape, seed=seed, vocab_size=vocab_size) for seed in (1, 2))
    if ignored == "some":
        targets[:, 1::2] = IGNORED
    elif ignored == "a row":
        targets[-1] = IGNORED
    expected = plain(model, ids, targets, None, None, *terms)
    (expected / 7).backward()
    slow = gradients(model)
    model.zero_grad(set_to_none=True)
    loss = language_loss(model, ids, targets, None, None, *terms)
    assert loss.goal.shape == loss.nats.shape == ()
    assert_same(loss.goal, expected, 1e-12 * max(1.0, expected.item()))
    assert not loss.nats.requires_grad
    assert_same(loss.nats, plain(model, ids, targets), 1e-12 * max(1.0, expected.item()))
    (loss.goal / 7).backward()
    fast = gradients(model)
    assert fast.keys() == slow.keys()
    for name in slow:
        assert_same(fast[name], slow[name], 1e-12 * max(1.0, slow[name].abs().max().item()))


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_logits_of_any_size(size: float) -> None:
    """Probabilities that round to 0 and 1 are exact: the loss of an unlikely token is thousands of nats, not infinite."""
    model, ids, targets = tiny_model(), draw_ids(3, 7), draw_ids(3, 7, seed=1)
    with torch.no_grad():
        model.head.project.weight *= size
    expected = plain(model, ids, targets)
    expected.backward()
    slow = gradients(model)
    model.zero_grad(set_to_none=True)
    loss = language_loss(model, ids, targets, None, None).goal
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0.0)
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, slow[name], rtol=0.0, atol=1e-12 * max(1.0, slow[name].abs().max().item()))


def test_loss_of_packed_rows() -> None:
    model, ids, targets = tiny_model(), draw_ids(1, 6), draw_ids(1, 6, seed=1)
    pos, doc = torch.tensor([[0, 1, 2, 0, 1, -1]]), torch.tensor([[1, 1, 1, 2, 2, 0]])
    targets[0, 5] = IGNORED
    loss = language_loss(model, ids, targets, pos, doc).goal
    assert_same(loss, plain(model, ids, targets, pos, doc))
    apart = sum(plain(model, ids[:, a:b], targets[:, a:b]) for a, b in ((0, 3), (3, 5)))
    assert_same(loss, apart)


def test_loss_without_targets_is_zero() -> None:
    model, ids = tiny_model(), draw_ids(2, 4)
    loss = language_loss(model, ids, torch.full((2, 4), IGNORED), None, None, smoothing=0.1, z_loss=0.1)
    loss.goal.backward()
    assert loss.goal.item() == loss.nats.item() == 0.0
    assert all(not grad.any() for grad in gradients(model).values())


def test_value_without_gradients() -> None:
    model, ids, targets = tiny_model(), draw_ids(3, 9), draw_ids(3, 9, seed=1)
    with torch.inference_mode():
        alone = language_loss(model, ids, targets, None, None, smoothing=0.1, z_loss=0.1)
    assert_same(language_loss(model, ids, targets, None, None, smoothing=0.1, z_loss=0.1).goal, alone.goal)


@pytest.mark.parametrize("bias", [False, True])
def test_no_gradient_products_without_gradients(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the three products with the head's matrix, validation computes only the logits."""
    model, ids, targets = tiny_model(bias_head=bias), draw_ids(3, 9), draw_ids(3, 9, seed=1)
    made: list[tuple[int, ...]] = []
    real = loss.add_product

    def spy(total: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> None:
        made.append(tuple(total.shape))
        real(total, a, b, beta, alpha)

    monkeypatch.setattr(loss, "add_product", spy)
    with torch.no_grad():
        language_loss(model, ids, targets, None, None)
    assert made == [(27, 17)]
    language_loss(model, ids, targets, None, None)
    assert made == [(27, 17), (27, 17), (27, 16), (17, 16)]


def test_gradients_through_a_frozen_head() -> None:
    model, ids, targets = tiny_model(bias_head=True), draw_ids(2, 5), draw_ids(2, 5, seed=1)
    model.head.requires_grad_(False)
    plain(model, ids, targets).backward()
    slow = gradients(model)
    model.zero_grad(set_to_none=True)
    language_loss(model, ids, targets, None, None).goal.backward()
    assert not any(name.startswith("head") for name in slow)
    for name, grad in gradients(model).items():
        assert_same(grad, slow[name])


def test_ignored_target_is_the_same_in_data_and_model() -> None:
    """`model` does not import `data`, so both define the constant."""
    assert batches.IGNORED == IGNORED
