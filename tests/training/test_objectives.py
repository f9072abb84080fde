"""Objectives: minimised and logged losses, weights, smoothing, and two tasks on one trunk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.labelled_corpora import labelled_changes, token_file, write_labelled
from helpers.small_runs import FLAGS, assert_equal_tensors, lilliput, small_config, train_small
from helpers.tiny_models import assert_same, gradients, tiny_model
from helpers.user_errors import refused
from lilliput.data.batches import BothBatch, LabelledWindowRows, PackedRows
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.writer import load
from lilliput.model.heads import LanguageAndLabelHead
from lilliput.model.transformer import Transformer
from lilliput.settings.loading import load_config
from lilliput.storage.run_folders import describe
from lilliput.training.events import Evaluated
from lilliput.training.events import Tested as AtTheEnd  # pytest takes a class called Test... for tests
from lilliput.training.objectives import DocumentLabel, NextToken, TokenAndLabel, balanced_weights, weigh
from lilliput.training.session import open_session

START, CONTEXT, LABELS = 15, 8, ["bee", "bear", "owl"]
SIZES = [3, 8, 9, 20, 1, 6, 16, 5]  # tokens of documents: one to three windows each


def make_file() -> TokenFile:
    return token_file(SIZES)


def make_both(seed: int = 0) -> Transformer:
    return tiny_model(seed, task="both", classes=3, classifier_hidden=10, context=CONTEXT)


def whole_batch() -> BothBatch:
    rows = LabelledWindowRows(make_file(), CONTEXT, START)
    return rows.batch(np.arange(len(rows)))


def gradient_of_step(model: Transformer, weights: tuple[float, float], batch: BothBatch) -> dict[str, Tensor]:
    """Return the gradient of one step over this batch."""
    objective = TokenAndLabel(CONTEXT, START, LABELS, weights)
    model.zero_grad()
    weigh(objective.losses(model, batch).goal, batch.counts, objective.weights).backward()  # type: ignore[no-untyped-call]
    return gradients(model)


# ---- weights


def test_each_loss_is_divided_by_its_own_count_and_weighted() -> None:
    sums = torch.tensor([12.0, 10.0], dtype=torch.float64, requires_grad=True)
    found = weigh(sums, (3, 5), (0.5, 2.0))
    found.backward()  # type: ignore[no-untyped-call]
    assert found.item() == 0.5 * 12 / 3 + 2.0 * 10 / 5
    assert sums.grad is not None and sums.grad.tolist() == [0.5 / 3, 2.0 / 5]
    assert weigh(torch.tensor([6.0]), (4,), (1.0,)).item() == 1.5


def test_a_count_of_zero_adds_nothing() -> None:
    assert weigh(torch.tensor([6.0, 0.0]), (4, 0), (1.0, 1.0)).item() == 1.5


def test_with_label_weight_zero_a_multitask_model_learns_like_a_language_model() -> None:
    """Bit-identical on the same rows, and up to rounding on the packed rows of a language model."""
    model, batch = make_both(), whole_batch()
    language = tiny_model(context=CONTEXT)
    language.load_state_dict({n: t for n, t in model.state_dict().items() if not n.startswith("head.label.")})
    alone = NextToken(CONTEXT, START, overlapping=False)
    found = gradient_of_step(model, (1.0, 0.0), batch)
    weigh(alone.losses(language, batch).goal, (batch.tokens,), alone.weights).backward()  # type: ignore[no-untyped-call]
    same_rows = gradients(language)
    assert_equal_tensors({name: found[name] for name in same_rows}, same_rows)
    assert all(not found[name].any() for name in found.keys() - same_rows.keys()), "the label head does not learn"
    language.zero_grad()
    rows = PackedRows(make_file(), CONTEXT, START)
    packed = rows.batch(np.arange(len(rows)))
    weigh(alone.losses(language, packed).goal, packed.counts, alone.weights).backward()  # type: ignore[no-untyped-call]
    for name, gradient in gradients(language).items():
        assert_same(found[name], gradient)


def test_with_token_weight_zero_a_multitask_model_learns_like_a_causal_classifier() -> None:
    """The reference takes the first window of each document, unpadded: the mean of its states, two layers, cross-entropy."""
    model, file = make_both(), make_file()
    head = model.head
    assert isinstance(head, LanguageAndLabelHead) and file.labels is not None
    found = gradient_of_step(model, (0.0, 1.0), whole_batch())
    model.zero_grad()
    nats = torch.zeros((), dtype=torch.float64)
    for number, label in enumerate(file.labels.tolist()):
        first, after = file.offsets[number : number + 2]
        ids = torch.tensor([[START, *file.tokens[first : after - 1].tolist()][:CONTEXT]])
        pooled = model.trunk(ids, model.begin(ids, None, None))[0].mean(dim=0)
        inner = (head.label.inner.weight @ pooled + head.label.inner.bias).clamp(min=0)
        logits = head.label.project.weight @ inner + head.label.project.bias
        nats = nats + logits.logsumexp(dim=0) - logits[label]
    (nats / len(SIZES)).backward()  # type: ignore[no-untyped-call]
    expected = gradients(model)
    assert not found["head.project.weight"].any() and "head.project.weight" not in expected
    for name, gradient in expected.items():
        assert_same(found[name], gradient)


def test_the_multitask_gradient_is_the_weighted_sum() -> None:
    model, batch = make_both(), whole_batch()
    token, label = gradient_of_step(model, (1.0, 0.0), batch), gradient_of_step(model, (0.0, 1.0), batch)
    for name, gradient in gradient_of_step(model, (0.3, 1.7), batch).items():
        assert_same(gradient, 0.3 * token[name] + 1.7 * label[name])


# ---- metrics


def test_the_multitask_loss_is_weighted_and_has_all_metrics() -> None:
    model, file = make_both(), make_file()
    objectives = [TokenAndLabel(CONTEXT, START, LABELS, pair) for pair in ((1.0, 0.0), (0.0, 1.0), (0.3, 1.7))]
    split = objectives[0].open(file, training=False)
    token, label, both = (each.measure(model, split, split.rows.in_order(3)) for each in objectives)
    assert both.loss == pytest.approx(0.3 * token.loss + 1.7 * label.loss, rel=1e-13)
    assert (both.tokens, both.documents) == (file.predictions, len(SIZES)) == (split.predictions, 8)
    assert both.perplexity == pytest.approx(np.exp(token.loss)) and both.bits_per_byte is not None
    assert both.accuracy is not None and 0.0 <= both.accuracy <= 1.0
    batch = whole_batch()
    losses = objectives[2].losses(model, batch)
    assert weigh(losses.nats, batch.counts, objectives[2].weights).item() == pytest.approx(both.loss, rel=1e-13)


def test_a_sample_of_later_windows_has_no_accuracy() -> None:
    model, file = make_both(), make_file()
    objective = TokenAndLabel(CONTEXT, START, LABELS, (2.0, 1.0))
    split = objective.open(file, training=False)
    assert isinstance(split.rows, LabelledWindowRows)
    later = split.rows.batch(np.flatnonzero(split.rows.labels < 0))
    found = objective.measure(model, split, [later])
    assert (found.accuracy, found.documents, found.tokens) == (None, 0, later.tokens)
    assert found.loss == pytest.approx(2.0 * np.log(found.perplexity or 0.0))


# ---- smoothing


def test_labels_are_smoothed_in_the_minimised_loss_only() -> None:
    model = tiny_model(task="classifier", classes=3, classifier_hidden=10, context=CONTEXT)
    plain, smooth = DocumentLabel(CONTEXT, LABELS), DocumentLabel(CONTEXT, LABELS, smoothing=0.3)
    split = plain.open(make_file(), training=True)
    batch = split.rows.batch(np.arange(len(split.rows)))
    one, other = plain.losses(model, batch), smooth.losses(model, batch)
    assert torch.equal(one.goal, one.nats) and torch.equal(one.nats, other.nats)
    pos = None if batch.pos is None else torch.from_numpy(batch.pos)
    scores = model(torch.from_numpy(batch.ids), pos).log_softmax(dim=-1)
    right = scores[torch.arange(len(scores)), torch.from_numpy(batch.labels)]
    assert_same(other.goal, (-0.7 * right - 0.3 * scores.mean(dim=-1)).sum()[None])
    assert other.goal.requires_grad and not other.nats.requires_grad


def test_tokens_are_smoothed_too() -> None:
    model = tiny_model(context=CONTEXT)
    plain, smooth = NextToken(CONTEXT, START, False), NextToken(CONTEXT, START, False, smoothing=0.3, z_loss=0.1)
    split = plain.open(make_file(), training=True)
    batch = split.rows.batch(np.arange(len(split.rows)))
    one, other = plain.losses(model, batch), smooth.losses(model, batch)
    assert torch.equal(one.nats, other.nats) and other.goal.item() > one.goal.item() + 1.0


# ---- balance


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_balanced_labels_have_equal_weight(smoothing: float) -> None:
    """The minimised loss over all documents is the mean of the means of each label; the logged loss does not change."""
    model = tiny_model(task="classifier", classes=3, classifier_hidden=10, context=CONTEXT)
    file = make_file()
    assert file.labels is not None
    counts = np.bincount(file.labels)
    assert len(set(counts.tolist())) > 1, "the labels are balanced already"
    weights = balanced_weights(file.labels, 3)
    assert sum(weight * count for weight, count in zip(weights, counts, strict=True)) == pytest.approx(len(SIZES))
    plain = DocumentLabel(CONTEXT, LABELS, smoothing)
    balanced = DocumentLabel(CONTEXT, LABELS, smoothing, weights)
    rows = plain.open(file, training=True).rows
    of_label = [plain.losses(model, rows.batch(np.flatnonzero(file.labels == label))).goal for label in range(3)]
    found = balanced.losses(model, rows.batch(np.arange(len(rows))))
    means = torch.cat([goal / int(count) for goal, count in zip(of_label, counts, strict=True)])
    assert_same(found.goal / len(rows), means.mean()[None])
    assert torch.equal(found.nats, plain.losses(model, rows.batch(np.arange(len(rows)))).nats)


def test_balancing_does_not_change_the_token_loss() -> None:
    """Windows after the first have no label."""
    model, batch = make_both(), whole_batch()
    assert (batch.labels < 0).any()
    plain = TokenAndLabel(CONTEXT, START, LABELS, (1.0, 1.0)).losses(model, batch)
    balanced = TokenAndLabel(CONTEXT, START, LABELS, (1.0, 1.0), class_weights=(2.0, 2.0, 2.0)).losses(model, batch)
    assert torch.equal(balanced.goal[0], plain.goal[0]) and torch.equal(balanced.nats, plain.nats)
    assert_same(balanced.goal[1], 2.0 * plain.goal[1])


# ---- a run


@pytest.mark.parametrize("task", ["classifier", "both"])
def test_the_setting_balances_by_the_labels_of_training(task: str, tmp_path: Path) -> None:
    write_labelled(tmp_path, documents=30)
    changes = both_changes(tmp_path) | {"model__task": task, "train__balance_labels": "true"}
    with open_session(small_config(tmp_path, **changes)) as session:
        objective, labels = session.trainer.objective, session.trainer.prepared.split("train").labels
    assert isinstance(objective, DocumentLabel | TokenAndLabel) and labels is not None
    assert objective.class_weights == balanced_weights(labels, len(objective.labels))


def both_changes(folder: Path) -> dict[str, str]:
    """Return settings with documents of two windows and with a test set."""
    return labelled_changes(folder) | {"model__task": "both", "model__classes": "none"}


def test_a_multitask_run_learns_both_and_keeps_the_best_weighted_loss(tmp_path: Path) -> None:
    changes = both_changes(tmp_path) | {"train__label_weight": "2.0", "train__language_weight": "0.5"}
    changes |= {"train__steps": "120", "optimizer__lr": "0.01", "evaluate__every": "20", "train__batch": "24"}
    write_labelled(tmp_path, documents=120)
    config = small_config(tmp_path, **changes)
    run, found = train_small(config)
    *_, whole, tested, _ = found
    assert isinstance(whole, Evaluated) and isinstance(tested, AtTheEnd)
    assert whole.accuracy is not None and whole.accuracy > 0.7, "of three speakers"
    assert whole.perplexity is not None and whole.perplexity < 5.0, "of fifteen words"
    assert tested.documents == 11 and tested.bits_per_byte is not None
    sampled = [event for event in found if isinstance(event, Evaluated) and not event.whole]
    assert run.best and run.best.step == min(sampled, key=lambda event: event.loss).step
    assert run.best.labels() == ["bear", "bee", "owl"]
    metrics = describe(run)["validation"]
    assert [metrics[name] for name in ("accuracy", "perplexity", "loss")] == [
        whole.accuracy,
        whole.perplexity,
        whole.loss,
    ]
    with open_session(config, resume=True) as session:
        objective, split = session.trainer.objective, session.trainer.evaluator.splits["validation"]
        assert objective.weights == (0.5, 2.0)
        again = objective.measure(load(run.folder).model, split, split.rows.in_order(24))
    assert again.loss == whole.loss
    assert load(run.folder).generate("the", tokens=5)


def test_multitask_and_language_model_see_the_same_tokens(tmp_path: Path) -> None:
    """An epoch predicts every token of the split once."""
    both = both_changes(tmp_path)
    plain = {**both, "model__task": "language"}
    tokens = []
    for name, changes in (("both", both), ("plain", plain)):
        with open_session(small_config(tmp_path, name, **changes)) as session:
            trainer = session.trainer
            assert trainer.train.predictions == session.prepared.split("train").predictions
            taken = [next(trainer.batches) for _ in range(trainer.batches.epoch_batches)]
            tokens.append(sum(batch.tokens for batch in taken))
    assert tokens[0] == tokens[1]


def test_commands_with_a_multitask_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training prints both kinds of metrics; dry run, info and generate work as with any other run."""
    monkeypatch.chdir(tmp_path)
    labelled_changes(tmp_path)
    settings = [*FLAGS, "--data.labelled", "true", "--tokenizer.kind", "word", "--model.task", "both"]
    result = lilliput("train", "said.tsv", "--name", "mine", *settings, "--data.tests", "heard=heard.tsv")
    assert result.code == 0, result.err
    assert "3 labels" in result.err
    for metric in ("accuracy ", "perplexity ", "bits per byte "):
        assert metric in result.out, result.out
    assert "11 documents" in result.out and "lilliput generate mine" in result.out
    assert "--from mine" in result.out
    info = lilliput("info", "mine")
    assert info.code == 0 and "accuracy" in info.out and "perplexity" in info.out
    assert lilliput("generate", "mine", "--prompt", "the", "--tokens", "3").code == 0
    dry = lilliput("train", "said.tsv", *settings, "--model.vocab_size", "30", "--dry-run")
    assert dry.code == 0, dry.err
    head = 16 * 30 + (16 + 1 + 3) * 100 + 3  # tokens; two layers with biases for the three labels of the text
    assert f"head {head:,}," in dry.out


@pytest.mark.parametrize(
    "changes",
    [
        {"data.windows": "overlapping"},
        {"train.language_weight": "0", "train.label_weight": "0"},
        {"data.labelled": "false"},
    ],
)
def test_settings_that_conflict_with_task_both(tmp_path: Path, changes: dict[str, str]) -> None:
    (tmp_path / "said.tsv").write_text("bee\thoney\n")
    both = {"model.task": "both", "data.labelled": "true"}
    assert load_config(str(tmp_path / "said.tsv"), both).model.task == "both"
    refused(lambda: load_config(str(tmp_path / "said.tsv"), both | changes))
