"""Evaluations during training: which steps, which rows, and their metrics, equal to those of the checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import small_config, write_text
from lilliput.decoding.writer import load
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder
from lilliput.training.session import open_session


def config_with(folder: Path, **changes: Any) -> Config:
    write_text(folder, "test.txt")
    small = {"data.tests": (f"own={folder / 'test.txt'}",), "train.keep": 100, "train.save_every": 1000}
    return replace(small_config(folder), small | {name.replace("__", "."): value for name, value in changes.items()})


def evaluations(config: Config) -> tuple[list[dict[str, Any]], Any]:
    with open_session(config) as session:
        list(session.events([]))
        events = [event for event in session.run.metrics() if event["event"] == "evaluation" and not event["whole"]]
        return events, session


def test_evaluations_at_epochs_at_given_steps_and_at_the_end(tmp_path: Path) -> None:
    config = config_with(tmp_path, train__epochs=2.5, evaluate__every="epoch", evaluate__at=(0, 1, 2))
    events, session = evaluations(config)
    rows, batch = len(session.trainer.train.rows), config.train.batch
    per_epoch = math.ceil(rows / batch)
    assert per_epoch >= 3
    last = math.ceil(2.5 * per_epoch)
    assert [event["step"] for event in events] == sorted({0, 1, 2, per_epoch, 2 * per_epoch, last})
    assert [event["epoch"] for event in events] == [event["step"] / per_epoch for event in events]
    assert session.trainer.batches.position == last
    assert session.run.best is not None and session.run.best.step > 0  # step 0 has no checkpoint


def test_an_epoch_with_accumulation_ends_at_the_first_step_after_it(tmp_path: Path) -> None:
    config = config_with(tmp_path, train__epochs=3.0, train__accumulate=2, evaluate__every="epoch")
    events, session = evaluations(config)
    micro = math.ceil(len(session.trainer.train.rows) / config.train.batch)
    expected = [math.ceil(epoch * micro / 2) for epoch in (1, 2, 3)]
    assert [event["step"] for event in events] == expected


def test_metrics_of_samples_equal_those_of_the_checkpoints(tmp_path: Path) -> None:
    """Dropout is off, the rows are the same at every evaluation, and a whole test set has each token once."""
    config = config_with(
        tmp_path,
        train__steps=4,
        evaluate__every=2,
        evaluate__train_rows=3,
        evaluate__tests=True,
        model__dropout=0.5,
        train__precision="float64",
    )
    events, session = evaluations(config)
    steps = {event["step"]: event["loss"] for event in session.run.metrics() if event["event"] == "step"}
    trainer = session.trainer
    assert [event["step"] for event in events] == [2, 4]
    for event in events:
        folder = session.run.checkpoints_folder / f"step-{event['step']:06}"
        model = load(folder, device="cpu").model
        for name, found in (("train", event["training"]), ("own", event["tests"]["own"]), ("validation", event)):
            split = trainer.evaluator.splits[name]
            batches = split.rows.cut(trainer.plan.samples[name], 16)
            measured = trainer.objective.measure(model, split, batches)
            assert found["loss"] == pytest.approx(measured.loss, rel=1e-12), name
        assert event["batch_loss"] == steps[event["step"]]
    whole = next(event for event in session.run.metrics() if event["event"] == "test")
    assert whole["tokens"] == events[0]["tests"]["own"]["tokens"]
    assert len(trainer.plan.samples["train"]) == 3


def test_a_sample_of_the_tests_is_smaller_and_fixed(tmp_path: Path) -> None:
    config = config_with(tmp_path, train__steps=2, evaluate__every=1, evaluate__tests=True, evaluate__test_rows=1)
    events, session = evaluations(config)
    assert len(session.trainer.plan.samples["own"]) == 1
    tokens = {event["tests"]["own"]["tokens"] for event in events}
    whole = next(event for event in session.run.metrics() if event["event"] == "test")
    assert len(tokens) == 1 and tokens.pop() < whole["tokens"]


def test_a_run_that_stops_anywhere_has_the_same_history(tmp_path: Path) -> None:
    """Stopped after every event and resumed, the evaluations are those of the uninterrupted run."""
    settings = {
        "train__steps": 5,
        "evaluate__every": 2,
        "evaluate__at": (0, 1),
        "evaluate__train_rows": 2,
        "evaluate__tests": True,
    }
    plain, _ = evaluations(config_with(tmp_path, name="plain", **settings))
    config = config_with(tmp_path, name="stopped", **settings)
    for number in range(40):
        with open_session(config, resume=number > 0) as session:
            for count, _ in enumerate(session.events([])):
                if count == 4:
                    session.trainer.stop()
            finished = session.trainer.ended and session.run.metrics()[-1]["event"] == "finished"
        if finished:
            break
    run = RunFolder.open(session.run.folder)
    found = [event for event in run.metrics() if event["event"] == "evaluation" and not event["whole"]]
    for event in [*plain, *found]:
        del event["seconds"]
    assert found == plain
