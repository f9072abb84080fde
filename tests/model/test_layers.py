"""Feed-forwards, norm placements, heads and embeddings, compared with their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.tiny_models import assert_same, draw, draw_ids, tiny_model, tiny_settings
from lilliput.model.heads import ClassifierHead
from lilliput.model.layers import relu2
from lilliput.model.model_choices import FEED_FORWARDS, NORM_PLACEMENTS, NORMS
from lilliput.model.shapes import gated_width
from lilliput.model.transformer import build_model
from lilliput.settings.tree import VectorSettings


def activate_by_hand(kind: str, x: np.ndarray) -> np.ndarray:
    if kind == "relu":
        return np.maximum(x, 0)
    if kind == "relu2":
        return np.maximum(x, 0) ** 2
    if kind == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    gate, up = np.split(x, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("kind", list(FEED_FORWARDS))
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forwards_equal_their_formulas(kind: str, bias: bool) -> None:
    part, x = FEED_FORWARDS[kind].build(6, 24, bias).double(), draw(2, 3, 6)
    up, down = (matrix.weight.detach().numpy().T for matrix in (part.up, part.down))
    up_bias, down_bias = (matrix.bias.detach().numpy() if bias else 0.0 for matrix in (part.up, part.down))
    by_hand = activate_by_hand(kind, x.numpy() @ up + up_bias) @ down + down_bias
    assert_same(part(x, None), torch.from_numpy(by_hand))  # type: ignore[arg-type]


def test_gradient_of_squared_relu() -> None:
    x, gradient = draw(3, 5, seed=1).requires_grad_(), draw(3, 5, seed=2)
    with torch.no_grad():
        x[0, 0] = 0.0
    (ours,) = torch.autograd.grad(relu2(x), x, gradient)
    (theirs,) = torch.autograd.grad(torch.relu(x).square(), x, gradient)
    assert_same(ours, theirs)


def test_capped_logits_equal_their_formula() -> None:
    plain, capped = tiny_model(biases="all"), tiny_model(biases="all", soft_cap=3.0)
    ids = draw_ids(2, 5)
    logits = plain(ids)
    assert logits.abs().max() > 1.0, "small logits would not be changed by the cap"
    assert_same(capped(ids), 3.0 * torch.tanh(logits / 3.0))


@pytest.mark.parametrize(("hidden", "width"), [(1024, 680), (24, 16), (12, 8), (1, 8), (2048, 1368)])
def test_gated_width_is_two_thirds(hidden: int, width: int) -> None:
    assert gated_width(hidden) == width
    assert width % 8 == 0
    gated = FEED_FORWARDS["swiglu"].build(6, hidden, bias=False)
    assert (gated.up.out_features, gated.down.in_features) == (2 * width, width)


class Half(nn.Module):
    def forward(self, x: Tensor, state: object) -> Tensor:
        return 0.5 * x


def test_norm_placements_equal_their_formulas() -> None:

    x, norm = draw(2, 3, 8), NORMS["layer"].build(8).double()
    pre, post = (NORM_PLACEMENTS[kind].build(norm, Half(), 0.0) for kind in ("pre", "post"))  # type: ignore[arg-type]
    assert_same(pre(x, None), x + 0.5 * norm(x))
    assert_same(post(x, None), norm(1.5 * x))


def test_classifier_head_ignores_padding() -> None:
    head, x = ClassifierHead(8, 5, 3).double(), draw(2, 6, 8)

    class Now:
        pos, doc = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, -1, -1, -1, -1]]), None

    pooled = torch.stack((x[0].mean(dim=0), x[1, :2].mean(dim=0)))
    by_hand = head.project(torch.relu(head.inner(pooled)))
    assert_same(head(x, Now()), by_hand)  # type: ignore[arg-type]

    class Packed:
        pos, doc = torch.zeros(2, 6), torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 0]])

    assert_same(head(x, Packed()), by_hand)  # type: ignore[arg-type]


def test_embedding_is_scaled_for_sinusoidal_positions() -> None:
    ids = draw_ids(2, 3)
    for positions, scale in (("sinusoidal", 4.0), ("rotary", 1.0), ("learned", 1.0), (None, 1.0)):
        model = tiny_model(positions=positions)
        assert_same(model.embedding(ids), model.embedding.table.weight[ids] * scale)


def test_pretrained_vectors_are_scaled_projected_and_frozen_or_tuned() -> None:
    ids = draw_ids(2, 3)
    for frozen, scaled in ((True, True), (False, False)):
        model = build_model(tiny_settings(), VectorSettings(width=9, frozen=frozen, scaled=scaled), seed=0).double()
        table, projection = model.embedding.table.weight, model.embedding.project.weight
        assert_same(model.embedding(ids), table[ids] * (3.0 if scaled else 1.0) @ projection.T)
        model(ids).sum().backward()
        assert (table.grad is None) == frozen
        assert projection.grad.abs().sum() > 0


def test_dropout_is_active_in_training_only() -> None:
    model, ids = tiny_model(dropout=0.5), draw_ids(2, 5)
    assert torch.equal(model(ids), model(ids))
    torch.manual_seed(0)
    assert not torch.equal(model.train()(ids), model(ids))
