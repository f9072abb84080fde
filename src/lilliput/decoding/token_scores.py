"""Nats of each token of a text, from which all likelihood metrics are computed.

Owns: the windows in which a text is read so that each prediction is scored once, and the nats of each. Does not own:
the metrics (`language_metrics`), the choice of the text (`evaluation_sets`), or the loss during training (`likelihood`,
which keeps only the sum).

A window of `context` predictions starts every `stride` predictions of a document. A prediction is scored in the first
window that contains it, which gives it the longest context. A stride equal to the context gives the aligned windows of
training, and the run's own metric. A shorter stride costs context / stride times as much, and fewer tokens are
predicted from a short context.

N predictions, n of a chunk, B rows, T positions, C dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.data.batches import LanguageBatch, WindowRows
from lilliput.data.packed_windows import Integers, predictions_of
from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.progress import Report, silent
from lilliput.model.heads import LanguageHead
from lilliput.model.language_loss import CHUNK_NUMBERS
from lilliput.model.transformer import Transformer, evaluating


@dataclass(frozen=True)
class Scored:
    """Every prediction of a token file once, in file order."""

    nats: NDArray[np.float64]  # (N,)
    ids: NDArray[np.int64]  # (N,) the predicted token
    document: NDArray[np.int64]  # (N,) its index
    place: NDArray[np.int64]  # (N,) index in its document, from 0
    seen: NDArray[np.int64]  # (N,) number of input tokens before it, including the document's start


class Windows(NamedTuple):
    """Index of each window's first input, its number of predictions, and how many of them an earlier window scored."""

    starts: Integers
    lengths: Integers
    counted: Integers


def strided_windows(offsets: Integers, context: int, stride: int, ends: bool) -> Windows:
    assert 1 <= stride <= context
    sizes = predictions_of(offsets, ends)
    counts = np.where(sizes > 0, 1 + -(-np.maximum(sizes - context, 0) // stride), 0)  # windows of each document
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # within its document
    lengths = np.minimum(context, np.repeat(sizes, counts) - number * stride)
    starts = np.repeat(offsets[:-1] - 1, counts) + number * stride
    return Windows(starts, lengths, np.where(number > 0, context - stride, 0))


class StridedRows(WindowRows[LanguageBatch]):
    """One window per row, so that rows of similar length need no mask."""

    def __init__(self, file: TokenFile, context: int, start: int, stride: int) -> None:
        super().__init__(file, context, start)
        self.windows = strided_windows(self.offsets, context, stride, file.ends)

    def __len__(self) -> int:
        return len(self.windows.starts)

    def sizes(self, rows: Integers) -> Integers:
        return self.windows.lengths[rows]

    def batch(self, rows: Integers) -> LanguageBatch:
        return self.lay_out(rows, np.ones_like(rows), self.windows.starts[rows], self.windows.lengths[rows])


@torch.inference_mode()
def score_tokens(
    model: Transformer,
    file: TokenFile,
    start: int,
    context: int,
    stride: int | None = None,
    batch: int = 32,
    report: Report = silent,
) -> Scored:
    """Return the nats of each prediction of the file. `start` is the first input; `stride` None is the context."""
    rows = StridedRows(file, context, start, context if stride is None else stride)
    windows, sizes = rows.windows, predictions_of(rows.offsets, file.ends)
    firsts = np.cumsum(sizes) - sizes  # index of each document's first prediction
    document = np.repeat(np.arange(file.documents), sizes)
    place = np.arange(len(document)) - np.repeat(firsts, sizes)
    owner = np.searchsorted(rows.offsets, windows.starts + 1, side="right") - 1  # document of each window
    number = firsts[owner] + windows.starts + 1 - rows.offsets[owner]  # index of each window's first prediction
    nats, seen, done = np.full(len(document), np.nan), np.zeros(len(document), np.int64), 0
    with evaluating(model):
        for found in rows.in_order(batch):
            column = np.arange(found.ids.shape[1])
            begin, length, counted = number[found.rows], windows.lengths[found.rows], windows.counted[found.rows]
            new = (column >= counted[:, None]) & (column < length[:, None])  # (B, T)
            goes = (begin[:, None] + column)[new]
            nats[goes], seen[goes] = window_nats(model, found, new), np.broadcast_to(column + 1, new.shape)[new]
            done += len(goes)
            report("measuring", done * file.bytes // file.predictions, file.bytes)
    assert done == len(nats)
    return Scored(nats, rows.tokens[rows.offsets[document] + place].astype(np.int64), document, place, seen)


def window_nats(model: Transformer, batch: LanguageBatch, selected: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the nats of the selected targets (B, T) in reading order, for one window per row."""
    ids = torch.from_numpy(batch.ids).to(model.device)
    x = model.trunk(ids, model.begin(ids, None, None))[torch.from_numpy(selected).to(model.device)]  # (n, C)
    targets = torch.from_numpy(batch.targets[selected]).to(model.device)
    assert isinstance(model.head, LanguageHead)
    return token_nats(model.head, x, targets).double().cpu().numpy()


def token_nats(head: LanguageHead, x: Tensor, targets: Tensor) -> Tensor:
    """Return (n,) nats of states (n, C), in chunks, so that the logits of all states never exist at once.

    The result has the precision of the weights; callers sum it in float64.
    """
    chunk = max(1, CHUNK_NUMBERS // head.project.out_features)
    parts = []
    for start in range(0, len(x), chunk):
        logits = head.bound(head.project(x[start : start + chunk]))  # (n, V)
        right = logits.gather(1, targets[start : start + chunk, None]).squeeze(1)
        parts.append(logits.logsumexp(dim=-1) - right)
    return torch.cat(parts)
