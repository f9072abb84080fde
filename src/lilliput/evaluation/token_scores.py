"""What each token of a text costs a model, in nats: what every figure of likelihood is a sum of.

Owns: the windows in which a text is read when each prediction is asked for once, and the nats of each. Does
not own: what is made of them (`language_metrics`), the choice of the text (`evaluation_sets`), or the loss
while training (`likelihood`, which keeps only the sum).

A window begins every `stride` predictions of a document and holds `context` of them; a prediction counts in
the first window that has it, which is the one that gives it the longest context. With a stride of the whole
context these are the aligned windows of training, and the figure is the run's own. A shorter stride costs
context / stride times as much and is a fairer figure: fewer tokens are asked for with little before them.

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
    """Every prediction of a token file once, in the order of the file."""

    nats: NDArray[np.float64]  # (N,)
    ids: NDArray[np.int64]  # (N,) the predicted token
    document: NDArray[np.int64]  # (N,) its number
    place: NDArray[np.int64]  # (N,) of the prediction in its document, from 0
    seen: NDArray[np.int64]  # (N,) tokens that it was predicted from, the start of the document among them


class Windows(NamedTuple):
    """Where each starts in the tokens (its first input), its predictions, and how many of those an earlier one has counted."""

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
    """One window a row, so that rows of like length need no mask."""

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
    """The nats of each prediction of the file; `start` is a document's first input. `stride` None is the whole context."""
    rows = StridedRows(file, context, start, context if stride is None else stride)
    windows, sizes = rows.windows, predictions_of(rows.offsets, file.ends)
    firsts = np.cumsum(sizes) - sizes  # the number of each document's first prediction
    document = np.repeat(np.arange(file.documents), sizes)
    place = np.arange(len(document)) - np.repeat(firsts, sizes)
    owner = np.searchsorted(rows.offsets, windows.starts + 1, side="right") - 1  # document of each window
    number = firsts[owner] + windows.starts + 1 - rows.offsets[owner]  # of each window's first prediction
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


def window_nats(model: Transformer, batch: LanguageBatch, wanted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of the wanted targets (B, T) of windows, one a row, in reading order."""
    ids = torch.from_numpy(batch.ids).to(model.device)
    x = model.trunk(ids, model.begin(ids, None, None))[torch.from_numpy(wanted).to(model.device)]  # (n, C)
    targets = torch.from_numpy(batch.targets[wanted]).to(model.device)
    assert isinstance(model.head, LanguageHead)
    return token_nats(model.head, x, targets).double().cpu().numpy()


def token_nats(head: LanguageHead, x: Tensor, targets: Tensor) -> Tensor:
    """(n,) of states (n, C), over chunks so that the logits of all never exist. In the weights' own precision: what is summed
    over tokens is summed in 64 bits by whoever does."""
    chunk = max(1, CHUNK_NUMBERS // head.project.out_features)
    parts = []
    for start in range(0, len(x), chunk):
        logits = head.bound(head.project(x[start : start + chunk]))  # (n, V)
        right = logits.gather(1, targets[start : start + chunk, None]).squeeze(1)
        parts.append(logits.logsumexp(dim=-1) - right)
    return torch.cat(parts)
