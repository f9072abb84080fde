"""Estimates of the time and memory of a run by formula, before its data is read.

Owns: the estimates, assumptions about the data, and whether more exact ones may be measured. Does not own: the counts of a
model (`model.counting`), the speed of the machine (`devices`), estimates from timed steps (`run_estimate`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lilliput.errors import UserError

if TYPE_CHECKING:
    import torch

    from lilliput.model.counting import Count
    from lilliput.settings.tree import Config

REACHED = 0.7  # share of the machine's peak that small models reach
TIMING = "LILLIPUT_TIME_STEPS"  # environment variable: 0 switches the timing of steps off


def may_time_steps() -> bool:
    """Return whether training steps may be timed before a run. Studies switch it off: their runs must not differ in precision
    and threads, and their times and memory must not include a measurement."""
    return os.environ.get(TIMING) != "0"


def expected_seconds(config: Config, flops: float | None = None) -> float | None:
    """Return the seconds of training on this machine: train.minutes, or computed from `flops` (default: those of the budget);
    at most train.max_minutes.

    Return None for a budget in epochs, whose length is not known before the text is read.
    """
    train = config.train
    if train.minutes is not None:
        seconds = 60 * train.minutes
    elif flops is not None:
        seconds = flops_seconds(config, flops)
    elif train.epochs is not None:
        return None
    else:
        tokens = train.tokens or (train.steps or 0) * train.batch * train.accumulate * config.model.context
        seconds = tokens * token_seconds(config)
    return seconds if train.max_minutes is None else min(seconds, 60 * train.max_minutes)


def token_seconds(config: Config) -> float:
    """Return the seconds of training per token on this machine, computed from its FLOPs."""
    from lilliput.model.counting import count, recomputed_flops

    train, model = config.train, config.model
    again = recomputed_flops(model, train.recompute, train.recompute_every)
    return flops_seconds(config, count(model, config.vectors).flops_per_token + again)


def flops_seconds(config: Config, flops: float) -> float:
    from lilliput.devices import choose_device, choose_precision, known_flops

    device = choose_device(config.train.device)
    return flops / (REACHED * known_flops(device, choose_precision(config.train.precision, device).dtype))


def refuse_too_large(config: Config, device: torch.device) -> None:
    """Raise if the weights and gradients alone exceed the memory of the device; the operating system would kill the run."""
    from lilliput.devices import device_memory
    from lilliput.model.counting import count

    memory, parameters = device_memory(device), count(config.model, config.vectors).parameters.total
    needed = parameters * (16 if config.train.precision == "float64" else 8)
    if memory is not None and needed > memory:
        raise UserError(
            f"the model does not fit into memory (weights and gradients take {needed / 1e9:,.0f} GB, there are "
            f"{memory / 1e9:,.0f} GB)",
            f"{parameters:,} parameters",
            fix="reduce model.dim, model.layers, model.hidden, model.context or the vocabulary",
            code="memory.short",
        )


def assume_data(config: Config) -> Config:
    """Fill in the settings that depend on the data: vocabulary size, two classes, width of the word vectors.

    Rows for words without a vector are not counted: their number is not known before the text is read.
    """
    from lilliput.settings.loading import replace

    if config.model.vocab_size is None:
        config = replace(config, {"model.vocab_size": expected_vocabulary(config)})
    if config.model.task != "language" and config.model.classes is None:
        config = replace(config, {"model.classes": 2})  # the number of classes hardly changes the cost
    if config.vectors.source is not None and config.vectors.width is None:
        from lilliput.data.vectors import expected_width

        config = replace(config, {"vectors.width": expected_width(config.vectors.source)})
    return config


def expected_vocabulary(config: Config) -> int:
    """Return the largest vocabulary that the tokenizer can have, or the size of an existing tokenizer."""
    from lilliput.data.tokenizer_choices import TOKENIZERS

    tokenizer = config.tokenizer
    if tokenizer.path is not None or tokenizer.vocabulary is not None:
        from lilliput.data.tokenizers import make_tokenizer

        return make_tokenizer(tokenizer, []).vocab_size
    size = TOKENIZERS[tokenizer.kind].vocab_size(tokenizer)
    if size is None:
        what = f"the number of {tokenizer.kind}s is not known before the text is read"
        fix = "set model.vocab_size or tokenizer.max_vocabulary"
        raise UserError(what, fix=fix, code="setting.value", setting="model.vocab_size")
    return size


def tensor_bytes(config: Config, counted: Count) -> int:
    """Return the bytes of weights, gradients, moments, averaged weights, and the activations of one micro-batch.

    All numbers have the type of the weights: 16-bit activations need less than this estimate, dropout needs more.
    """
    from lilliput.model.counting import activations
    from lilliput.training.training_choices import OPTIMIZERS

    parameters, train = counted.parameters, config.train
    per_token = activations(config.model, train.recompute, train.recompute_every).most
    numbers = parameters.total + parameters.trainable + OPTIMIZERS[config.optimizer.kind].moments(config, parameters)
    numbers += parameters.trainable if config.optimizer.average is not None else 0
    numbers += train.batch * config.model.context * per_token
    return numbers * (8 if train.precision == "float64" else 4)
