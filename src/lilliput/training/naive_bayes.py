"""Before the first step: a classifier, begun as naive Bayes, and the pairs of tokens that have vectors.

Owns: the counts of tokens and pairs by label, which pairs get a row, and the embedding and head that make of
these counts the net's first answer. Does not own: when that is done (`session`), which models it is for
(`settings.rules`), or the rows of pairs (`model.mixing`).

Of a sentence that was not in training, counting knows more than a small net learns; of what was, it forgets
some, which a net does not (docs/experiments.md). A net whose blocks begin as the identity is a mean of
vectors and a head, and if the vectors are logarithms of shares, that mean *is* naive Bayes (McCallum and
Nigam 1998, multinomial). It has only to learn what is wrong with it.

V vocabulary, K labels, C dim, U pairs of units in the head, n of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lilliput.data.batches import LabelledBatch, RowSource
from lilliput.data.packed_windows import Integers
from lilliput.errors import UserError
from lilliput.evaluation.classification import measure_classification
from lilliput.model.layers import ClassifierHead, LearnedEmbedding
from lilliput.model.mixing import PairEmbedding
from lilliput.model.transformer import Transformer

MOST_TOKENS = 1 << 23  # of the text: counted in seconds
ROWS = 1024  # of the text at once, and of those by which the beginning is judged

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Documents:
    """What there is to count: each token and each pair of neighbours, with the label of its document."""

    tokens: Integers
    token_labels: Integers
    pairs: Integers  # as numbers, first x V + second
    pair_labels: Integers
    labels: Integers  # of each document

    @property
    def length(self) -> float:
        """Tokens of a document, on average."""
        return len(self.tokens) / len(self.labels)


def read_documents(rows: RowSource[LabelledBatch], vocab_size: int, seed: int) -> Documents:
    """What a model sees of them; of a long text, those of a sample of its rows."""
    parts: list[tuple[Integers, ...]] = []
    for batch in rows.cut(rows.sample(max(1, MOST_TOKENS // rows.context), seed), ROWS):
        real = np.ones(batch.ids.shape, bool) if batch.pos is None else batch.pos >= 0  # (n, T)
        labels = np.broadcast_to(batch.labels[:, None], real.shape)
        numbers, both = batch.ids[:, :-1] * vocab_size + batch.ids[:, 1:], real[:, 1:]  # padding is on the right
        parts.append((batch.ids[real], labels[real], numbers[both], labels[:, 1:][both], batch.labels))
    return Documents(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def list_pairs(model: Transformer, rows: RowSource[LabelledBatch], seed: int) -> None:
    """Give the rows of the table of pairs to the most frequent ones; of equals, to those that come first as numbers."""
    pairs = model.pairs
    assert isinstance(pairs, PairEmbedding), "the settings have no pairs"
    found, counts = np.unique(read_documents(rows, pairs.vocab_size, seed).pairs, return_counts=True)
    chosen = np.sort(found[np.argsort(-counts, kind="stable")[: len(pairs.listed)]])
    pairs.listed.fill_(pairs.NONE)
    pairs.listed[: len(chosen)] = torch.from_numpy(chosen).to(pairs.listed)


def log_shares(things: Integers, labels: Integers, size: int, classes: int, smoothing: float) -> Floats:
    """(size, K): the logarithm of a thing's share among all things of a label, less its mean over labels, which changes no
    answer; 0 for a thing that was never seen, which tells nothing."""
    counts = np.bincount(things * classes + labels, minlength=size * classes).reshape(size, classes)
    seen = counts.any(axis=1)
    logs = np.log(counts[seen] + smoothing) - np.log(counts.sum(axis=0) + smoothing * seen.sum())
    found = np.zeros((size, classes))
    found[seen] = logs - logs.mean(axis=1, keepdims=True)
    return found


@torch.no_grad()
def begin_as_naive_bayes(
    model: Transformer, rows: RowSource[LabelledBatch], smoothing: float, balanced: bool, seed: int
) -> float:
    """Gives the accuracy on (a sample of) what was counted. `balanced`: all labels are as likely as any other before a document
    is read; else as likely as they are frequent.

    Naive Bayes adds up the logarithms of a document's tokens and the net takes their mean, so that the head multiplies by
    the mean length of a document: the logits are naive Bayes' own for a document of that length, less sure for a longer one.
    """
    embedding, head = model.embedding, model.head
    assert isinstance(embedding, LearnedEmbedding) and isinstance(head, ClassifierHead) and embedding.scale == 1.0
    (classes, hidden), (vocab_size, dim) = head.project.weight.shape, embedding.table.weight.shape
    if min(dim, hidden // 2) < classes:
        what = f"naive Bayes of {classes} labels needs model.dim {classes} and model.classifier_hidden {2 * classes} or more"
        raise UserError(what, "train.naive_bayes", "a wider model, or train.naive_bayes none")
    read = read_documents(rows, vocab_size, seed)
    generator = torch.Generator().manual_seed(seed)
    # In directions drawn at random and not in the first K numbers of C: dropout then takes a share of each label's vote.
    directions, units = draw_directions(dim, classes, generator), draw_directions(hidden // 2, classes, generator)
    put_along(embedding.table, directions, log_shares(read.tokens, read.token_labels, vocab_size, classes, smoothing))
    if isinstance(model.pairs, PairEmbedding):
        listed = model.pairs.listed.cpu().numpy()
        row = np.searchsorted(listed, read.pairs).clip(max=len(listed) - 1)
        known = listed[row] == read.pairs
        shares = log_shares(row[known], read.pair_labels[known], len(listed), classes, smoothing)
        put_along(model.pairs.table, directions, shares)
    frequent = np.log(np.bincount(read.labels, minlength=classes).clip(min=1) / len(read.labels))
    put_head(head, directions, units, read.length, torch.from_numpy(np.zeros(classes) if balanced else frequent))
    return measure_classification(model, rows.cut(rows.sample(ROWS, seed), ROWS)).accuracy


def draw_directions(dim: int, count: int, generator: torch.Generator) -> Tensor:
    """(dim, count): orthogonal to each other, of length one."""
    drawn: Tensor = nn.init.orthogonal_(torch.empty(dim, count, dtype=torch.float64), generator=generator)
    return drawn


def without(matrix: Tensor, directions: Tensor) -> Tensor:
    return matrix - (matrix @ directions) @ directions.T


def put_along(table: nn.Embedding, directions: Tensor, values: Floats) -> None:
    """Along the directions (C, K) a row has its values and nothing else; across them it stays as it was drawn, so that words
    differ for the blocks as they did before."""
    weight = table.weight
    weight.copy_(without(weight.double().cpu(), directions) + torch.from_numpy(values) @ directions.T)


def put_head(head: ClassifierHead, directions: Tensor, units: Tensor, scale: float, bias: Tensor) -> None:
    """Logits = scale x what stands along the directions + bias. relu(x) - relu(-x) is x: units come in pairs."""
    half, step = len(units), scale**0.5  # either layer has its half of the scale
    inner, project = head.inner.weight, head.project.weight
    across = without(without(inner[:half].double().cpu(), directions).T, units).T  # read by nobody yet
    first, second = step * units @ directions.T + across, step * units.T
    inner[: 2 * half] = torch.cat((first, -first)).to(inner)
    head.inner.bias.zero_()
    project.zero_()
    project[:, : 2 * half] = torch.cat((second, -second), dim=1).to(project)
    head.project.bias.copy_(bias)
