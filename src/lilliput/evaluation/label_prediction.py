"""Predict the labels of texts with a classifier or a multi-task model.

Owns: reading the texts of a file as the run reads its documents, with or without labels, and the predictions of a list of
texts. Does not own: the probabilities (`label_metrics.score_labels`), or metrics of labelled documents (`evaluate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lilliput.data.corpora.documents import Document, ignore
from lilliput.data.corpora.line_ends import LINE_ENDS
from lilliput.data.corpora.sources import open_source
from lilliput.data.prepare.encoding import encode
from lilliput.data.prepare.token_files import BYTES, OFFSETS, TokenFile, token_type
from lilliput.errors import UserError
from lilliput.evaluation.evaluate import run_name, settings_of
from lilliput.settings.tree import Config, DataSettings

if TYPE_CHECKING:
    from lilliput.data.tokenizers import Tokenizer
    from lilliput.storage.checkpoints import Checkpoint

OF_LABELS = ("data.labelled", "data.label_field")


class Classifier(NamedTuple):
    """A checkpoint whose model predicts labels, its settings, and the names of its labels."""

    checkpoint: Checkpoint
    config: Config
    labels: list[str]


def find_classifier(run: str | Path) -> Classifier:
    """Return the classifier of a run or checkpoint; raise if it is a language model. Does not import torch."""
    checkpoint, config = settings_of(run)
    labels = checkpoint.labels()
    if labels is None:
        raise UserError(
            f"predict requires a run with model.task 'classifier' or 'both' (got {config.model.task!r})",
            str(checkpoint.folder),
            fix="use lilliput generate, or train a run with data.labelled true and model.task 'classifier' or 'both'",
            code="model.task",
            setting="model.task",
        )
    return Classifier(checkpoint, config, labels)


def read_documents(path: str | Path, data: DataSettings, labels: Sequence[str]) -> list[Document]:
    """Return the documents of a file, read like the run's own data.

    If each has a label that the run knows, as its training documents have, the label is not part of the text. Otherwise the
    file is read without labels.
    """
    settings = replace(data, labelled=True, documents=None)
    try:
        found = _read(path, settings)
    except UserError as error:
        if error.code != "data.label" and error.setting not in OF_LABELS:
            raise
        found = []
    if not found or not {document.label for document in found} <= {*labels}:
        separator = "line" if settings.separator == "auto" else settings.separator  # as with labels
        found = _read(path, replace(settings, labelled=False, separator=separator))
    return found


def _read(path: str | Path, settings: DataSettings) -> list[Document]:
    reading = open_source(str(path), ("predicted",), settings)["predicted"]
    return list(map(LINE_ENDS[settings.line_ends], reading.read(ignore)))


def predict(
    run: str | Path | Classifier,
    texts: str | Sequence[str],
    device: str = "auto",
    batch: int = 32,
) -> dict[str, Any]:
    """Return the labels of texts, the JSON of `lilliput predict`: `predict("runs/said", "a text")["predictions"]`.

    As in an evaluation, only the first `model.context` tokens of a text are read.
    """
    checkpoint, config, labels = run if isinstance(run, Classifier) else find_classifier(run)
    texts = [text.strip() for text in ([texts] if isinstance(texts, str) else texts)]
    for number, text in enumerate(texts, start=1):
        if not text:
            what = f"text {number} of {len(texts)} is empty"
            raise UserError(what, fix="give a text with at least one word", code="data.empty", setting="texts")
    from lilliput.decoding.writer import load
    from lilliput.evaluation.label_metrics import score_labels

    writer, context = load(checkpoint.folder, device), config.model.context
    file = token_file(writer.tokenizer, texts)
    scores = score_labels(writer.model, file, context, writer.tokenizer.start, batch) if texts else np.zeros((0, 1))
    lengths = np.diff(file.offsets) - 1
    # In the window of a multi-task model there is also the start token.
    room = context - (writer.model.causal and writer.tokenizer.ends)
    predictions = [
        {
            "text": text,
            "label": labels[int(row.argmax())],
            "probability": float(row.max()),
            "probabilities": dict(zip(labels, row.tolist(), strict=True)),
            "tokens": int(length),
            "truncated": bool(length > room),
        }
        for text, row, length in zip(texts, np.exp(scores), lengths, strict=True)
    ]
    return {
        "run": run_name(checkpoint),
        "checkpoint": checkpoint.name,
        "task": config.model.task,
        "labels": labels,
        "context": context,
        "predictions": predictions,
    }


def token_file(tokenizer: Tokenizer, texts: list[str]) -> TokenFile:
    """Encode texts in the layout of a split; their labels are placeholders."""
    end = np.array([tokenizer.end])
    if not texts:
        return TokenFile(end, np.ones(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32), tokenizer.ends)
    found = encode(tokenizer, texts)
    return TokenFile(
        np.concatenate([end, np.frombuffer(found.tokens, token_type(tokenizer.vocab_size))]),
        np.cumsum([1, *(np.frombuffer(found.lengths, OFFSETS) + 1)]),
        np.frombuffer(found.sizes, BYTES),
        np.zeros(len(texts), np.int32),
        tokenizer.ends,
    )
