"""Training objectives and their metrics: the next token, the label of a document, or both.

Owns: the objectives, how they weight their losses, and the rows of a split that each needs. Does not own: the
loop (`loop`), the order of rows (`data.batches`), how a metric is computed (`evaluation`).

The objective is chosen once, when a session is opened. The loop sums `losses`, divides each sum by the counts of
the batches, and weights the results, for every objective in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.data.batches import (
    AnyBatch,
    BothBatch,
    DocumentRows,
    LabelledBatch,
    LabelledWindowRows,
    LanguageBatch,
    OverlappingRows,
    PackedRows,
    RowSource,
)
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.classification import measure_classification
from lilliput.evaluation.likelihood import Total, alone, measure_likelihood
from lilliput.evaluation.multitask import measure_multitask
from lilliput.model.classifier_loss import classifier_logits, classifier_loss, multitask_loss
from lilliput.model.language_loss import Nats, batch_loss
from lilliput.model.transformer import Transformer
from lilliput.training.events import EvaluationFigures


@dataclass(frozen=True)
class Split(Generic[AnyBatch]):
    """The rows of a split and the number of predictions. `bytes_per_prediction` is None if labels are predicted."""

    rows: RowSource[AnyBatch]
    predictions: int
    bytes_per_prediction: float | None


class Losses(NamedTuple):
    """K losses of a batch, each a sum over tokens or documents, whose numbers are in `batch.counts`."""

    goal: Tensor  # (K,) minimised, with a gradient
    nats: Tensor  # (K,) logged: plain cross-entropy, detached


def stack_losses(*parts: Nats) -> Losses:
    return Losses(torch.stack([part.goal for part in parts]), torch.stack([part.nats for part in parts]))


def weigh(sums: Tensor, counts: Iterable[int], weights: Iterable[float]) -> Tensor:
    """Return the weighted sum of K mean losses, from the sums (K,) and counts of one or several batches."""
    shares = zip(sums.unbind(), counts, weights, strict=True)
    return torch.stack([weight * part / max(1, count) for part, count, weight in shares]).sum()


def balanced_weights(labels: NDArray[np.integer[Any]], classes: int) -> tuple[float, ...]:
    """Return a weight for the documents of each class: all classes have the same total weight, and the mean is 1."""
    return tuple((len(labels) / (classes * np.bincount(labels, minlength=classes))).tolist())


class Objective(Protocol[AnyBatch]):
    """`open` returns a split: for training its rows may overlap, for evaluation each token is in exactly one row."""

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes, which are saved in checkpoints."""
        ...

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights (K,) of the mean losses, both in the minimised and in the logged sum."""
        ...

    def open(self, file: TokenFile, training: bool) -> Split[AnyBatch]: ...

    def losses(self, model: Transformer, batch: AnyBatch) -> Losses: ...

    def measure(
        self, model: Transformer, split: Split[AnyBatch], batches: Iterable[AnyBatch], total: Total = alone
    ) -> EvaluationFigures: ...


@dataclass(frozen=True)
class NextToken:
    """Predict each token from those before it; `start` is the token before the first one of a document."""

    context: int
    start: int
    overlapping: bool
    smoothing: float = 0.0
    z_loss: float = 0.0
    labels: None = None
    weights: tuple[float, ...] = (1.0,)

    def open(self, file: TokenFile, training: bool) -> Split[LanguageBatch]:
        kind = OverlappingRows if training and self.overlapping else PackedRows
        return Split(kind(file, self.context, self.start), file.predictions, file.bytes / file.predictions)

    def losses(self, model: Transformer, batch: LanguageBatch) -> Losses:
        return stack_losses(batch_loss(model, batch, self.smoothing, self.z_loss))

    def measure(
        self, model: Transformer, split: Split[LanguageBatch], batches: Iterable[LanguageBatch], total: Total = alone
    ) -> EvaluationFigures:
        assert split.bytes_per_prediction is not None
        text = measure_likelihood(model, batches, split.bytes_per_prediction, total)
        return EvaluationFigures(
            loss=text.loss,
            perplexity=text.perplexity,
            bits_per_byte=text.bits_per_byte,
            accuracy=None,
            tokens=text.tokens,
            documents=None,
        )


@dataclass(frozen=True)
class DocumentLabel:
    """Predict the label of a document from its first `context` tokens. `class_weights`: one per label."""

    context: int
    labels: list[str]
    smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    weights: tuple[float, ...] = (1.0,)

    def open(self, file: TokenFile, training: bool) -> Split[LabelledBatch]:
        rows = DocumentRows(file, self.context)
        return Split(rows, len(rows), None)

    def losses(self, model: Transformer, batch: LabelledBatch) -> Losses:
        return stack_losses(
            classifier_loss(classifier_logits(model, batch), batch.labels, self.smoothing, self.class_weights)
        )

    def measure(
        self, model: Transformer, split: Split[LabelledBatch], batches: Iterable[LabelledBatch], total: Total = alone
    ) -> EvaluationFigures:
        label = measure_classification(model, batches, total)
        return EvaluationFigures(
            loss=label.loss,
            perplexity=None,
            bits_per_byte=None,
            accuracy=label.accuracy,
            tokens=label.tokens,
            documents=label.documents,
        )


@dataclass(frozen=True)
class TokenAndLabel:
    """Predict each token, and the label of a document from its first window. `weights`: of token and label loss."""

    context: int
    start: int
    labels: list[str]
    weights: tuple[float, float]
    smoothing: float = 0.0
    z_loss: float = 0.0
    class_weights: tuple[float, ...] | None = None

    def open(self, file: TokenFile, training: bool) -> Split[BothBatch]:
        rows = LabelledWindowRows(file, self.context, self.start)
        return Split(rows, file.predictions, file.bytes / file.predictions)

    def losses(self, model: Transformer, batch: BothBatch) -> Losses:
        losses = multitask_loss(model, batch, self.smoothing, self.z_loss, self.class_weights)
        return stack_losses(losses.tokens, losses.labels)

    def measure(
        self, model: Transformer, split: Split[BothBatch], batches: Iterable[BothBatch], total: Total = alone
    ) -> EvaluationFigures:
        assert split.bytes_per_prediction is not None
        text, label = measure_multitask(model, batches, split.bytes_per_prediction, total)
        some = label.documents > 0  # a sample without first windows has no labels
        of_token, of_label = self.weights
        return EvaluationFigures(
            loss=of_token * text.loss + (of_label * label.loss if some else 0.0),
            perplexity=text.perplexity,
            bits_per_byte=text.bits_per_byte,
            accuracy=label.accuracy if some else None,
            tokens=text.tokens,
            documents=label.documents,
        )
