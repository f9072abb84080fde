"""Warnings: each rule warns when it should, once, and a healthy run has no warnings."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from helpers.small_runs import abandon, small_config, timeless, train_small
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.training.events import Evaluated, Event, Finished, Saved, Stepped, Warned
from lilliput.training.training_warnings import Advisor, bits_below_floor, lower_rates, uniform_loss

CONFIG = replace(Config(), {"data.source": "my texts/", "optimizer.lr": 3e-3, "schedule.warmup": 50})


def stepped(step: int, loss: float, norm: float | None = 0.5, skipped: bool = False) -> Stepped:
    return Stepped(step, loss, 1e-3, norm, 1000 * step, 0.5, 1.0, 1.0, None, False, skipped, None)


def evaluated(step: int, loss: float, whole: bool = False, floor: float | None = None, **figures: Any) -> Evaluated:
    fields = {"perplexity": None, "bits_per_byte": None, "accuracy": None, "tokens": 100, "documents": None} | figures
    return Evaluated(step=step, whole=whole, weights=step, floor=floor, loss=loss, **fields)


def falling(steps: int, noise: float = 0.05, seed: int = 0, low: float = 1.5) -> list[float]:
    """Return noisy losses that fall quickly, then slowly."""
    draw = random.Random(seed)
    return [low + (7.0 - low) * math.exp(-step / 80) + draw.gauss(0.0, noise) for step in range(steps)]


def warnings_for(events: Iterable[Event], config: Config = CONFIG, rows: list[int] | None = None) -> list[Warned]:
    advisor = Advisor(config)
    return [warned for event in events for warned in advisor.check(event, rows or [*range(3, 15)])]


def steps(losses: Iterable[float], first: int = 1, norm: float = 0.5) -> list[Event]:
    return [stepped(step, loss, norm) for step, loss in enumerate(losses, start=first)]


# ---- no warnings


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.4])
def test_a_falling_loss_gives_no_warning(noise: float) -> None:
    for seed in range(5):
        events = steps(falling(1500, noise, seed))
        for step in range(100, 1500, 100):
            events.insert(step + step // 100 - 1, evaluated(step, 1.55 + 5.5 * math.exp(-step / 80)))
        assert warnings_for(events) == []


def test_a_noisy_level_loss_gives_no_warning() -> None:
    draw = random.Random(1)
    assert (
        warnings_for(steps(draw.gammavariate(4.0, 0.1) for _ in range(3000))) == []
    )  # like a classifier with small batches


def test_clipping_alone_gives_no_warning() -> None:
    events = [dataclasses.replace(event, clipped=True) for event in steps(falling(1000), norm=5.0)]  # type: ignore[type-var]
    assert warnings_for(events) == []


def test_a_healthy_run_has_no_warnings(tmp_path: Path) -> None:
    config = small_config(tmp_path, train__steps="150", evaluate__every="10", train__save_every="150", log__every="10")
    run, events = train_small(config)
    assert warnings_for(events, config) == []
    assert not any(event["event"] == "warning" for event in run.metrics())
    losses = [event.loss for event in events if isinstance(event, Stepped)]
    assert losses[-1] < losses[0] - 2.0  # it did learn


# ---- spikes


def test_a_spike_is_reported_with_its_rows() -> None:
    losses = falling(400)
    losses[300] = 4.0
    (warned,) = warnings_for(steps(losses))
    assert (warned.step, warned.kind) == (301, "spike")
    assert "4.000" in warned.text and "sequences 3, 4, 5, 6, 7, 8, 9, 10, ... of" in warned.text
    assert warned.event == "warning"


def test_a_spike_of_a_short_batch_is_ignored() -> None:
    events = [stepped(step, loss) for step, loss in enumerate(falling(400), start=1)]
    spiked = [dataclasses.replace(e, loss=4.0) if e.step == 301 else e for e in events]
    short = [dataclasses.replace(e, tokens=e.tokens - 800 * (e.step >= 301)) for e in spiked]  # 200 instead of 1,000
    assert len(warnings_for(spiked)) == 1 and warnings_for(short) == []


def test_many_spikes_give_few_warnings() -> None:
    losses = falling(2000)
    for step in range(200, 2000, 7):
        losses[step] = 6.0
    warned = warnings_for(steps(losses))
    assert 2 <= len(warned) <= 6 and {w.kind for w in warned} == {"spike"}
    gaps = [b.step - a.step for a, b in itertools.pairwise(warned)]
    assert gaps == sorted(gaps)


def test_a_skipped_step_is_ignored() -> None:
    events = steps(falling(300))
    events[200] = stepped(201, 9.0, None, skipped=True)
    assert warnings_for(events) == []


def test_batches_grouped_by_length_have_no_spikes() -> None:
    """Most batches are long and alike; a few are of short texts, with a higher loss."""
    events, tokens = list[Event](), 0
    for step in range(1, 400):
        short = step % 9 == 0
        tokens += 600 if short else 1000
        loss = 3.0 if short else 1.5 + 0.01 * (step % 3)
        events.append(dataclasses.replace(stepped(step, loss), tokens=tokens))
    assert warnings_for(events) == []
    at = events[298]
    assert isinstance(at, Stepped) and at.step == 299
    events[298] = dataclasses.replace(at, loss=3.0)  # a long batch
    assert [(w.kind, w.step) for w in warnings_for(events)] == [("spike", 299)]


# ---- learning rate


def test_noisy_first_batches_are_no_rise() -> None:
    """Losses of a classifier around log 3, with the five lowest at the start."""
    draw = random.Random(0)
    for _ in range(50):
        losses = [draw.gauss(1.1, 0.05) for _ in range(200)]
        losses[:20] = [1.376, 0.926, 0.90, 0.93, 0.92, *losses[5:20]]
        assert [
            w for w in warnings_for(steps(losses), replace(CONFIG, {"schedule.warmup": 5})) if w.kind == "learning-rate"
        ] == []


@pytest.mark.parametrize(
    ("kind", "rate", "suggested"),
    [("adamw", 5.0, "0.002"), ("adamw", 3e-3, "0.001"), ("sgd", 5.0, "0.1"), ("sgd", 0.03, "0.01")],
)
def test_suggested_rates_are_usual_ones(kind: str, rate: float, suggested: str) -> None:
    optimizer = replace(CONFIG, {"optimizer.kind": kind, "optimizer.lr": rate}).optimizer
    assert f"optimizer.lr to {suggested}," in lower_rates(optimizer)


def test_a_loss_that_rises_again() -> None:
    losses = falling(150) + [5.0 + 0.01 * (step % 5) for step in range(300)]
    kinds = [(warned.kind, warned.step) for warned in warnings_for(steps(losses))]
    assert [kind for kind, _ in kinds] == ["spike", "learning-rate"]
    assert 170 <= kinds[1][1] <= 200
    warned = warnings_for(steps(losses))[1]
    assert warned.title == "learning rate too high"
    assert "5.0" in warned.text and "optimizer.lr to 0.001" in warned.text


def test_a_tiny_loss_may_double() -> None:
    """A classifier that starts from another run's weights is nearly always right from the first step."""
    losses = [0.0004] * 30 + [0.0001] * 100 + [0.0003] * 300
    assert warnings_for(steps(losses)) == []


