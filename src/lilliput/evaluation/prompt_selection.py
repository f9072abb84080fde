"""Selection of documents as prompts, their first tokens, and teacher-forced scores of these tokens.

Owns: the deterministic, evenly spread choice of documents, their first tokens, and the model's nats and most likely
token at each of them. Does not own: their use (`overlap`, `generated_stories`), or likelihood over whole files
(`token_scores`).

B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import TokenFile
from lilliput.model.transformer import Transformer, evaluating

LOGITS = 1 << 24  # logits held at once: 64 MB for any vocabulary


def choose_documents(
    file: TokenFile, count: int, tokens: int, without: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the indices of `count` documents, evenly spread over those with at least `tokens` tokens, or of all such.

    The choice is deterministic: every strategy, seed and run gets the same documents. `without` (documents,) are
    excluded.
    """
    long_enough = np.diff(file.offsets) - 1 >= tokens  # the last token of a document is its end
    fit = np.flatnonzero(long_enough if without is None else long_enough & ~without)
    count = min(count, len(fit))
    return fit[np.arange(count) * len(fit) // max(count, 1)]


def first_tokens(file: TokenFile, document: int, tokens: int) -> list[int]:
    """Return the first `tokens` ids of a document, without its end; fewer if it is shorter."""
    first, after = file.offsets[document : document + 2]
    found: list[int] = file.tokens[first : min(first + tokens, after - 1)].tolist()
    return found


class PromptScores(NamedTuple):
    """(B, T) for each token: its nats, and the model's most likely token at its position."""

    nats: NDArray[np.float64]
    likeliest: NDArray[np.int64]


@torch.inference_mode()
def score_prompts(model: Transformer, start: int, texts: list[list[int]]) -> PromptScores:
    """Score texts of equal length with teacher forcing: each token given all true tokens before it.

    Tokens beyond the context start a new window, as in training.
    """
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
    return PromptScores(nats, likeliest)
