"""The training loop: events and their order, steps, budgets, stopping, and errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import SETTINGS, assert_equal_tensors, small_config, train_small, trained, write_text
from helpers.user_errors import refused
from lilliput.decoding.writer import load
from lilliput.errors import UserError
from lilliput.model.classifier_loss import classifier_logits, classifier_loss
from lilliput.model.language_loss import batch_loss
from lilliput.model.transformer import weights
from lilliput.storage.run_folders import RunFolder, describe
from lilliput.training.events import Evaluated, Event, Finished, Saved, Stepped, Warned
from lilliput.training.events import Tested as AtTheEnd  # pytest takes a class called Test... for tests
from lilliput.training.loop import Trainer
from lilliput.training.process_group import World
from lilliput.training.session import open_session


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def weights_after(folder: Path, steps: int, **changes: str) -> dict[str, torch.Tensor]:
    """Return the weights after `steps` steps of an uninterrupted run."""
    with open_session(small_config(folder, "-".join(["run", *changes, *changes.values()]), **changes)) as session:
        for event in session.trainer.events():
            if isinstance(event, Stepped) and event.step == steps:
                return {name: tensor.clone() for name, tensor in weights(session.trainer.model).items()}
    raise AssertionError


# ---- order


def test_a_checkpoint_comes_before_its_evaluation_and_the_whole_split_at_the_end(tmp_path: Path) -> None:
    _, events = train_small(small_config(tmp_path))
    order = [(event.event, event.step, getattr(event, "whole", None)) for event in events]
    steps = {n: [("step", n, None)] for n in range(1, 9)}
    saved, sampled = (lambda n: ("saved", n, None)), (lambda n: ("evaluation", n, False))
    for n in (2, 4):
        steps[n] += [saved(n)]
    for n in (3, 6, 8):  # each evaluation has a checkpoint
        steps[n] += [saved(n), sampled(n)]
    assert order == [*itertools.chain(*steps.values()), ("evaluation", 8, True), ("finished", 8, None)]


def test_every_test_set_is_evaluated_at_the_end_with_the_best_weights(tmp_path: Path) -> None:
    """A copy of the validation split has the metrics of that split, and another text has others."""
    validation, other = (
        write_text(tmp_path, "v.txt", "The moon sang. " * 30),
        write_text(tmp_path, "o.txt", "xyz " * 99),
    )
    places = {"data__validation_source": str(validation), "data__tests": f"same={validation},other={other}"}
    rising = {"optimizer__lr": "100", "schedule__kind": "constant"}
    run, found = train_small(small_config(tmp_path, **places, **rising))
    *_, whole, same, different, finished = found
    assert isinstance(whole, Evaluated) and whole.whole
    assert isinstance(same, AtTheEnd) and isinstance(different, AtTheEnd)
    assert isinstance(finished, Finished)
    assert run.best and (same.weights, different.weights) == (run.best.step, run.best.step) != (8, 8)
    figures = ("loss", "perplexity", "bits_per_byte", "accuracy", "tokens", "documents")
    assert [getattr(same, name) for name in figures] == [getattr(whole, name) for name in figures]
    assert (same.name, different.name) == ("same", "other")
    assert different.loss != same.loss and different.tokens == 4 * 99
    tests = describe(run)["tests"]
    assert list(tests) == ["same", "other"]
    assert tests["other"]["perplexity"] == different.perplexity


def test_only_the_newest_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    # Decay by 0.1 x 100 makes weights grow: the loss rises, and the best is not the last.
    run, events = train_small(small_config(tmp_path, optimizer__lr="100", schedule__kind="constant", train__keep="1"))
    sampled = [event for event in of_kind(events, Evaluated) if not event.whole]
    best = min(sampled, key=lambda event: event.loss)
    assert best.step != 8, "the best is the last"
    assert run.best and run.last
    assert (run.best.step, run.last.step) == (best.step, 8)
    assert run.checkpoints() == [run.best, run.last]
    whole = next(event for event in of_kind(events, Evaluated) if event.whole)
    assert (whole.step, whole.weights) == (8, best.step)


def test_the_whole_split_is_evaluated_with_the_best_weights(tmp_path: Path) -> None:
    config = small_config(tmp_path, optimizer__lr="100", schedule__kind="constant")
    with open_session(config) as session:
        events = list(session.events([]))
    assert session.run.best and session.run.last and session.run.best != session.run.last
    assert_equal_tensors(weights(session.trainer.model), session.run.best.load_model())
    whole = next(event for event in of_kind(events, Evaluated) if event.whole)
    assert whole.weights == session.run.best.step


def test_equal_losses_keep_the_first(tmp_path: Path) -> None:
    run, events = train_small(small_config(tmp_path, optimizer__lr="1e-300"))
    assert len({event.loss for event in of_kind(events, Evaluated) if not event.whole}) == 1
    assert run.best and run.best.step == 3


# ---- steps


@pytest.mark.parametrize("change", [{"evaluate__every": "1"}, {"train__save_every": "1"}, {"evaluate__rows": "1"}])
def test_intervals_do_not_change_the_weights(tmp_path: Path, change: dict[str, str]) -> None:
    dropout = {"model__dropout": "0.3"}
    assert_equal_tensors(weights_after(tmp_path, 5, **dropout, **change), weights_after(tmp_path, 5, **dropout))


def test_seeds_and_dropout_do_change_the_weights(tmp_path: Path) -> None:
    """The equalities of this file can fail."""
    plain = weights_after(tmp_path, 3)
    for change in ({"seed": "2"}, {"model__dropout": "0.3"}, {"train__batch": "5"}):
        other = weights_after(tmp_path, 3, **change)
        assert any(not torch.equal(other[name], plain[name]) for name in plain), change


def test_the_loss_is_weighted_by_tokens(tmp_path: Path) -> None:
    """Micro-batches with different numbers of tokens give the loss and the gradient of all their tokens together."""
    # One story in long rows: the last micro-batch of the epoch is smaller than the others.
    config = small_config(tmp_path, train__accumulate="3", train__batch="3", data__documents="3", model__context="300")
    with open_session(config) as session:
        trainer = session.trainer
        parts = [trainer.train.rows.batch(trainer.batches.at(n)) for n in range(3)]
        assert len({part.tokens for part in parts}) > 1, "all batches have the same size"
        tokens = sum(part.tokens for part in parts)
        expected = torch.stack([batch_loss(trainer.model, part).goal for part in parts]).sum() / tokens
        expected.backward()  # type: ignore[no-untyped-call]
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in trainer.model.parameters() if p.grad is not None))
        trainer.model.zero_grad()
        first = next(event for event in trainer.events() if isinstance(event, Stepped))
    assert first.loss == pytest.approx(expected.item(), rel=1e-13)
    assert first.gradient_norm == pytest.approx(norm, rel=1e-12)
    assert first.tokens == tokens


def test_accumulated_equals_one_big_batch(tmp_path: Path) -> None:
    """The first step with 3 x 4 rows equals that with 12 rows."""
    config = small_config(tmp_path, train__accumulate="3")
    with open_session(config) as session:
        trainer = session.trainer
        rows = np.concatenate([trainer.batches.at(n) for n in range(3)])
        whole = trainer.train.rows.batch(rows)
        model = trainer.model
        (batch_loss(model, whole).goal / whole.tokens).backward()  # type: ignore[no-untyped-call]
        expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        found: dict[str, torch.Tensor] = {}
        trainer.optimizer.register_step_pre_hook(
            lambda *_: found.update({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        )
        event = trainer.update()
    assert event.gradient_norm is not None
    scale = min(1.0, 1.0 / event.gradient_norm)  # clipping
    assert event.clipped == (event.gradient_norm > 1.0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient * scale, rtol=0, atol=1e-14)


@pytest.mark.parametrize("windows", ["aligned", "overlapping"])
def test_an_epoch_has_every_window(tmp_path: Path, windows: str) -> None:
    """Only training windows overlap: the validation split has each token once."""
    with open_session(small_config(tmp_path, data__windows=windows)) as session:
        trainer, file = session.trainer, session.prepared.split("train")
        sizes = np.diff(file.offsets)
        expected = np.maximum(1, sizes - 31).sum() if windows == "overlapping" else len(trainer.train.rows)
        assert len(trainer.train.rows) == expected
        assert trainer.train.predictions == sizes.sum()
        seen = sum(batch.tokens for batch in trainer.evaluator.splits["validation"].rows.in_order(4))
        assert seen == session.prepared.split("validation").predictions


def test_a_classifier_divides_by_documents_and_counts_tokens(tmp_path: Path) -> None:
    config = small_config(tmp_path, train__accumulate="2", train__batch="6", **labelled_changes(tmp_path))
    with open_session(config) as session:
        trainer = session.trainer
        parts = [trainer.train.rows.batch(trainer.batches.at(n)) for n in range(2)]
        rows = trainer.train.rows.batch(np.concatenate([part.rows for part in parts]))
        nats = classifier_loss(classifier_logits(trainer.model, rows), rows.labels).nats
        first = next(event for event in trainer.events() if isinstance(event, Stepped))
    assert first.loss == pytest.approx(nats.item() / 12, rel=1e-12)
    assert first.tokens == sum(part.tokens for part in parts) > 12


def test_a_classifier_learns_and_reports_its_accuracy(tmp_path: Path) -> None:
    changes = labelled_changes(tmp_path) | {"train__steps": "40", "optimizer__lr": "0.02", "evaluate__every": "10"}
    run, found = train_small(small_config(tmp_path, **changes))
    *_, whole, tested, _ = found
    assert isinstance(whole, Evaluated) and isinstance(tested, AtTheEnd)
    assert (whole.perplexity, whole.bits_per_byte, whole.floor) == (None, None, None)
    assert whole.accuracy == 1.0 and tested.accuracy is not None and tested.accuracy > 0.9
    assert tested.documents == 11
    sampled = [event for event in of_kind(found, Evaluated) if not event.whole]
    assert run.best and run.best.step == min(sampled, key=lambda event: event.loss).step
    described = describe(run)
    assert described["validation"]["accuracy"] == 1.0
    assert described["tests"]["heard"]["accuracy"] == tested.accuracy


def test_pinned_losses(tmp_path: Path) -> None:
    """A change of any part of the pipeline changes these losses; a change of defaults does not.

    They are not bit-identical on every machine: another CPU or BLAS adds in another order.
    """
    choices = {
        "initialisation": "xavier",
        "feed_forward": "gelu",
        "norm": "rms",
        "positions": "rotary",
        "qk_norm": "false",
    }
    pinned = {f"model__{name}": value for name, value in choices.items()}
    pinned |= {"optimizer__kind": "adamw", "schedule__kind": "cosine", "schedule__final": "0.05"}
    pinned |= {"train__accumulate": "2", "optimizer__lr": "0.01", "optimizer__weight_decay": "0.1"}
    _, events = train_small(small_config(tmp_path, **pinned))
    losses = [event.loss for event in of_kind(events, Stepped)]
    whole = next(event for event in of_kind(events, Evaluated) if event.whole)
    assert losses == pytest.approx(GOLDEN, rel=1e-9)
    assert whole.loss == pytest.approx(GOLDEN_WHOLE, rel=1e-9)


GOLDEN = [
    5.669010268373461,
    5.4300582062648415,
    5.2277631538218134,
    4.993954875188265,
    4.825788969371915,
    4.746023186861088,
    4.638804851024469,
    4.61590870189466,
]
GOLDEN_WHOLE = 4.618387723129805


# ---- stopping


class Neighbour(World):
    """Simulate a second process that requests a stop after `patience` exchanges."""

    patience = 1_000_000

    def total(self, numbers: Sequence[float]) -> list[float]:
        if len(numbers) > 1:
            return list(numbers)
        self.patience -= 1
        return [float(self.patience == 0)]


def test_a_final_evaluation_is_stopped_between_batches_and_repeated(tmp_path: Path) -> None:
    config, world, events = small_config(tmp_path, train__batch="1"), Neighbour(), list[Event]()
    with open_session(config, world=world) as session:
        assert len(session.trainer.evaluator.splits["validation"].rows) > 3, "the split is too small"
        for event in session.events([]):
            events.append(event)
            if isinstance(event, Evaluated) and event.step == 8:
                world.patience = 3
    assert world.patience == 0, "no exchange after the stop"
    assert not any(event.whole for event in of_kind(events, Evaluated))
    (finished,) = of_kind(events, Finished)
    assert (finished.step, finished.interrupted) == (8, True)
    assert session.run.last and session.run.last.step == 8
    _, again = train_small(config, resume=True)
    _, straight = train_small(small_config(tmp_path, "straight", train__batch="1"))
    (redone,), (expected,) = ([e for e in of_kind(one, Evaluated) if e.whole] for one in (again, straight))
    assert redone == expected
    assert of_kind(again, Finished)[0].interrupted is False


# ---- early stopping, averaged weights, 16 bits, clipping, warnings


def test_patience_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    """It ends after two evaluations without a new best, evaluates the best weights, and stays ended when resumed."""
    rising = {"optimizer__lr": "100", "schedule__kind": "constant", "train__steps": "40", "evaluate__every": "2"}
    config = small_config(tmp_path, train__patience="2", **rising)
    run, events = train_small(config)
    sampled = [event for event in of_kind(events, Evaluated) if not event.whole]
    losses = [event.loss for event in sampled]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 and sampled[-1].step < 40
    (whole,) = (event for event in of_kind(events, Evaluated) if event.whole)
    assert whole.weights == sampled[best].step
    assert run.best and run.best.step == sampled[best].step
    (finished,) = of_kind(events, Finished)
    assert (finished.early, finished.interrupted, finished.step) == (True, False, sampled[-1].step)
    _, again = train_small(config, resume=True)
    assert of_kind(again, Stepped) == []
    assert of_kind(again, Finished)[0].early
    _, patient = train_small(small_config(tmp_path, "patient", train__patience="3", **(rising | {"train__steps": "8"})))
    assert not of_kind(patient, Finished)[0].early, "the budget ended first"


def test_averaged_weights_are_evaluated_and_saved(tmp_path: Path) -> None:
    """Compared with an average computed here after each step; training itself does not change."""
    plain = weights_after(tmp_path, 8)
    expected: dict[str, torch.Tensor] = {}
    with open_session(small_config(tmp_path, optimizer__average="0.7")) as session:
        trainer = session.trainer
        expected = {name: tensor.clone() for name, tensor in weights(trainer.model).items()}
        for event in session.events([]):
            if isinstance(event, Stepped):
                decay = min(0.7, (1 + event.step) / (10 + event.step))
                for name, tensor in weights(trainer.model).items():
                    expected[name] = decay * expected[name] + (1 - decay) * tensor
                if event.step == 8:
                    assert_equal_tensors(weights(trainer.model), plain)
            if isinstance(event, Evaluated) and event.step == 8 and not event.whole:
                sampled = event
    last = session.run.last
    assert last and session.run.best == last
    for name, tensor in last.load_model().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-14)
    batches = trainer.evaluator.splits["validation"].rows.cut(trainer.plan.samples["validation"], 16)
    metrics = trainer.objective.measure(
        load(last.folder, device="cpu").model, trainer.evaluator.splits["validation"], batches
    )
    assert metrics.loss == pytest.approx(sampled.loss, rel=1e-13)
    tuned = small_config(tmp_path, "tuned", optimizer__average="0.7")
    with open_session(tuned, start_from=str(session.run.folder)) as second:
        assert_equal_tensors(weights(second.trainer.model), last.load_model())


def test_a_step_whose_gradient_overflows_is_skipped_and_logged(tmp_path: Path) -> None:
    with open_session(small_config(tmp_path, train__precision="float16", train__steps="4")) as session:
        trainer = session.trainer
        trainer.precision.scale = 2.0**60
        before = {name: tensor.clone() for name, tensor in weights(trainer.model).items()}
        events = session.events([])
        first = next(events)
        assert isinstance(first, Stepped) and (first.skipped, first.gradient_norm, first.clipped) == (True, None, False)
        assert_equal_tensors(weights(trainer.model), before)
        assert trainer.precision.scale == 2.0**59
        trainer.precision.scale = 2.0**10
        *_, last = list(events)
    assert isinstance(last, Finished) and last.step == 4
    steps = [event for event in session.run.metrics() if event["event"] == "step"]
    assert [event["skipped"] for event in steps] == [True, False, False, False]
    assert steps[0]["gradient_norm"] is None and all(event["gradient_norm"] > 0 for event in steps[1:])


def test_the_log_has_clipped_steps(tmp_path: Path) -> None:
    _, events = train_small(small_config(tmp_path, optimizer__clip="2.0"))
    steps = of_kind(events, Stepped)
    assert {event.clipped for event in steps} == {True, False}
    assert [event.clipped for event in steps] == [event.gradient_norm > 2.0 for event in steps]
    _, events = train_small(small_config(tmp_path, "free", optimizer__clip="none"))
    assert not any(event.clipped for event in of_kind(events, Stepped))


def test_warnings_follow_their_step_and_are_logged(tmp_path: Path) -> None:
    """With an advisor that warns at every third step; it receives the rows of the step."""
    with open_session(small_config(tmp_path, train__accumulate="2")) as session:
        trainer, checked = session.trainer, []

        def check(event: Event, rows: Sequence[int]) -> list[Warned]:
            checked.append((event.event, list(rows)))
            return (
                [Warned(event.step, "third", "!", "third")]
                if isinstance(event, Stepped) and event.step % 3 == 0
                else []
            )

        trainer.advisor.check = check  # type: ignore[method-assign]
        order = [(event.event, event.step) for event in session.events([])]
        rows = [row for n in (4, 5) for row in trainer.batches.at(n).tolist()]
    assert [order[order.index(("warning", step)) - 1] for step in (3, 6)] == [("step", 3), ("step", 6)]
    assert [rows for kind, rows in checked if kind == "step"][2] == rows
    assert len(checked) == len(order) - 2, "it does not receive its own warnings"
    assert [event["event"] for event in session.run.metrics()].count("warning") == 2


# ---- numbers that are not finite


def poison(trainer: Trainer[Any], name: str, value: float) -> None:
    with torch.no_grad():
        dict(trainer.model.named_parameters())[name].view(-1)[0] = value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_named_before_the_step(tmp_path: Path, value: float) -> None:
    name = "head.project.weight"
    with open_session(small_config(tmp_path)) as session:
        trainer = session.trainer
        events = session.events([])
        list(itertools.islice(events, 3))  # two steps and a checkpoint
        rows = trainer.batches.at(2)
        poison(trainer, name, value)
        before = {key: tensor.clone() for key, tensor in weights(trainer.model).items()}
        with pytest.raises(UserError) as raised:
            next(events)
    error = raised.value
    assert (error.code, error.setting) == ("model.not-finite", "optimizer.lr")
    assert "step 3" in error.what and ("nan" in error.what or "inf" in error.what)
    assert error.where and f"weight {name}" in error.where and ", ".join(map(str, rows)) in error.where
    assert error.fix and str(session.run.folder / "checkpoints" / "step-000002") in error.fix
    for key, tensor in weights(trainer.model).items():
        assert torch.equal(tensor.nan_to_num(7.0), before[key].nan_to_num(7.0)), key
    assert session.run.last
    session.run.last.verify()


def test_a_gradient_that_is_not_finite_is_named(tmp_path: Path) -> None:
    with open_session(small_config(tmp_path)) as session:
        trainer = session.trainer
        named = dict(trainer.model.named_parameters())
        victim = "blocks.1.feed_forward.inner.up.weight"
        named[victim].register_hook(lambda gradient: gradient * math.inf)
        before = {key: tensor.clone() for key, tensor in weights(trainer.model).items()}
        with pytest.raises(UserError) as raised:
            next(session.events([]))
    assert raised.value.code == "model.not-finite"
    assert "step 1" in raised.value.what and f"gradient of {victim}" in raised.value.what
    assert_equal_tensors(weights(trainer.model), before)


def test_weights_that_are_not_finite_after_a_step_are_not_saved(tmp_path: Path) -> None:
    """Loss and gradient are finite, but the weights after the step are not. The older checkpoint stays."""
    with open_session(small_config(tmp_path, train__keep="1")) as session:
        trainer, events = session.trainer, session.events([])
        assert isinstance(list(itertools.islice(events, 3))[-1], Saved)
        trainer.optimizer.register_step_post_hook(lambda *_: poison(trainer, "head.project.weight", math.inf))
        assert isinstance(next(events), Stepped)
        error = refused(lambda: next(events))
    assert error.code == "model.not-finite"
    assert "step 3" in error.what and "weight head.project.weight" in error.what
    assert [checkpoint.step for checkpoint in session.run.checkpoints()] == [2]
    session.run.checkpoints()[0].verify()


def test_a_huge_learning_rate_is_an_error(tmp_path: Path) -> None:
    changes = {"optimizer__lr": "1e30", "train__precision": "float32", "schedule__warmup": "0", "train__steps": "30"}
    error = refused(lambda: train_small(small_config(tmp_path, model__qk_norm="false", **changes)))
    assert error.code == "model.not-finite" and "step " in error.what


# ---- the log


def test_the_format_of_the_log() -> None:
    run = RunFolder.open(trained() / "runs" / "mine")
    kinds = {
        "session": "step versions machine device_memory_bytes peak_flops flops_per_token",
        "step": "step loss lr gradient_norm tokens progress seconds tokens_per_second memory_bytes clipped skipped "
        "share_of_peak",
        "saved": "step checkpoint",
        "evaluation": "step loss perplexity bits_per_byte accuracy tokens documents whole weights floor epoch seconds "
        "batch_loss training tests",
        "finished": "step tokens seconds interrupted early limited_at",
    }
    events = run.metrics()
    assert {event["event"] for event in events} == kinds.keys()
    for event in events:
        assert list(event) == ["event", *kinds[event["event"]].split()]
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 9))
    tokens = int(SETTINGS["train.batch"]) * int(SETTINGS["model.context"])
    assert [event["tokens"] for event in events if event["event"] == "step"] == [tokens * n for n in range(1, 9)]


# ---- the whole split


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def test_the_whole_split_scores_each_token_once_by_numpy() -> None:
    """Nats of every token of every document and of its end, from the logits; bits per byte of the documents."""
    from lilliput.data.corpora import open_corpus

    folder = trained()
    config = small_config(folder)
    writer = load(folder / "runs" / "mine", device="cpu")
    nats, count, size = 0.0, 0, 0
    for document in open_corpus(config.data).documents("validation"):
        ids = [writer.tokenizer.end, *writer.tokenizer.encode(document.text), writer.tokenizer.end]
        size += len(document.text.encode())
        for start in range(0, len(ids) - 1, config.model.context):
            seen = ids[start : start + config.model.context + 1]
            with torch.inference_mode():
                logits = writer.model(torch.tensor([seen[:-1]]))[0].numpy()
            nats -= log_softmax(logits)[np.arange(len(seen) - 1), seen[1:]].sum()
            count += len(seen) - 1
    found = next(event for event in RunFolder(folder / "runs" / "mine").metrics() if event.get("whole"))
    assert found["tokens"] == count
    assert found["loss"] == pytest.approx(nats / count, rel=1e-12)
    assert found["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-12)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-12)
    assert found["floor"] is None
