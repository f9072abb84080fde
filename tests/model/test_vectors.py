"""Word vectors in the model: lookup, gradients, parameter counts and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.tiny_models import assert_same, draw_ids, tiny_settings
from lilliput.model.counting import count
from lilliput.model.embeddings import PatchedEmbedding, PretrainedEmbedding, put_vectors
from lilliput.model.transformer import Transformer, build_model, load_weights, weights
from lilliput.settings.loading import load_config
from lilliput.settings.tree import OptimizerSettings, VectorSettings
from lilliput.training.optimizers import build_optimizer

WIDTH, TOKENS = 9, 17
COVERED = np.array([n not in (0, 1, 5, 11) for n in range(TOKENS)])
TABLE = np.random.default_rng(0).normal(0, 0.3, (TOKENS, WIDTH)).astype(np.float32) * COVERED[:, None]
MISSING = np.flatnonzero(~COVERED)


def build(
    table: np.ndarray = TABLE, covered: np.ndarray = COVERED, vocab_size: int = TOKENS, **choice: Any
) -> Transformer:
    vectors = VectorSettings(width=WIDTH, **choice)
    if vectors.frozen and vectors.uncovered == "learned":
        vectors = replace(vectors, rows=vocab_size - int(covered.sum()))
    model = build_model(tiny_settings(vocab_size=vocab_size), vectors, seed=4)
    put_vectors(model.embedding, model.vectors.uncovered, table, covered)
    return model.double()


def rows_of(model: Transformer) -> torch.Tensor:
    """Return the vector of each token, before scale and projection."""
    return model.embedding.look_up(torch.arange(model.settings.vocab_size))  # type: ignore[union-attr, operator]


ALL_CHOICES = [
    {"frozen": frozen, "uncovered": uncovered, "scaled": scaled}
    for frozen in (True, False)
    for uncovered in ("learned", "average")
    for scaled in (True, False)
]


@pytest.mark.parametrize("choice", ALL_CHOICES, ids=str)
def test_embedding_equals_explicit_lookup(choice: dict[str, Any]) -> None:
    model, ids = build(**choice), draw_ids(3, 7)
    by_hand = torch.from_numpy(TABLE).double().clone()
    if choice["uncovered"] == "average":
        by_hand[MISSING] = torch.from_numpy(TABLE[COVERED]).mean(dim=0).double()
    elif choice["frozen"]:
        by_hand[MISSING] = model.embedding.learned.weight.detach()
    else:
        by_hand[MISSING] = model.embedding.table.weight[MISSING].detach()
    scale = 3.0 if choice["scaled"] else 1.0
    assert_same(model.embedding(ids), scale * by_hand[ids] @ model.embedding.project.weight.T)


@pytest.mark.parametrize("choice", ALL_CHOICES, ids=str)
def test_parameter_count_from_settings(choice: dict[str, Any]) -> None:
    model = build(**choice)
    counted = count(model.settings, model.vectors).parameters
    assert counted.total == sum(weight.numel() for weight in model.parameters())
    assert counted.trainable == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert counted.embedding == sum(weight.numel() for weight in model.embedding.parameters())
    learned = len(MISSING) * WIDTH if choice["frozen"] and choice["uncovered"] == "learned" else 0
    assert counted.embedding == TOKENS * WIDTH + WIDTH * 16 + learned
    assert counted.total - counted.trainable == (TOKENS * WIDTH if choice["frozen"] else 0)


@pytest.mark.parametrize("frozen", [True, False])
def test_learned_rows_have_the_scale_of_the_vectors(frozen: bool) -> None:
    first, second = (rows_of(build(frozen=frozen))[MISSING].detach() for _ in range(2))
    assert torch.equal(first, second)
    size = np.sqrt(np.square(TABLE[COVERED]).mean())
    assert first.square().mean().sqrt().item() == pytest.approx(size, rel=1e-6)
    assert torch.linalg.matrix_rank(first) == len(MISSING)


def test_gradients_of_learned_rows_equal_those_of_one_table() -> None:
    """A tuned table with the same values has the same gradient at the uncovered rows."""
    mended, whole = build(frozen=True), build(frozen=False)
    load_weights(
        whole, {n: t for n, t in weights(mended).items() if n not in ("embedding.row", "embedding.learned.weight")}
    )
    with torch.no_grad():
        whole.embedding.table.weight[MISSING] = mended.embedding.learned.weight
    ids = draw_ids(4, 9)
    losses = [torch.logsumexp(model(ids), dim=-1).square().sum() for model in (mended, whole)]
    assert_same(losses[0], losses[1], 1e-9)
    for loss in losses:
        loss.backward()
    expected = whole.embedding.table.weight.grad
    assert mended.embedding.table.weight.grad is None
    assert_same(mended.embedding.learned.weight.grad, expected[MISSING], 1e-9)
    assert expected[COVERED].abs().sum() > 0 and expected[MISSING].abs().sum() > 0
    assert_same(mended.embedding.project.weight.grad, whole.embedding.project.weight.grad, 1e-9)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_learned_rows_of_a_frozen_table_change(kind: str) -> None:
    model = build(frozen=True)
    table, learned = (
        weight.detach().clone() for weight in (model.embedding.table.weight, model.embedding.learned.weight)
    )
    optimizer = build_optimizer(OptimizerSettings(kind=kind, weight_decay=0.5), model)
    model(draw_ids(4, 9)).square().sum().backward()
    optimizer.step()
    assert torch.equal(model.embedding.table.weight, table)
    assert (model.embedding.learned.weight != learned).all()


@pytest.mark.parametrize("choice", ALL_CHOICES[::2], ids=str)
def test_checkpoint_contains_the_vectors(choice: dict[str, Any]) -> None:
    model = build(**choice)
    again = build_model(model.settings, model.vectors, seed=99).double()
    load_weights(again, weights(model))
    ids = draw_ids(2, 8)
    assert torch.equal(again(ids), model(ids))
    assert torch.equal(rows_of(again), rows_of(model))


def test_vocabulary_larger_than_the_table() -> None:
    model = build(vocab_size=20)
    assert isinstance(model.embedding, PatchedEmbedding)
    assert model.embedding.learned.weight.shape == (7, WIDTH)
    assert model.embedding.row.tolist() == [0, 1, -1, -1, -1, 2, *[-1] * 5, 3, *[-1] * 5, 4, 5, 6]
    assert torch.equal(rows_of(model)[:TOKENS][COVERED], torch.from_numpy(TABLE[COVERED]).double())


def test_no_learned_rows_if_all_tokens_are_covered() -> None:
    model = build(table=TABLE + 1, covered=np.ones(TOKENS, bool))
    assert type(model.embedding) is PretrainedEmbedding
    assert_same(rows_of(model), torch.from_numpy(TABLE + 1).double())


@pytest.mark.parametrize(("frozen", "uncovered"), [(True, "learned"), (True, "average"), (False, "learned")])
def test_vectors_without_a_projection_are_the_embedding(frozen: bool, uncovered: str) -> None:
    settings = tiny_settings(vocab_size=TOKENS)
    rows = len(MISSING) if frozen and uncovered == "learned" else 0
    vectors = VectorSettings(
        width=settings.dim, frozen=frozen, uncovered=uncovered, rows=rows, scaled=False, projection=False
    )
    model = build_model(settings, vectors, seed=4)
    table = np.random.default_rng(1).normal(0, 0.3, (TOKENS, settings.dim)).astype(np.float32) * COVERED[:, None]
    put_vectors(model.embedding, uncovered, table, COVERED)
    model.double()
    ids = draw_ids(3, 7)
    assert torch.equal(model.embedding(ids), rows_of(model)[ids])
    assert_same(rows_of(model)[COVERED], torch.from_numpy(table[COVERED]).double())
    counted = count(model.settings, model.vectors).parameters
    assert counted.embedding == TOKENS * settings.dim + rows * settings.dim
    assert counted.total == sum(weight.numel() for weight in model.parameters())
    assert counted.trainable == sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def test_count_of_report_s2() -> None:
    """S2 states 8.81M parameters: the trained ones at its vocabulary of 14,886, without a projection."""
    config = load_config("published-words", {"model.vocab_size": "14886", "vectors.uncovered": "average"})
    assert count(config.model, config.vectors).parameters.trainable == 8_812_686
