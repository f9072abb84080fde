"""Seven scores per attention head, over one text or many.

Owns: the arithmetic of the scores that `head_score_definitions` defines, their sums over texts, sorting, the CSV, and the
scores over documents of a token file. Does not own: running the model (`attention_capture`) or the format of a table (`cli`,
`attention_page`). Needs no torch except for `summarise_documents`.

H heads, T tokens (queries, and keys), S scores.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.progress import Report, silent
from lilliput.errors import UserError
from lilliput.interpret.attention_maps import AttentionMaps, Mask, Weights
from lilliput.interpret.head_score_definitions import SCORES

if TYPE_CHECKING:
    from lilliput.data.prepare.token_files import TokenFile
    from lilliput.decoding.writer import Writer

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class HeadSummary:
    """The scores of one head; None where no token counts. `head` None: a head with equal weights on all visible tokens."""

    layer: int
    head: int | None
    scores: dict[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "head": self.head, **self.scores}


class Tally:
    """Sums of scores over texts, so that every token has the same weight, not every text."""

    def __init__(self) -> None:
        self.texts = self.tokens = 0
        self.sums: dict[tuple[int, int | None], Numbers] = {}  # (layer, head) -> (S,)
        self.counts: dict[int, Numbers] = {}  # layer -> (S,)

    def add(self, attention: AttentionMaps) -> Tally:
        """Add all layers and heads of a text; layers with the same mask share what does not depend on the weights."""
        real = np.ones(len(attention.tokens), np.bool_) if attention.padding is None else ~attention.padding
        self.texts += 1
        self.tokens += int(real.sum())
        known: dict[bytes, tuple[ScoreTargets, Numbers]] = {}
        for place, layer in enumerate(attention.layer_numbers):
            mask = attention.mask(place)
            key = mask.tobytes()
            if key not in known:
                targets = score_targets(attention, mask)
                known[key] = targets, score_sums(uniform_weights(mask), targets)[0]
            targets, even = known[key]
            self.counts[layer] = self.counts.get(layer, 0.0) + targets.counts
            self.sums[layer, None] = self.sums.get((layer, None), 0.0) + even
            sums = score_sums(attention.weights[place], targets)
            for head, own in zip(attention.head_numbers(place), sums, strict=True):
                self.sums[layer, head] = self.sums.get((layer, head), 0.0) + own
        return self

    def heads(self) -> list[HeadSummary]:
        return [self.summary(layer, head) for layer, head in self.sums if head is not None]

    def even(self) -> list[HeadSummary]:
        """Return for each layer the baseline: the scores of a head with equal weights on all visible tokens."""
        return [self.summary(layer, head) for layer, head in self.sums if head is None]

    def summary(self, layer: int, head: int | None) -> HeadSummary:
        pairs = zip(SCORES, self.sums[layer, head], self.counts[layer], strict=True)
        return HeadSummary(layer, head, {name: float(total / count) if count else None for name, total, count in pairs})


def summarise(attention: AttentionMaps) -> list[HeadSummary]:
    """Return the scores of every head, by layer."""
    return Tally().add(attention).heads()


def summarise_documents(
    writer: Writer,
    file: TokenFile,
    documents: int = 100,
    seed: int = 0,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    report: Report = silent,
) -> Tally:
    """Sum the scores over at most `documents` documents, drawn with the seed, each truncated to the context."""
    from lilliput.interpret.attention_capture import HeadChoice, capture_ids

    tally, choice = Tally(), HeadChoice(layers, heads)
    chosen = np.sort(np.random.default_rng(seed).permutation(file.documents)[:documents])
    context = writer.config.model.context
    first = [] if writer.config.model.task == "classifier" else [writer.tokenizer.start]
    for done, document in enumerate(chosen, start=1):
        # Without the end token, which a model predicts but does not read.
        ids = [*first, *file.tokens[file.offsets[document] : file.offsets[document + 1] - 1].tolist()][:context]
        if len(ids) >= 2:
            tally.add(capture_ids(writer, ids, choice))
        report("scoring documents", done, len(chosen))
    if not tally.texts:
        raise UserError(
            "attention requires documents of at least two tokens (got none)",
            fix="use a split with longer documents",
            code="attention.text",
        )
    return tally


@dataclass(frozen=True)
class ScoreTargets:
    """The part of the scores that does not depend on the weights.

    `values` (T x T, S - 1): the factor of each weight in each score except entropy, 0 for tokens that do not count;
    `choosing` (T,): the tokens that count for entropy; `counts` (S,): the number of tokens that count.
    """

    values: Numbers
    choosing: Mask
    counts: Numbers


def score_targets(attention: AttentionMaps, mask: Mask) -> ScoreTargets:
    count = len(attention.tokens)
    at, kinds = np.arange(count), attention.kinds
    first = 0 if attention.padding is None else int(np.argmin(attention.padding))
    other = at[:, None] != at[None, :]
    same = (kinds[:, None] == kinds[None, :]) & other
    after_same = np.zeros((count, count), np.bool_)
    after_same[:, 1:] = same[:, :-1]
    punctuation = np.array([is_punctuation(token) for token in attention.tokens], np.bool_)
    kinds_of_keys = {
        "previous": at[:, None] - 1 == at[None, :],
        "first": (at[None, :] == first) & other,
        "punctuation": np.broadcast_to(punctuation[None, :], (count, count)),
        "same": same,
        "induction": after_same & other,
    }
    choosing: Mask = mask.sum(axis=1) >= 2
    values, counts = [np.abs(at[:, None] - at[None, :]) * choosing[:, None]], [choosing.sum(), choosing.sum()]
    for target in kinds_of_keys.values():
        counted = choosing & (target & mask).any(axis=1)
        values.append(target & counted[:, None])
        counts.append(counted.sum())
    assert ["entropy", "distance", *kinds_of_keys] == list(SCORES)
    return ScoreTargets(
        np.stack(values, axis=-1).reshape(count * count, -1).astype(np.float64), choosing, np.array(counts, float)
    )


def score_sums(weights: Weights | Numbers, targets: ScoreTargets) -> Numbers:
    """Return (H, S): each score, summed over the tokens that count for it."""
    exact = weights.astype(np.float64)  # (H, T, T)
    counted = exact[:, targets.choosing]
    logs = np.log2(counted, out=np.zeros_like(counted), where=counted > 0)
    entropy = -np.einsum("htk,htk->h", counted, logs)
    others = exact.reshape(len(exact), -1) @ targets.values  # (H, S - 1)
    return np.concatenate((entropy[:, None], others), axis=1)


def uniform_weights(mask: Mask) -> Numbers:
    """Return (1, T, T): the weights of a head that attends equally to all visible tokens."""
    even: Numbers = mask / np.maximum(1, mask.sum(axis=1, keepdims=True))
    return even[None]


def is_punctuation(token: str) -> bool:
    text = token.strip()
    return bool(text) and all(unicodedata.category(one).startswith("P") for one in text)


def sort_heads(heads: Iterable[HeadSummary], by: str) -> list[HeadSummary]:
    """Sort by a score, largest first (entropy and distance: smallest first), heads without it last; or by `layer`."""
    if by == "layer":
        return sorted(heads, key=lambda one: (one.layer, one.head))
    sign = 1.0 if SCORES[by].smallest_first else -1.0

    def order(one: HeadSummary) -> tuple[bool, float]:
        score = one.scores[by]
        return score is None, 0.0 if score is None else sign * score

    return sorted(heads, key=order)


def merge_even(even: Iterable[HeadSummary]) -> list[tuple[list[int] | None, HeadSummary]]:
    """Group layers with equal baseline scores, because they have the same mask; the layers are None if all are equal."""
    groups: dict[tuple[float | None, ...], list[HeadSummary]] = {}
    for one in even:
        groups.setdefault(tuple(one.scores.values()), []).append(one)
    return [([one.layer for one in group] if len(groups) > 1 else None, group[0]) for group in groups.values()]


def csv_of(heads: Sequence[HeadSummary], even: Sequence[HeadSummary]) -> str:
    """Return one line per head, then one baseline per layer (`even` instead of a head number); empty: no score."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["layer", "head", *SCORES])
    for one in [*heads, *even]:
        writer.writerow([one.layer, "even" if one.head is None else one.head, *one.scores.values()])
    return text.getvalue()