def test_a_loss_above_its_start() -> None:
    muon = replace(CONFIG, {"optimizer.kind": "muon", "optimizer.embedding_lr": 0.3})
    (warned,) = warnings_for(steps([6.9] * 30 + [min(8.5, 6.9 + 0.02 * step) for step in range(200)]), muon)
    assert warned.kind == "learning-rate" and "6.900" in warned.text
    for rate in ("optimizer.lr to 0.001", "optimizer.embedding_lr to 0.1", "optimizer.matrix_lr to 0.007"):
        assert rate in warned.text


def test_the_warm_up_gives_no_warning() -> None:
    slow = replace(CONFIG, {"schedule.warmup": 500})
    losses = [6.9] * 30 + [8.5] * 300 + falling(600)
    assert [w for w in warnings_for(steps(losses), slow) if w.kind == "learning-rate"] == []


def test_clipped_gradients_without_progress() -> None:
    (warned,) = warnings_for(steps([4.0] * 400, norm=50.0))
    assert warned.kind == "learning-rate" and "200 gradients" in warned.text
    assert warnings_for(steps([4.0] * 400, norm=50.0), replace(CONFIG, {"optimizer.clip": None})) == []


def test_it_warns_again_after_a_recovery() -> None:
    losses = falling(200) + [5.0] * 100 + falling(300, low=1.0) + [5.0] * 100
    assert [w.kind for w in warnings_for(steps(losses))].count("learning-rate") == 2


# ---- overfitting


