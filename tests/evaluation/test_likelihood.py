"""Nats of a text: each token once, summed and divided once; the model's mode is restored."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from helpers.tiny_models import tiny_model
from lilliput.data.batches import PackedRows
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.likelihood import Likelihood, measure_likelihood


def token_file(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """END d1 END d2 END ... with ids below 16; END is 16."""
    generator = np.random.default_rng(seed)
    tokens, offsets = [16], [1]
    for length in lengths:
        tokens += [*generator.integers(16, size=length).tolist(), 16]
        offsets.append(len(tokens))
    return np.array(tokens, dtype=np.uint16), np.array(offsets, dtype=np.int64)


def rows_of(tokens: np.ndarray, offsets: np.ndarray) -> PackedRows:
    return PackedRows(TokenFile(tokens, offsets, np.diff(offsets)), context=24, start=16)


def by_hand(model: torch.nn.Module, tokens: np.ndarray, offsets: np.ndarray, context: int) -> tuple[float, int]:
    nats, count = 0.0, 0
    for first, after in itertools.pairwise(offsets):
        document = tokens[first - 1 : after].astype(np.int64)  # from the end-of-text before it to its own
        for start in range(0, len(document) - 1, context):
            seen = document[start : start + context + 1]
            with torch.inference_mode():
                logits = model(torch.from_numpy(seen[None, :-1].copy()))[0].numpy()
            scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            nats -= float(scores[np.arange(len(seen) - 1), seen[1:]].sum())
            count += len(seen) - 1
    return nats, count


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal"])
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_tokens_are_scored_once_for_any_batch_size(positions: str, batch: int) -> None:
    """Documents shorter and longer than the context, packed or padded: the sum equals that of separate documents."""
    tokens, offsets = token_file([3, 24, 25, 50, 1, 7, 23, 72])
    model = tiny_model(positions=positions, window=(8, None))
    rows = rows_of(tokens, offsets)
    found = measure_likelihood(model, rows.in_order(batch), bytes_per_prediction=1.0)
    nats, count = by_hand(model, tokens, offsets, context=24)
    assert found.tokens == count == len(tokens) - 1
    assert found.nats == pytest.approx(nats, rel=1e-12)
    assert found.loss == pytest.approx(nats / count, rel=1e-12)


def test_packed_documents_are_independent() -> None:
    """A document has the same nats alone and packed with others."""
    model = tiny_model()
    alone, offsets = token_file([5])
    nats, _ = by_hand(model, alone, offsets, 24)
    together = np.concatenate([alone, alone[1:], alone[1:]])
    places = np.array([1, 7, 13, 19])
    rows = rows_of(together, places)
    assert len(rows) == 1, "the documents must share one row"
    found = measure_likelihood(model, rows.in_order(4), 1.0)
    assert found.nats == pytest.approx(3 * nats, rel=1e-12)


def test_dropout_is_disabled_and_restored() -> None:
    tokens, offsets = token_file([20, 30])
    model = tiny_model(dropout=0.5).train()
    rows = rows_of(tokens, offsets)
    before = torch.get_rng_state()
    first, second = (measure_likelihood(model, rows.in_order(2), 1.0) for _ in range(2))
    assert first == second
    assert model.training
    assert torch.equal(torch.get_rng_state(), before), "evaluation draws nothing"
    assert all(weight.grad is None for weight in model.parameters())


def test_metrics() -> None:
    found = Likelihood(nats=200.0, tokens=100, bytes=400.0)
    assert found.loss == 2.0
    assert found.perplexity == pytest.approx(math.e**2)
    assert found.bits_per_byte == pytest.approx(0.5 / math.log(2))


def test_perplexity_is_finite() -> None:
    """JSON has no infinity."""
    found = Likelihood(nats=1e6, tokens=1, bytes=1.0)
    assert math.isfinite(found.perplexity)
    assert found.perplexity > 1e307
