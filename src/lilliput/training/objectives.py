"""What a run learns, and by which figures it is judged: the next token, or the label of a document.

Owns: the two objectives, and the rows of a split that each needs. Does not own: the loop (`loop`), the order of rows
(`data.batches`), the arithmetic of a figure (`evaluation`).

The choice is made once, when a session is opened: the loop sums `nats`, divides by what the batches count, and asks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol

from torch import Tensor

from lilliput.data.batches import (
    AnyBatch,
    DocumentRows,
    LabelledBatch,
    LanguageBatch,
    OverlappingRows,
    PackedRows,
    Rows,
)
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.classification import batch_logits, label_nats, measure_classification
from lilliput.evaluation.likelihood import batch_nats, measure_likelihood
from lilliput.model.transformer import Transformer
from lilliput.training.events import Figures


@dataclass(frozen=True)
class Split(Generic[AnyBatch]):
    """A split's rows, with what there is to predict. None bytes: what is predicted is not the text."""

    rows: Rows[AnyBatch]
    predictions: int
    bytes_per_prediction: float | None


class Objective(Protocol[AnyBatch]):
    """`open` is how a split is read: for training rows may overlap, for figures each token is in one of them."""

    @property
    def labels(self) -> list[str] | None:
        """Names of classes, for whoever reads the model's checkpoints."""
        ...

    def open(self, file: TokenFile, training: bool) -> Split[AnyBatch]: ...

    def nats(self, model: Transformer, batch: AnyBatch) -> Tensor:
        """The loss of a batch, summed, with a gradient."""
        ...

    def measure(self, model: Transformer, split: Split[AnyBatch], batches: Iterable[AnyBatch]) -> Figures: ...


@dataclass(frozen=True)
class NextToken:
    """Predict each token from those before it; `start` is what stands before a document's first."""

    context: int
    start: int
    overlapping: bool
    labels: None = None

    def open(self, file: TokenFile, training: bool) -> Split[LanguageBatch]:
        kind = OverlappingRows if training and self.overlapping else PackedRows
        return Split(kind(file, self.context, self.start), file.predictions, file.bytes / file.predictions)

    def nats(self, model: Transformer, batch: LanguageBatch) -> Tensor:
        return batch_nats(model, batch)

    def measure(self, model: Transformer, split: Split[LanguageBatch], batches: Iterable[LanguageBatch]) -> Figures:
        assert split.bytes_per_prediction is not None
        found = measure_likelihood(model, batches, split.bytes_per_prediction)
        return Figures(
            loss=found.loss,
            perplexity=found.perplexity,
            bits_per_byte=found.bits_per_byte,
            accuracy=None,
            tokens=found.tokens,
            documents=None,
        )


@dataclass(frozen=True)
class DocumentLabel:
    """Tell the label of a document from its first `context` tokens."""

    context: int
    labels: list[str]

    def open(self, file: TokenFile, training: bool) -> Split[LabelledBatch]:
        rows = DocumentRows(file, self.context)
        return Split(rows, len(rows), None)

    def nats(self, model: Transformer, batch: LabelledBatch) -> Tensor:
        return label_nats(batch_logits(model, batch), batch)

    def measure(self, model: Transformer, split: Split[LabelledBatch], batches: Iterable[LabelledBatch]) -> Figures:
        found = measure_classification(model, batches)
        return Figures(
            loss=found.loss,
            perplexity=None,
            bits_per_byte=None,
            accuracy=found.accuracy,
            tokens=found.tokens,
            documents=found.documents,
        )
