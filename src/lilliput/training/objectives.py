"""What a run learns, and by which figures it is judged: the next token, the label of a document, or both.

Owns: the objectives, how they weigh their losses, and the rows of a split that each needs. Does not own: the
loop (`loop`), the order of rows (`data.batches`), the arithmetic of a figure (`evaluation`).

The choice is made once, when a session is opened: the loop sums `losses`, divides each by what the batches
count, weighs them, and asks nothing.
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
    """A split's rows, with what there is to predict. None bytes: what is predicted is not the text."""

    rows: RowSource[AnyBatch]
    predictions: int
    bytes_per_prediction: float | None


class Losses(NamedTuple):
    """K losses of a batch, each summed over what it is a loss of: `batch.counts` says how many those are."""

    goal: Tensor  # (K,) what is descended, with a gradient
    nats: Tensor  # (K,) what is told: plain cross-entropy, detached


def side_by_side(*parts: Nats) -> Losses:
    return Losses(torch.stack([part.goal for part in parts]), torch.stack([part.nats for part in parts]))


def weigh(sums: Tensor, counts: Iterable[int], weights: Iterable[float]) -> Tensor:
    """One loss of K summed ones (K,): each divided by its count, which may be of many batches, and weighed."""
    shares = zip(sums.unbind(), counts, weights, strict=True)
    return torch.stack([weight * part / max(1, count) for part, count, weight in shares]).sum()


def balanced_weights(labels: NDArray[np.integer[Any]], classes: int) -> tuple[float, ...]:
    """Of each class, so that all classes weigh the same together and a document 1 on average."""
    return tuple((len(labels) / (classes * np.bincount(labels, minlength=classes))).tolist())


class Objective(Protocol[AnyBatch]):
    """`open` is how a split is read: for training rows may overlap, for figures each token is in one of them."""

    @property
    def labels(self) -> list[str] | None:
        """Names of classes, for whoever reads the model's checkpoints."""
        ...

    @property
    def weights(self) -> tuple[float, ...]:
        """(K,) of the mean losses in the one that is descended, and in the one that is told."""
        ...

    def open(self, file: TokenFile, training: bool) -> Split[AnyBatch]: ...

    def losses(self, model: Transformer, batch: AnyBatch) -> Losses: ...

    def measure(
        self, model: Transformer, split: Split[AnyBatch], batches: Iterable[AnyBatch], total: Total = alone
    ) -> EvaluationFigures: ...


@dataclass(frozen=True)
class NextToken:
    """Predict each token from those before it; `start` is what stands before a document's first."""

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
        return side_by_side(batch_loss(model, batch, self.smoothing, self.z_loss))

    def measure(
        self, model: Transformer, split: Split[LanguageBatch], batches: Iterable[LanguageBatch], total: Total = alone
    ) -> EvaluationFigures:
        assert split.bytes_per_prediction is not None
        found = measure_likelihood(model, batches, split.bytes_per_prediction, total)
        return EvaluationFigures(
            loss=found.loss,
            perplexity=found.perplexity,
            bits_per_byte=found.bits_per_byte,
            accuracy=None,
            tokens=found.tokens,
            documents=None,
        )


@dataclass(frozen=True)
class DocumentLabel:
    """Tell the label of a document from its first `context` tokens. `class_weights`: of each label's documents."""

    context: int
    labels: list[str]
    smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    weights: tuple[float, ...] = (1.0,)

    def open(self, file: TokenFile, training: bool) -> Split[LabelledBatch]:
        rows = DocumentRows(file, self.context)
        return Split(rows, len(rows), None)

    def losses(self, model: Transformer, batch: LabelledBatch) -> Losses:
        return side_by_side(
            classifier_loss(classifier_logits(model, batch), batch.labels, self.smoothing, self.class_weights)
        )

    def measure(
        self, model: Transformer, split: Split[LabelledBatch], batches: Iterable[LabelledBatch], total: Total = alone
    ) -> EvaluationFigures:
        found = measure_classification(model, batches, total)
        return EvaluationFigures(
            loss=found.loss,
            perplexity=None,
            bits_per_byte=None,
            accuracy=found.accuracy,
            tokens=found.tokens,
            documents=found.documents,
        )


@dataclass(frozen=True)
class TokenAndLabel:
    """Predict each token, and tell the label of a document from its first window. `weights`: of the token, of the label."""

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
        found = multitask_loss(model, batch, self.smoothing, self.z_loss, self.class_weights)
        return side_by_side(found.tokens, found.labels)

    def measure(
        self, model: Transformer, split: Split[BothBatch], batches: Iterable[BothBatch], total: Total = alone
    ) -> EvaluationFigures:
        assert split.bytes_per_prediction is not None
        text, label = measure_multitask(model, batches, split.bytes_per_prediction, total)
        some = label.documents > 0  # a sample of later windows has none
        of_token, of_label = self.weights
        return EvaluationFigures(
            loss=of_token * text.loss + (of_label * label.loss if some else 0.0),
            perplexity=text.perplexity,
            bits_per_byte=text.bits_per_byte,
            accuracy=label.accuracy if some else None,
            tokens=text.tokens,
            documents=label.documents,
        )
