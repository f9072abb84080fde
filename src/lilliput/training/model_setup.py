"""Build and initialise the model of a run in every process.

Owns: the order of initialisation (random, word vectors, weights of another run, bigram counts), the precision that
all processes use, compiled kernels, recomputation, and torch.compile. Does not own: the parts of a model
(`model`), how each initialisation works (their own modules), resuming (`session`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lilliput.data.batches import RowSource
from lilliput.data.progress import Report
from lilliput.data.vectors import Vectors
from lilliput.kernels.dropout import load_dropout
from lilliput.kernels.training_attention import fits, load_attention
from lilliput.model.embeddings import put_vectors
from lilliput.model.recompute import use_compile, use_recompute
from lilliput.model.transformer import Transformer, build_model, load_weights
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import Checkpoint
from lilliput.training.bigram_initialisation import learn_pairs
from lilliput.training.distributed import Parallel, parallelise
from lilliput.training.precision import Precision, build_precision
from lilliput.training.process_group import World
from lilliput.training.run_start import ClaimedRun
from lilliput.training.training_data import TrainingData


@dataclass(frozen=True)
class ModelSetup:
    """`seconds` is the time of the initialisation, which is part of the budget."""

    model: Transformer
    parallel: Parallel
    precision: Precision
    seconds: float


def set_up_model(
    claimed: ClaimedRun, data: TrainingData, device: torch.device, world: World, report: Report
) -> ModelSetup:
    """Build the model with its first weights in every process. Adds to the run's notes."""
    config = data.config
    precision = agree_on_precision(config.train.precision, device, world)
    claimed.notes += [precision.note] if precision.note else []
    model = build_model(config.model, config.vectors, seed=config.seed)
    load_kernels(model, precision, world, report)
    give_weights(model, precision, data.vectors, claimed.origin)
    seconds = 0.0
    if world.first and not claimed.has_weights:  # the other processes receive its weights
        seconds = initialise_from_counts(config, model, data.splits["train"].rows, device, claimed.notes)
    use_recompute(model, config.train.recompute, config.train.recompute_every)
    parallel = parallelise(model, world, config.train.parallel, device)
    if config.train.compile:
        use_compile(model)
    return ModelSetup(model, parallel, precision, seconds)


def agree_on_precision(name: str, device: torch.device, world: World) -> Precision:
    """Build the precision that the first process chooses: `auto` is measured, and measurements can differ."""
    chosen = build_precision(name, device) if world.first else None
    name = world.share(str(chosen.dtype).removeprefix("torch.") if chosen else None)
    return chosen or build_precision(name, device)


def load_kernels(model: Transformer, precision: Precision, world: World, report: Report) -> None:
    """Compile attention and dropout, or load them from the cache, where the model can use them."""
    if precision.device.type != "cpu" or precision.weights_dtype is not torch.float32:
        return
    loaders = []
    if model.causal and fits(model.head_dim) and precision.dtype is torch.float32:
        loaders.append(load_attention)
    if model.settings.dropout:  # also in 16-bit floats, in which the embedding is float32
        loaders.append(load_dropout)
    for load in loaders:
        world.in_turn(partial(load, lambda sentence: report(sentence, 0, 0)))


def give_weights(model: Transformer, precision: Precision, vectors: Vectors | None, origin: Checkpoint | None) -> None:
    """Put word vectors and the weights of another run into the model, in the type of its weights."""
    if vectors is not None:
        put_vectors(model.embedding, model.vectors.uncovered, vectors.table, vectors.covered)
    model.to(precision.weights_dtype)
    if origin:
        load_weights(model, origin.load_model())


def initialise_from_counts(
    config: Config, model: Transformer, rows: RowSource[Any], device: torch.device, notes: list[str]
) -> float:
    """Initialise the model from bigram counts if train.pair_updates is set; return the seconds it took."""
    updates = config.train.pair_updates
    if not updates:
        return 0.0
    began = time.monotonic()
    nats = learn_pairs(model, rows, updates, config.seed, device)
    seconds = time.monotonic() - began
    notes.append(f"initialised from bigram counts: {nats:.3f} nats per token, {seconds:.0f} s")
    return seconds
