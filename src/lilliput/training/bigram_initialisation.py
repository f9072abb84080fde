"""Initialise the embedding and the head of a language model from bigram counts, before the first step.

Owns: counting bigrams (a token and the next one), and minimising their cross-entropy over the embedding and the
head alone. Does not own: when this is done (`model_setup`), which models support it (`settings.rules`).

In training, a model learns bigrams first, which takes dozens of batches. Bigram counts of the whole text give the
same at the cost of the head alone: one update costs as much as a batch of V tokens. A model whose blocks are
initialised as the identity is exactly such a bigram model, so training continues from there.

V vocabulary, P distinct bigrams, R distinct first tokens, n rows of a chunk, C dim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lilliput.data.batches import IGNORED, LanguageBatch, RowSource
from lilliput.model.heads import LanguageHead
from lilliput.model.language_loss import CHUNK_NUMBERS
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import ScheduleSettings
from lilliput.training.schedules import learning_rate

MOST_TOKENS = 1 << 23  # counted in a second, and enough for every frequent bigram
ROWS = 1024  # counted at once
# Peak learning rates of Adam. A norm follows the table, so its scale does not matter. The head reads C numbers of unit size:
# its rate is divided by sqrt(C).
TABLE_RATE, HEAD_RATE = 0.02, 0.16
SCHEDULE = ScheduleSettings(kind="linear", decay=0.6, warmup=0, final=0.0)


class Pairs(NamedTuple):
    """Bigrams, sorted by their first token; those of first[i] are borders[i] to borders[i + 1]."""

    first: Tensor  # (R,) tokens
    borders: list[int]  # (R + 1)
    row: Tensor  # (P,) index into `first`
    second: Tensor  # (P,) tokens
    counts: Tensor  # (P,)
    total: int


def count_pairs(rows: RowSource[LanguageBatch], vocab_size: int, seed: int, device: torch.device) -> Pairs:
    """Count each target with the token before it; in a long text, over a sample of its rows."""
    keys = [np.zeros(0, np.int64)]
    for batch in rows.cut(rows.sample(max(1, MOST_TOKENS // rows.context), seed), ROWS):
        real = batch.targets != IGNORED
        keys.append(batch.ids[real] * vocab_size + batch.targets[real])
    found, counts = np.unique(np.concatenate(keys), return_counts=True)
    before, after = np.divmod(found, vocab_size)
    first, row, each = np.unique(before, return_inverse=True, return_counts=True)
    tokens, number, second, often = (torch.from_numpy(part).to(device) for part in (first, row, after, counts))
    return Pairs(tokens, [0, *np.cumsum(each).tolist()], number, second, often, int(counts.sum()))


def learn_pairs(
    model: Transformer, rows: RowSource[LanguageBatch], updates: int, seed: int, device: torch.device
) -> float:
    """Train embedding and head on all bigrams; return the loss in nats per token before the last update.

    Only these two parts are moved to the device: a model that will be sharded may be too large for one.
    """
    home = model.device
    ends = nn.ModuleList([model.embedding, model.norm, model.head]).to(device)
    pairs = count_pairs(rows, model.head.project.out_features, seed, device)
    optimizer = torch.optim.Adam(groups(model), betas=(0.8, 0.95), eps=1e-10, fused=True)
    nats = 0.0
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(SCHEDULE, group["peak"], update + 1, update / updates)
        nats = descend(model, pairs)
        optimizer.step()
        ends.zero_grad(set_to_none=True)
    ends.to(home)
    return nats


def groups(model: Transformer) -> list[dict[str, Any]]:
    table = [parameter for parameter in model.embedding.parameters() if parameter.requires_grad]
    head = list(model.head.project.parameters())
    return [{"params": table, "peak": TABLE_RATE}, {"params": head, "peak": HEAD_RATE / model.settings.dim**0.5}]


def descend(model: Transformer, pairs: Pairs) -> float:
    """Add the gradients of the mean loss, and return it in nats. The logits of one chunk are in memory at a time."""
    assert isinstance(model.head, LanguageHead)
    states = model.norm(model.embedding(pairs.first))  # (R, C)
    leaf = states.detach().requires_grad_()
    chunk, nats = max(1, CHUNK_NUMBERS // model.head.project.out_features), 0.0
    for start in range(0, len(leaf), chunk):
        stop = min(start + chunk, len(leaf))
        here = slice(pairs.borders[start], pairs.borders[stop])
        row, counts = pairs.row[here] - start, pairs.counts[here].to(leaf.dtype)
        often = leaf.new_zeros(stop - start).index_add_(0, row, counts)  # (n,)
        logits = model.head.bound(model.head.project(leaf[start:stop]))  # (n, V)
        share = (often @ logits.logsumexp(dim=1) - counts @ logits[row, pairs.second[here]]) / pairs.total
        share.backward()
        nats += share.item()
    states.backward(leaf.grad)
    return nats
