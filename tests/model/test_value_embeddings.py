"""Value embeddings: formula and gradients of the mixture, and their effect on a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.tiny_models import assert_same, draw, draw_ids, tiny_model, tiny_settings
from lilliput.model.embeddings import ValueEmbedding, mix
from lilliput.model.transformer import build_model


@pytest.mark.parametrize("view", [False, True])
def test_mix_equals_its_formula_and_gradients(view: bool) -> None:
    """Also for a view, as values are a view of their projection."""
    x = draw(2, 5, 4, 3, seed=1)[:, :, 1:3] if view else draw(2, 5, 2, 3, seed=1)
    inputs = [part.detach().requires_grad_() for part in (x, draw(2, 5, 2, 3, seed=2), draw(2, seed=3))]
    gradient = draw(2, 2, 5, 3, seed=4).transpose(1, 2)  # the layout of attention's gradient
    ours, theirs = mix(*inputs), inputs[2][0] * inputs[0] + inputs[2][1] * inputs[1]
    assert_same(ours, theirs)
    for found, wanted in zip(
        torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(theirs, inputs, gradient), strict=True
    ):
        assert_same(found, wanted)


def test_values_are_mixed_with_the_table() -> None:
    """A table that equals the projected values of each token gives the same output as a model without a table."""
    model, plain = tiny_model(value_embeddings="ends", kv_heads=2), tiny_model(kv_heads=2)
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    ids = draw_ids(2, 9)
    first = model.blocks[0].attention
    x = model.embedding.table.weight
    projected = first.inner.qkv(first.norm(x))[:, -8:]  # (V, G D): no positions, so values depend only on the token
    with torch.no_grad():
        first.inner.values.table.weight.copy_(2.0 * projected)
        first.inner.values.shares.copy_(torch.tensor([0.25, 0.375]))
        model.blocks[2].attention.inner.values.shares.copy_(torch.tensor([1.0, 0.0]))
    assert_same(model(ids), plain(ids))


def test_shares_and_used_rows_have_gradients() -> None:
    model, ids = tiny_model(value_embeddings="all"), draw_ids(2, 6)
    model(ids).square().sum().backward()
    read = torch.zeros(17, dtype=torch.bool).scatter(0, ids.flatten(), torch.ones(12, dtype=torch.bool))
    for block in model.blocks:
        values = block.attention.inner.values
        assert isinstance(values, ValueEmbedding)
        assert (values.shares.grad != 0).all()
        assert torch.equal(values.table.weight.grad.abs().sum(dim=-1) > 0, read)


def test_initialisation_of_value_embeddings() -> None:
    settings = tiny_settings(initialisation="zero-residual", value_embeddings="ends", vocab_size=2000)
    model = build_model(settings, seed=0)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    assert len(tables) == 3
    for table in tables:
        assert abs(table.weight.std().item() / 0.02 - 1) < 0.02
    assert not torch.equal(tables[1].weight, tables[2].weight)
