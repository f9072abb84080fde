"""The data that a run trains on, and the settings that follow from it.

Owns: preparing text, vectors and labels in all processes, the settings that depend on them (vocabulary size, number
of classes), and the choice of the objective. Does not own: how text is prepared (`data`), what an objective
computes (`objectives`), the model (`model_setup`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.data.progress import Report
from lilliput.data.tokenizers import Tokenizer
from lilliput.data.vectors import Vectors, fit_vectors, prepare_vectors
from lilliput.errors import UserError
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import Checkpoint
from lilliput.training.objectives import DocumentLabel, NextToken, Objective, Split, TokenAndLabel, balanced_weights
from lilliput.training.process_group import World
from lilliput.training.run_start import ClaimedRun

SHOWN_LABELS = 8  # in an error


@dataclass(frozen=True)
class TrainingData:
    """`config` includes settings taken from the data. `vectors` is None if the weights come from a checkpoint."""

    config: Config
    prepared: Prepared
    vectors: Vectors | None
    objective: Objective[Any]
    splits: Mapping[str, Split[Any]]


def load_training_data(claimed: ClaimedRun, world: World, report: Report) -> TrainingData:
    """Prepare the data, or read prepared data, in all processes."""
    config, tokenizer_json = claimed.config, claimed.tokenizer_json
    tokenizer = None if tokenizer_json is None else Tokenizer.from_json(tokenizer_json, "tokenizer.json")
    prepared = world.in_turn(partial(prepare, config, report, tokenizer))
    if world.share(prepared.fingerprint) != prepared.fingerprint:
        raise UserError(
            f"the data of process {world.rank} differs from that of the first process (got {config.data.source})",
            fix="put the same files on every machine",
            code="data.mismatch",
            setting="data.source",
        )
    config = fit_labels(fit_vocabulary(config, prepared.tokenizer), prepared.labels, claimed.origin)
    vectors: Vectors | None = None
    if config.vectors.source is not None and not claimed.has_weights:  # a checkpoint has them among its weights
        vectors = world.in_turn(partial(prepare_vectors, config, prepared, report))
        config = fit_vectors(config, vectors)
    objective = build_objective(config, prepared.tokenizer.start, prepared.labels, prepared.split("train").labels)
    splits = {name: objective.open(prepared.split(name), training=name == "train") for name in prepared.splits}
    return TrainingData(config, prepared, vectors, objective, splits)


def fit_vocabulary(config: Config, tokenizer: Tokenizer) -> Config:
    """Take model.vocab_size from the tokenizer; raise if it is set and smaller."""
    size = config.model.vocab_size
    if size is None:
        return replace(config, {"model.vocab_size": tokenizer.vocab_size})
    if size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size must be at least {tokenizer.vocab_size:,}, the tokenizer's vocabulary (got {size:,})",
            fix='set model.vocab_size to "none" to take it from the tokenizer',
            code="setting.conflict",
            setting="model.vocab_size",
        )
    return config


def fit_labels(config: Config, labels: list[str] | None, origin: Checkpoint | None) -> Config:
    """Take model.classes from the labels of the training split; raise if it is set to another number.

    Weights of another run require the same labels in the same order.
    """
    if config.model.task == "language":
        return config
    if labels is None:
        raise UserError(
            f'model.task "{config.model.task}" requires labels (got {config.data.source}, which has none)',
            fix='set data.labelled to true, or model.task to "language"',
            code="data.label",
            setting="model.task",
        )
    if origin and origin.labels() != labels:
        known = shown_labels(origin.labels() or ["none"])
        raise UserError(
            f"the labels must be those that the weights were trained with: {known} (got {shown_labels(labels)})",
            str(origin.folder),
            fix="train on documents with the same labels",
            code="checkpoint.mismatch",
            setting="data.source",
        )
    if config.model.classes not in (None, len(labels)):
        raise UserError(
            f"model.classes must be {len(labels)}, the number of labels: {shown_labels(labels)} "
            f"(got {config.model.classes})",
            fix=f"set model.classes to {len(labels)}",
            code="setting.conflict",
            setting="model.classes",
        )
    return replace(config, {"model.classes": len(labels)})


def shown_labels(labels: list[str]) -> str:
    return ", ".join(labels[:SHOWN_LABELS]) + (", ..." if len(labels) > SHOWN_LABELS else "")


def build_objective(
    config: Config, start: int, labels: list[str] | None, document_labels: NDArray[np.int32] | None
) -> Objective[Any]:
    """Return the objective: the next token, the label of a document, or both. `start` is the first input of a document;
    `document_labels` are the classes of the training documents."""
    context, smoothing, z_loss = config.model.context, config.train.label_smoothing, config.train.z_loss
    if config.model.task == "language":
        return NextToken(context, start, config.data.windows == "overlapping", smoothing, z_loss)
    assert labels is not None and document_labels is not None
    class_weights = balanced_weights(document_labels, len(labels)) if config.train.balance_labels else None
    if config.model.task == "classifier":
        return DocumentLabel(context, labels, smoothing, class_weights)
    weights = config.train.language_weight, config.train.label_weight
    return TokenAndLabel(context, start, labels, weights, smoothing, z_loss, class_weights)