def overfitting(validation: list[float], train_low: float = 0.5) -> list[Event]:
    losses = [max(train_low, 3.0 - 0.003 * step) for step in range(100 * len(validation))]
    events: list[Event] = []
    for number, loss in enumerate(validation):
        events += steps(losses[100 * number : 100 * (number + 1)], first=100 * number + 1)
        events.append(evaluated(100 * (number + 1), loss))
    return events


def test_rising_validation_loss() -> None:
    (warned,) = warnings_for(overfitting([2.5, 2.2, 2.0, 2.1, 2.15, 2.2, 2.3, 2.4]))
    assert (warned.kind, warned.step) == ("overfitting", 600)
    assert warned.text == (
        "overfitting: validation loss has risen since step 300 (2.00 -> 2.20) while training loss falls; "
        "the checkpoint of step 300 is kept as best"
    )


def test_it_warns_again_after_a_new_best() -> None:
    warned_at = [w.step for w in warnings_for(overfitting([2.0, 2.1, 2.1, 2.1, 1.9, 2.0, 2.0, 2.0]))]
    assert warned_at == [400, 800]


def test_noise_or_a_level_training_loss_is_no_overfitting() -> None:
    assert warnings_for(overfitting([2.0, 2.001, 2.003, 2.002, 2.01, 2.004])) == []
    assert warnings_for(overfitting([3.0, 3.1, 3.2, 3.3, 3.4, 3.5], train_low=3.0)) == []


def test_overfitting_is_found_at_the_first_evaluation_that_is_clearly_above() -> None:
    def found(validation: list[float], **figures: int) -> list[int]:
        events = [
            dataclasses.replace(event, **figures) if isinstance(event, Evaluated) else event  # type: ignore[arg-type]
            for event in overfitting(validation)
        ]
        return [warned.step for warned in warnings_for(events)]

    assert found([2.0, 2.2, 2.4], tokens=16_384) == [200]  # 10% above the best
    assert found([2.0, 2.05, 2.06, 2.1], tokens=16_384) == [300]  # 2.5%, then 3%
    assert found([2.0, 2.02, 2.03, 2.04], tokens=16_384) == [400]
    assert found([2.0, 2.2, 2.15, 2.01], tokens=16_384, documents=64) == []  # 1 / sqrt(64) is 12.5%
    assert found([2.0, 2.3, 2.4], tokens=16_384, documents=64) == [200]


# ---- worse than uniform guessing


def test_a_validation_loss_above_uniform_guessing() -> None:
    config = replace(CONFIG, {"model.vocab_size": 1000})  # log 1000 is 6.908
    (warned,) = warnings_for([evaluated(60, 7.1), evaluated(70, 8.0)], config)
    assert (warned.kind, warned.step) == ("uniform", 60)
    assert "6.908" in warned.text and "7.100" in warned.text
    assert [w.step for w in warnings_for([evaluated(s, x) for s, x in ((60, 8.0), (70, 6.0), (80, 8.0))], config)] == [
        60,
        80,
    ]
    for event in (evaluated(60, 7.0), evaluated(50, 9.0), evaluated(60, 9.0, whole=True)):  # 50: in the warm-up
        assert warnings_for([event], config) == []
    assert warnings_for([evaluated(60, 99.0)]) == []  # the size of the vocabulary is not known


def test_the_advice_fits_the_training_loss() -> None:
    """Uniform guessing: 6.908."""
    size = {"model.vocab_size": 1000}

    def text(loss: float, **changes: Any) -> str:
        config = replace(CONFIG, size | {name.replace("__", "."): value for name, value in changes.items()})
        found = warnings_for([*steps([loss] * 60), evaluated(60, 8.0)], config)
        return next(warned.text for warned in found if warned.kind == "uniform")

    assert "add text" in text(2.0) and "optimizer.lr" not in text(2.0)
    assert "optimizer.lr" in text(6.9) and "add text" not in text(6.9)
    assert "data.validation_share 0.9 " in text(2.0, data__validation_share=0.9)
    assert "data.validation_share" not in text(2.0, data__validation_share=0.9, data__validation_source="b.txt")


def test_uniform_loss() -> None:
    size, classes = {"model.vocab_size": 1000}, {"model.classes": 3, "data.labelled": True}
    both = {"model.task": "both", "train.language_weight": 2.0, "train.label_weight": 0.5}
    for changes, expected in (
        (size, math.log(1000)),
        (size | classes | {"model.task": "classifier"}, math.log(3)),
        (size | classes | both, 2.0 * math.log(1000) + 0.5 * math.log(3)),
    ):
        assert uniform_loss(replace(CONFIG, changes)) == pytest.approx(expected, rel=1e-15)
    assert uniform_loss(CONFIG) is None


