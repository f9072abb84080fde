"""Multitask metrics equal those of two separate tasks, over every token and every document once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.labelled_corpora import token_file
from helpers.tiny_models import VARIANTS, assert_same, name_variant, tiny_model
from lilliput.data.batches import IGNORED, LabelledWindowRows, PackedRows
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.likelihood import measure_likelihood
from lilliput.evaluation.multitask import measure_multitask
from lilliput.model.classifier_loss import multitask_loss
from lilliput.model.heads import LanguageAndLabelHead
from lilliput.model.transformer import Transformer

LENGTHS = [3, 24, 25, 50, 1, 7, 23, 0, 72]
START, CONTEXT = 15, 24


def make_file(lengths: list[int] = LENGTHS, ends: bool = True) -> TokenFile:
    return token_file(lengths, ends=ends)


def make_both(**changes: Any) -> Transformer:
    return tiny_model(task="both", classes=3, classifier_hidden=10, **changes)


def language_copy(model: Transformer, **changes: Any) -> Transformer:
    """Return a language model with the same trunk and token head."""
    copy = tiny_model(**changes)
    copy.load_state_dict({n: t for n, t in model.state_dict().items() if not n.startswith("head.label.")})
    return copy


def labels_by_hand(model: Transformer, file: TokenFile) -> list[Tensor]:
    """Return the label logits of each document, alone and without padding: causal trunk, mean pooling, two layers."""
    head = model.head
    assert isinstance(head, LanguageAndLabelHead)
    found = []
    for first, after in zip(file.offsets[:-1], file.offsets[1:], strict=True):
        inputs = [START, *file.tokens[first : after - 1].tolist()][: int(after - first) - (not file.ends)][:CONTEXT]
        ids = torch.tensor([inputs], dtype=torch.int64)
        pooled = model.trunk(ids, model.begin(ids, None, None))[0].mean(dim=0) if inputs else torch.zeros(16).double()
        inner = (head.label.inner.weight @ pooled + head.label.inner.bias).clamp(min=0)
        found.append(head.label.project.weight @ inner + head.label.project.bias)
    return found


@pytest.mark.parametrize("batch", [1, 2, 100])
@pytest.mark.parametrize("case", VARIANTS[:6], ids=name_variant)
def test_metrics_equal_those_of_separate_tasks(case: dict[str, Any], batch: int) -> None:
    file = make_file()
    model = make_both(**case)
    text, label = measure_multitask(model, LabelledWindowRows(file, CONTEXT, START).in_order(batch), 2.5)
    alone = measure_likelihood(language_copy(model, **case), PackedRows(file, CONTEXT, START).in_order(batch), 2.5)
    assert (text.tokens, text.bytes) == (alone.tokens, alone.bytes) == (file.predictions, 2.5 * file.predictions)
    assert text.nats == pytest.approx(alone.nats, rel=1e-13)
    assert text.perplexity == pytest.approx(alone.perplexity, rel=1e-12)
    with torch.inference_mode():
        scores = torch.stack(labels_by_hand(model, file)).log_softmax(dim=-1)
    assert file.labels is not None
    right = file.labels.astype(np.int64)
    assert label.nats == pytest.approx(-float(scores[np.arange(len(right)), right].sum()), rel=1e-12)
    confusion = np.zeros((3, 3), np.int64)
    np.add.at(confusion, (right, scores.argmax(dim=-1).numpy()), 1)
    assert np.array_equal(label.confusion, confusion)
    assert label.documents == len(LENGTHS)


def test_a_document_without_tokens_has_a_label() -> None:
    """Without an end token, the label of an empty document depends only on the biases of the head."""
    file, model = make_file(ends=False), make_both()
    text, label = measure_multitask(model, LabelledWindowRows(file, CONTEXT, START).in_order(4), 1.0)
    assert (text.tokens, label.documents) == (sum(LENGTHS), len(LENGTHS))
    assert file.labels is not None
    with torch.inference_mode():
        scores = torch.stack(labels_by_hand(model, file)).log_softmax(dim=-1)
    expected = -sum(scores[index, label].item() for index, label in enumerate(file.labels.tolist()))
    assert label.nats == pytest.approx(expected, rel=1e-12)


def test_the_forward_pass_returns_token_logits() -> None:
    """Like those of a language model, with and without cache: decoding does not depend on the label head."""
    model, ids = make_both(soft_cap=5.0), torch.arange(10)[None]
    whole = model(ids)
    assert_same(whole, language_copy(model, soft_cap=5.0)(ids))
    cache = model.new_cache(1)
    parts = [model(ids[:, :6], cache=cache), model(ids[:, 6:], cache=cache)]
    assert_same(torch.cat(parts, dim=1), whole)


def test_label_smoothing_and_z_loss_change_only_the_training_goal() -> None:
    model = make_both()
    batch = LabelledWindowRows(make_file(), CONTEXT, START).batch(np.arange(8))
    plain, found = multitask_loss(model, batch), multitask_loss(model, batch, smoothing=0.2, z_loss=0.03)
    for one, other in ((plain.tokens, found.tokens), (plain.labels, found.labels)):
        assert_same(one.goal, one.nats, tolerance=0.0)
        assert_same(other.nats, one.nats, tolerance=0.0)
        assert not other.nats.requires_grad
    right = torch.from_numpy(batch.labels)
    scores = found.logits.log_softmax(dim=-1)[right != IGNORED]
    smoothed = -0.8 * scores[torch.arange(len(scores)), right[right != IGNORED]] - 0.2 * scores.mean(dim=-1)
    assert_same(found.labels.goal, smoothed.sum())
    targets, pos = torch.from_numpy(batch.targets), None if batch.pos is None else torch.from_numpy(batch.pos)
    logits = model(torch.from_numpy(batch.ids), pos)[targets != IGNORED]
    expected = F.cross_entropy(logits, targets[targets != IGNORED], label_smoothing=0.2, reduction="sum")
    assert_same(found.tokens.goal, expected + 0.03 * logits.logsumexp(dim=-1).square().sum(), tolerance=1e-10)


def test_an_empty_batch_has_zero_gradients() -> None:
    model = make_both()
    nothing = multitask_loss(model, LabelledWindowRows(make_file(), CONTEXT, START).batch(np.arange(0)), smoothing=0.1)
    (nothing.tokens.goal + nothing.labels.goal).backward()  # type: ignore[no-untyped-call]
    assert nothing.tokens.nats == nothing.labels.nats == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


def test_dropout_is_disabled_and_restored() -> None:
    model, rows = make_both(dropout=0.5).train(), LabelledWindowRows(make_file(), CONTEXT, START)
    before = torch.get_rng_state()
    (text, label), (again, _) = (measure_multitask(model, rows.in_order(2), 1.0) for _ in range(2))
    assert text == again and math.isfinite(label.loss)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before), "evaluation draws nothing"
