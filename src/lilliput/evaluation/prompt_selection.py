"""Which documents of a token file are taken as examples, and how they begin.

Owns: the choice (evenly spread, the same every time), the first tokens of a document, and what a model would
have said at each of them. Does not own: what is done with them (`overlap`, `generated_stories`), or
likelihood over whole files (`token_scores`).

B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import TokenFile
from lilliput.model.transformer import Transformer, evaluating

LOGITS = 1 << 24  # numbers that are held at once: 64 MB, whatever the vocabulary


def choose_documents(
    file: TokenFile, count: int, tokens: int, without: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """The numbers of `count` documents, evenly spread over those that have so many tokens, or of all those if they are fewer.

    No chance is in it: every strategy, seed and run is given the same ones. `without` are documents that are not to be
    taken: those that also stand in training.
    """
    long_enough = np.diff(file.offsets) - 1 >= tokens  # the last of a document is its end
    fit = np.flatnonzero(long_enough if without is None else long_enough & ~without)
    count = min(count, len(fit))
    return fit[np.arange(count) * len(fit) // max(count, 1)]


def first_tokens(file: TokenFile, document: int, tokens: int) -> list[int]:
    """Of a document; fewer where it has no more. Its end is not one of them."""
    first, after = file.offsets[document : document + 2]
    found: list[int] = file.tokens[first : min(first + tokens, after - 1)].tolist()
    return found


class Followed(NamedTuple):
    """Of each token of some texts, (B, T): its nats, and the token that the model found likeliest in its place."""

    nats: NDArray[np.float64]
    likeliest: NDArray[np.int64]


@torch.inference_mode()
def follow(model: Transformer, start: int, texts: list[list[int]]) -> Followed:
    """The texts, of one length, are given token by token: each is told from all true tokens before it. Those beyond the context
    are told as in training, from a window that begins anew."""
    targets = np.array(texts, np.int64)  # (B, T)
    inputs = np.insert(targets[:, :-1], 0, start, axis=1)
    nats, likeliest = np.empty(targets.shape), np.empty_like(targets)
    context, vocab_size = model.settings.context, model.settings.vocab_size
    assert vocab_size is not None
    rows = max(1, LOGITS // (min(context, targets.shape[1]) * vocab_size))
    with evaluating(model):
        for row in range(0, len(targets), rows):
            for at in range(0, targets.shape[1], context):
                part = (slice(row, row + rows), slice(at, at + context))
                logits = model(torch.from_numpy(inputs[part]).to(model.device))  # (B, T, V)
                right = torch.from_numpy(targets[part]).to(model.device)
                nats[part] = (
                    torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), right.flatten(), reduction="none")
                    .reshape(right.shape)
                    .cpu()
                )
                likeliest[part] = logits.argmax(dim=-1).cpu()
    return Followed(nats, likeliest)
