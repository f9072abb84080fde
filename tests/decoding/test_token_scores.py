"""Nats of each token: equal to brute force in NumPy at any stride, to transformers' GPT-2, and to the training loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.gpt2_reference import as_gpt2, gpt2_like
from helpers.labelled_corpora import token_file
from helpers.tiny_models import tiny_model
from lilliput.data.batches import PackedRows
from lilliput.data.packed_windows import cut_windows
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.token_scores import score_tokens, strided_windows
from lilliput.evaluation.likelihood import measure_likelihood
from lilliput.model.transformer import Transformer

LENGTHS = [3, 24, 25, 1, 0, 23, 50]
START, CONTEXT = 16, 24


def by_hand(model: Transformer, file: TokenFile, stride: int) -> list[tuple[float, int, int, int, int]]:
    """Return (nats, id, document, place, seen) of each prediction, computed separately in NumPy from the logits."""
    rows = []
    for number in range(file.documents):
        first, after = (int(at) for at in file.offsets[number : number + 2])
        words = file.tokens[first : after if file.ends else after - 1].astype(np.int64)
        for place, token in enumerate(words.tolist()):
            begin = 0 if place < CONTEXT else -(-(place - CONTEXT + 1) // stride) * stride
            before = np.concatenate(([START], words))[begin : place + 1]
            with torch.inference_mode():
                logits = model(torch.from_numpy(before[None]))[0, -1].numpy()
            nats = float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[token])
            rows.append((nats, token, number, place, len(before)))
    return rows


@pytest.mark.parametrize(("stride", "ends"), [(None, True), (23, True), (10, True), (10, False), (1, False)])
def test_every_prediction_equals_brute_force(stride: int | None, ends: bool) -> None:
    model, file = tiny_model(positions="learned", window=(8, None), soft_cap=5.0), token_file(LENGTHS, ends=ends)
    found = score_tokens(model, file, START, CONTEXT, stride, batch=3)
    expected = by_hand(model, file, stride or CONTEXT)
    assert len(found.nats) == len(expected) == file.predictions
    np.testing.assert_allclose(found.nats, [row[0] for row in expected], rtol=0, atol=1e-12)
    for name, at in {"ids": 1, "document": 2, "place": 3, "seen": 4}.items():
        assert getattr(found, name).tolist() == [row[at] for row in expected], name


def test_a_stride_of_the_context_gives_the_windows_of_training() -> None:
    file = token_file(LENGTHS)
    starts, lengths, counted = strided_windows(file.offsets, CONTEXT, CONTEXT, file.ends)
    expected = cut_windows(file.offsets, CONTEXT, file.ends)
    assert starts.tolist() == expected[0].tolist() and lengths.tolist() == expected[1].tolist() and not counted.any()


def test_aligned_windows_give_the_loss_of_training() -> None:
    model, file = tiny_model(tied=True), token_file(LENGTHS)
    whole = measure_likelihood(model, PackedRows(file, CONTEXT, START).in_order(2), 1.0)
    assert score_tokens(model, file, START, CONTEXT).nats.sum() == pytest.approx(whole.nats, rel=1e-13)


def test_a_shorter_stride_never_shortens_a_context() -> None:
    model, file = tiny_model(), token_file(LENGTHS)
    aligned, strided = (score_tokens(model, file, START, CONTEXT, stride).seen for stride in (None, 6))
    assert (strided >= aligned).all() and (strided > aligned).any() and strided.max() == CONTEXT


def test_the_batch_size_does_not_matter_and_progress_ends_at_the_bytes() -> None:
    model, file = tiny_model(), token_file(LENGTHS)
    reports: list[tuple[str, int, int | None]] = []
    one = score_tokens(model, file, START, CONTEXT, 7, batch=1)
    many = score_tokens(model, file, START, CONTEXT, 7, 100, lambda *report: reports.append(report))
    np.testing.assert_allclose(one.nats, many.nats, rtol=0, atol=1e-12)
    assert reports[-1] == ("measuring", file.bytes, file.bytes)


def test_dropout_is_disabled_and_restored() -> None:
    model, file = tiny_model(dropout=0.5).train(), token_file(LENGTHS)
    before = torch.get_rng_state()
    first, second = (score_tokens(model, file, START, CONTEXT).nats for _ in range(2))
    assert (first == second).all() and model.training and torch.equal(torch.get_rng_state(), before)


def test_logits_are_computed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = tiny_model(), token_file(LENGTHS)
    whole = score_tokens(model, file, START, CONTEXT).nats
    monkeypatch.setattr("lilliput.decoding.token_scores.CHUNK_NUMBERS", 50)  # two tokens at a time
    np.testing.assert_allclose(score_tokens(model, file, START, CONTEXT).nats, whole, rtol=0, atol=1e-13)


def test_loss_equals_that_of_transformers() -> None:
    """The loss of GPT2LMHeadModel, which shifts labels itself, over a document of one window."""
    model = gpt2_like()
    theirs = as_gpt2(model)
    file = token_file([22])  # start, 22 tokens and the end: 24 positions
    ids = torch.tensor([[START, *file.tokens[1:].astype(np.int64).tolist()]])
    with torch.inference_mode():
        output = theirs(ids, labels=ids)
    loss = score_tokens(model, file, START, CONTEXT).nats.mean()
    exact = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids[0, 1:]).item()
    assert loss == pytest.approx(exact, rel=1e-12)
    assert loss == pytest.approx(output.loss.item(), rel=2e-7), "transformers rounds the loss to float32"
