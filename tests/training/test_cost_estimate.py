"""Estimates of the cost of a run; tests/cli/test_dry_run.py tests them in `train --dry-run`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.tiny_models import draw_ids, tiny_model
from helpers.user_errors import refused
from lilliput.devices import device_memory
from lilliput.settings.loading import load_config, replace
from lilliput.settings.tree import Config, OptimizerSettings
from lilliput.training.cost_estimate import assume_data, expected_seconds, refuse_too_large
from lilliput.training.optimizers import build_optimizer
from lilliput.training.training_choices import OPTIMIZERS


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "muon"])
def test_moments_equal_the_size_of_the_optimizer_state(kind: Any, momentum: float) -> None:
    model = tiny_model(feed_forward="swiglu", kv_heads=2, biases="all")
    settings = OptimizerSettings(kind=kind, momentum=momentum)
    optimizer = build_optimizer(settings, model)
    model(draw_ids(2, 5)).sum().backward()
    optimizer.step()
    states = [one.state for one in getattr(optimizer, "optimizers", [optimizer])]
    kept = [tensor for state in states for of_one in state.values() for tensor in of_one.values() if tensor is not None]
    config = Config(model=model.settings, optimizer=settings)
    assert OPTIMIZERS[kind].moments(config, model.count().parameters) == sum(t.numel() for t in kept if t.dim())


def test_a_vocabulary_of_words_is_not_known_before_the_text_is_read() -> None:
    config = load_config("storybook", {"tokenizer.kind": "word"})
    error = refused(lambda: assume_data(config))
    assert (error.code, error.setting) == ("setting.value", "model.vocab_size")


def test_a_budget_in_epochs_has_no_time_before_the_text_is_read() -> None:
    config = replace(Config(), {"train.epochs": 3.0, "model.vocab_size": 300})
    assert expected_seconds(config) is None
    assert expected_seconds(config, flops=1e9) is not None


def test_a_time_limit_limits_the_estimate() -> None:
    many = replace(Config(), {"train.steps": 10**9, "train.max_minutes": 3.0, "model.vocab_size": 300})
    few = replace(many, {"train.steps": 1, "train.max_minutes": 3.0})
    assert (
        expected_seconds(many)
        == expected_seconds(replace(many, {"train.minutes": 5.0, "train.max_minutes": 3.0}))
        == 180
    )
    assert 0.0 < (expected_seconds(few) or 0.0) < 180
    assert expected_seconds(replace(many, {"train.minutes": 2.0, "train.max_minutes": 3.0})) == 120


def test_a_model_larger_than_the_memory_is_refused() -> None:
    cpu, config = torch.device("cpu"), Config()
    fitting = replace(config, {"model.vocab_size": 300})
    refuse_too_large(fitting, cpu)
    memory = device_memory(cpu)
    assert memory is not None
    rows = memory // (8 * config.model.dim) + 1  # of an embedding whose weights and gradients fill the memory
    error = refused(lambda: refuse_too_large(replace(config, {"model.vocab_size": rows}), cpu))
    assert error.code == "memory.short" and f"{memory / 1e9:,.0f} GB" in error.what
