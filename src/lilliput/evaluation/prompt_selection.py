"""Selection of prompts from documents, and teacher-forced scores of the tokens after them.

Owns: the ways to choose prompts (`PROMPT_CHOICES`), the tokens at the chosen places, and the model's nats and most
likely token at each token after a prompt. Does not own: their use (`overlap`, `generated_stories`), or likelihood over
whole files (`decoding.token_scores`).

B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.overlap_settings import PromptChoice
from lilliput.model.transformer import Transformer, evaluating

LOGITS = 1 << 24  # logits held at once: 64 MB for any vocabulary
Integers = NDArray[np.int64]


class PromptPlace(NamedTuple):
    """Where a prompt begins: the number of its document, and the index of its first token there."""

    document: int
    start: int


def spread_places(room: Integers, count: int, seed: int) -> Sequence[PromptPlace]:
    """Return the beginnings of evenly spread documents; the seed has no effect."""
    fit = np.flatnonzero(room)
    return [PromptPlace(document, 0) for document in fit[np.arange(count) * len(fit) // max(count, 1)].tolist()]


def random_places(room: Integers, count: int, seed: int) -> Sequence[PromptPlace]:
    """Return the beginnings of random documents, in random order."""
    drawn = np.random.default_rng(seed).choice(np.flatnonzero(room), count, replace=False)
    return [PromptPlace(document, 0) for document in drawn.tolist()]


def middle_places(room: Integers, count: int, seed: int) -> Sequence[PromptPlace]:
    """Return random places, each equally likely: a long document has more of them than a short one."""
    ends = room.cumsum()  # number of places in all documents up to each
    drawn = np.random.default_rng(seed).choice(int(ends[-1]), count, replace=False)
    documents = np.searchsorted(ends, drawn, side="right")
    starts = drawn - (ends - room)[documents]
    return [PromptPlace(*place) for place in zip(documents.tolist(), starts.tolist(), strict=True)]


class PromptChoiceEntry(NamedTuple):
    """`choose` receives the number of possible places in each document, the number to choose, and the seed.

    `where` has a place for the number of tokens. `drawn`: the places depend on the seed. `anywhere`: a prompt may begin in
    the middle of a document.
    """

    choose: Callable[[Integers, int, int], Sequence[PromptPlace]]
    where: str
    drawn: bool = True
    anywhere: bool = False


PROMPT_CHOICES: dict[PromptChoice, PromptChoiceEntry] = {
    "spread": PromptChoiceEntry(spread_places, "the first {} tokens of documents at equal intervals", drawn=False),
    "random": PromptChoiceEntry(random_places, "the first {} tokens of random documents"),
    "middle": PromptChoiceEntry(middle_places, "{} tokens at random positions of documents", anywhere=True),
}


def choose_places(
    file: TokenFile,
    choice: PromptChoice,
    count: int,
    tokens: int,
    seed: int,
    without: NDArray[np.bool_] | None = None,
) -> Sequence[PromptPlace]:
    """Return `count` different places that `tokens` tokens of the same document follow, or all of them if there are fewer.

    The result depends on the arguments only. `without` (documents,) are excluded.
    """
    entry = PROMPT_CHOICES[choice]
    room = np.maximum(np.diff(file.offsets) - tokens, 0)  # the last token of a document is its end
    if without is not None:
        room[without] = 0
    if not entry.anywhere:
        room = np.minimum(room, 1)
    count = min(count, int(room.sum()))
    return entry.choose(room, count, seed) if count else []


def describe_prompts(choice: PromptChoice, tokens: int, seed: int) -> str:
    """Return the choice of the prompts in words."""
    entry = PROMPT_CHOICES[choice]
    return f"{entry.where.format(tokens)} (--prompt-choice {choice}{f', seed {seed}' if entry.drawn else ''})"


def choose_documents(file: TokenFile, count: int, tokens: int) -> Integers:
    """Return the indices of `count` documents, evenly spread over those with at least `tokens` tokens, or of all such.

    Every strategy, seed and run gets the same documents.
    """
    return np.array([place.document for place in choose_places(file, "spread", count, tokens, 0)], np.int64)


def first_tokens(file: TokenFile, document: int, tokens: int | None, start: int = 0) -> list[int]:
    """Return the first `tokens` ids (None: all) of a document from `start` on, without its end; fewer if it is shorter."""
    first, end = int(file.offsets[document]) + start, int(file.offsets[document + 1]) - 1
    found: list[int] = file.tokens[first : end if tokens is None else min(first + tokens, end)].tolist()
    return found


class TokenScores(NamedTuple):
    """(T,) for each token: its nats, and the model's most likely token at its position."""

    nats: NDArray[np.float64]
    likeliest: Integers


@torch.inference_mode()
def score_continuations(
    model: Transformer, start: int, prompt_tokens: int, texts: Sequence[Sequence[int]]
) -> list[TokenScores]:
    """Score the tokens after a prompt with teacher forcing: each token given the prompt and all true tokens before it.

    Each text begins with `prompt_tokens` tokens of prompt, which are not scored. A text longer than the context is read
    as in generation: the model sees the last half-context again and continues (`decoding.engines`). So the result equals
    the log-probabilities that generation returns for the same tokens.
    """
    ids, begin = [[start, *text] for text in texts], 1 + prompt_tokens  # `begin`: index of the first scored token
    sizes = [len(own) - begin for own in ids]
    found = [TokenScores(np.empty(size), np.empty(size, np.int64)) for size in sizes]
    context, vocab_size, longest = model.settings.context, model.settings.vocab_size, max(map(len, ids))
    assert vocab_size is not None
    rows = max(1, LOGITS // (min(context, longest) * vocab_size))
    with evaluating(model):
        for first, at, after in reading_windows(begin, longest, context):
            longer = [number for number, own in enumerate(ids) if len(own) > at]
            for group in (longer[row : row + rows] for row in range(0, len(longer), rows)):
                # Texts that end earlier are padded on the right, where no scored token sees the padding.
                padded = np.zeros((len(group), after - first), np.int64)
                for row, number in enumerate(group):
                    own = ids[number][first:after]
                    padded[row, : len(own)] = own
                table = torch.from_numpy(padded).to(model.device)
                logits, right = model(table[:, :-1])[:, at - first - 1 :], table[:, at - first :]  # (B, T, V), (B, T)
                nats = torch.nn.functional.cross_entropy(logits.mT.double(), right, reduction="none").cpu().numpy()
                likeliest = logits.argmax(dim=-1).cpu().numpy()
                for row, number in enumerate(group):
                    part = slice(at - begin, min(after - begin, sizes[number]))
                    found[number].nats[part] = nats[row, : part.stop - part.start]
                    found[number].likeliest[part] = likeliest[row, : part.stop - part.start]
    return found


def reading_windows(begin: int, longest: int, context: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each window: the index of the first token that is read, of the first one scored, and after the last one."""
    first, at = 0, begin
    while at < longest:
        if at - first > context:
            first = at - max(1, context // 2)
        after = min(first + context + 1, longest)
        yield first, at, after
        at = after