def test_a_checkpoint_without_the_newest_rule_is_loaded() -> None:
    state = Advisor(CONFIG).state_dict()
    del state["rules"]["uniform"]
    del state["rules"]["learning-rate"]["spread"]
    Advisor(CONFIG).load_state_dict(state)


# ---- leakage


def below(level: float, config: Config = CONFIG) -> list[Warned]:
    events: list[Event] = []
    for number in range(8):
        events += steps([3.0] * 50, first=50 * number + 1)
        events.append(evaluated(50 * (number + 1), level))
    return warnings_for(events, config)


def test_validation_loss_far_below_training_loss() -> None:
    (warned,) = below(2.0)
    assert (warned.kind, warned.step) == ("leakage", 250)
    assert "data.drop_duplicates" in warned.text


def test_low_validation_loss_with_another_reason() -> None:
    assert below(2.8) == []
    for name, value in {"model.dropout": 0.1, "data.drop_duplicates": "near"}.items():
        assert below(2.0, replace(CONFIG, {name: value})) == []


def test_a_loss_below_the_floor() -> None:
    bits = {"tokens": 10_000, "bits_per_byte": 0.500}  # 2 nats x 10,000 tokens: 28,854 bits in 57,708 bytes
    (warned,) = warnings_for([evaluated(300, 2.0, whole=True, floor=0.501, **bits)])
    assert (warned.kind, warned.step) == ("leakage", 300)
    assert "0.5000" in warned.text and "0.5010" in warned.text
    assert bits_below_floor(evaluated(1, 2.0, whole=True, floor=0.501, **bits)) == pytest.approx(57.7, abs=0.05)
    assert warnings_for([evaluated(300, 2.0, whole=True, floor=0.5003, **bits)]) == []  # 17 bits
    assert warnings_for([evaluated(300, 2.0, whole=True, floor=0.499, **bits)]) == []
    assert warnings_for([evaluated(300, 2.0, whole=True, **bits)]) == []


# ---- state


@pytest.mark.parametrize("cut", [1, 60, 149, 199, 310, 395, 620, 804])
def test_a_resumed_run_gives_the_same_warnings(cut: int) -> None:
    """The state goes through JSON, as in a checkpoint."""
    events = overfitting([2.5, 2.2, 2.0, 2.1, 2.15, 2.2, 2.3, 2.4])
    events[200] = stepped(200, 30.0)
    events += steps([30.0] * 60, first=801)
    whole = warnings_for(events)
    assert {w.kind for w in whole} == {"spike", "overfitting", "learning-rate"}
    first = Advisor(CONFIG)
    warned = [warning for event in events[:cut] for warning in first.check(event, [1])]
    second = Advisor(CONFIG)
    state = json.loads(json.dumps(first.state_dict()))
    assert set(state["rules"]["leakage"]) == {"below", "told"}  # keys of checkpoints
    second.load_state_dict(state)
    warned += [warning for event in events[cut:] for warning in second.check(event, [1])]
    assert [(w.step, w.kind) for w in warned] == [(w.step, w.kind) for w in whole]


def test_the_log_of_a_resumed_run_has_the_same_warnings(tmp_path: Path) -> None:
    """Interrupted before the warning, right after it, and after the next events: none is lost or repeated."""
    reckless = {
        "optimizer__kind": "muon",
        "optimizer__lr": "1",
        "optimizer__matrix_lr": "2",
        "model__final_norm": "false",
        "model__qk_norm": "false",
        "schedule__kind": "constant",
        "schedule__warmup": "40",
        "train__steps": "60",
        "train__save_every": "1",
        "evaluate__every": "25",
    }
    whole, events = train_small(small_config(tmp_path, "whole", **reckless))
    (at, *_) = [number for number, event in enumerate(events) if isinstance(event, Warned)]
    assert isinstance(events[at - 1], Stepped) and isinstance(events[at + 1], Saved)
    for after in (at, at + 1, at + 2, at + 3):
        config = small_config(tmp_path, f"left{after}", **reckless)
        assert abandon(config, after)
        run, _ = train_small(config, resume=True)
        assert timeless(run) == timeless(whole)


def test_other_events_give_no_warning() -> None:
    assert warnings_for([Saved(1, "step-000001"), Finished(1, 1, 1.0, interrupted=False, early=False)]) == []
