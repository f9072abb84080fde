"""Each head in seven numbers, over one text or many.

Owns: the arithmetic of the scores that `head_score_definitions` defines, their sums over texts, sorting, and
the CSV; the scores over documents of a token file. Does not own: running the model (`attention_capture`) or how a
table looks (`cli`, `attention_page`). Needs no torch except for `summarise_documents`.

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
    """The scores of one head; None where no token could tell. `head` None: one that looks at all it may see alike."""

    layer: int
    head: int | None
    scores: dict[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "head": self.head, **self.scores}


class Tally:
    """Sums of scores over texts, so that every token counts alike, and not every text."""

    def __init__(self) -> None:
        self.texts = self.tokens = 0
        self.sums: dict[tuple[int, int | None], Numbers] = {}  # (layer, head) -> (S,)
        self.counts: dict[int, Numbers] = {}  # layer -> (S,)

    def add(self, attention: AttentionMaps) -> Tally:
        """All layers and heads of one more text; layers of one sight share what depends on the tokens only."""
        real = np.ones(len(attention.tokens), np.bool_) if attention.padding is None else ~attention.padding
        self.texts += 1
        self.tokens += int(real.sum())
        known: dict[bytes, tuple[Aim, Numbers]] = {}
        for place, layer in enumerate(attention.layer_numbers):
            mask = attention.mask(place)
            key = mask.tobytes()
            if key not in known:
                aim = aim_of(attention, mask)
                known[key] = aim, score_sums(spread(mask), aim)[0]
            aim, even = known[key]
            self.counts[layer] = self.counts.get(layer, 0.0) + aim.counts
            self.sums[layer, None] = self.sums.get((layer, None), 0.0) + even
            sums = score_sums(attention.weights[place], aim)
            for head, own in zip(attention.head_numbers(place), sums, strict=True):
                self.sums[layer, head] = self.sums.get((layer, head), 0.0) + own
        return self

    def heads(self) -> list[HeadSummary]:
        return [self.summary(layer, head) for layer, head in self.sums if head is not None]

    def even(self) -> list[HeadSummary]:
        """For each layer, what the scores would be if a head looked at all it may see alike: what to compare with."""
        return [self.summary(layer, head) for layer, head in self.sums if head is None]

    def summary(self, layer: int, head: int | None) -> HeadSummary:
        pairs = zip(SCORES, self.sums[layer, head], self.counts[layer], strict=True)
        return HeadSummary(layer, head, {name: float(total / count) if count else None for name, total, count in pairs})


def summarise(attention: AttentionMaps) -> list[HeadSummary]:
    """Of every head, by layer."""
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
    """Sum the scores over documents drawn by the seed (all, if there are no more), each cut to the context."""
    from lilliput.interpret.attention_capture import HeadChoice, capture_ids

    tally, choice = Tally(), HeadChoice(layers, heads)
    chosen = np.sort(np.random.default_rng(seed).permutation(file.documents)[:documents])
    context = writer.config.model.context
    first = [] if writer.config.model.task == "classifier" else [writer.tokenizer.start]
    for done, document in enumerate(chosen, start=1):
        # Without the end token, which a model predicts and never reads.
        ids = [*first, *file.tokens[file.offsets[document] : file.offsets[document + 1] - 1].tolist()][:context]
        if len(ids) >= 2:
            tally.add(capture_ids(writer, ids, choice))
        report("looking at documents", done, len(chosen))
    if not tally.texts:
        raise UserError(
            "no document has two tokens, and attention needs two",
            fix="use a split with longer documents",
            code="attention.text",
        )
    return tally


@dataclass(frozen=True)
class Aim:
    """What does not depend on the weights. `values` (T x T, S - 1): what a weight is multiplied by for each score but the
    entropy, 0 for tokens that do not count; `choosing` (T,) those that count for the entropy; `counts` (S,) how many do."""

    values: Numbers
    choosing: Mask
    counts: Numbers


def aim_of(attention: AttentionMaps, mask: Mask) -> Aim:
    count = len(attention.tokens)
    at, kinds = np.arange(count), attention.kinds
    first = 0 if attention.padding is None else int(np.argmin(attention.padding))
    other = at[:, None] != at[None, :]
    same = (kinds[:, None] == kinds[None, :]) & other
    after_same = np.zeros((count, count), np.bool_)
    after_same[:, 1:] = same[:, :-1]
    marks = np.array([is_punctuation(token) for token in attention.tokens], np.bool_)
    wanted = {
        "previous": at[:, None] - 1 == at[None, :],
        "first": (at[None, :] == first) & other,
        "punctuation": np.broadcast_to(marks[None, :], (count, count)),
        "same": same,
        "induction": after_same & other,
    }
    choosing: Mask = mask.sum(axis=1) >= 2
    values, counts = [np.abs(at[:, None] - at[None, :]) * choosing[:, None]], [choosing.sum(), choosing.sum()]
    for target in wanted.values():
        counted = choosing & (target & mask).any(axis=1)
        values.append(target & counted[:, None])
        counts.append(counted.sum())
    assert ["entropy", "distance", *wanted] == list(SCORES)
    return Aim(
        np.stack(values, axis=-1).reshape(count * count, -1).astype(np.float64), choosing, np.array(counts, float)
    )


def score_sums(weights: Weights | Numbers, aim: Aim) -> Numbers:
    """(H, S), each summed over the tokens that count for it."""
    exact = weights.astype(np.float64)  # (H, T, T)
    counted = exact[:, aim.choosing]
    logs = np.log2(counted, out=np.zeros_like(counted), where=counted > 0)
    entropy = -np.einsum("htk,htk->h", counted, logs)
    others = exact.reshape(len(exact), -1) @ aim.values  # (H, S - 1)
    return np.concatenate((entropy[:, None], others), axis=1)


def spread(mask: Mask) -> Numbers:
    """(1, T, T): the weights of a head that looks at all it may see alike."""
    even: Numbers = mask / np.maximum(1, mask.sum(axis=1, keepdims=True))
    return even[None]


def is_punctuation(token: str) -> bool:
    text = token.strip()
    return bool(text) and all(unicodedata.category(one).startswith("P") for one in text)


def sort_heads(heads: Iterable[HeadSummary], by: str) -> list[HeadSummary]:
    """By a score, the most telling first (of entropy and distance the smallest), those without it last; or by `layer`."""
    if by == "layer":
        return sorted(heads, key=lambda one: (one.layer, one.head))
    sign = 1.0 if SCORES[by].smallest_first else -1.0

    def order(one: HeadSummary) -> tuple[bool, float]:
        score = one.scores[by]
        return score is None, 0.0 if score is None else sign * score

    return sorted(heads, key=order)


def merge_even(even: Iterable[HeadSummary]) -> list[tuple[list[int] | None, HeadSummary]]:
    """Layers whose even heads have the same scores, because they see the same, as one; None in place of all layers."""
    alike: dict[tuple[float | None, ...], list[HeadSummary]] = {}
    for one in even:
        alike.setdefault(tuple(one.scores.values()), []).append(one)
    return [([one.layer for one in group] if len(alike) > 1 else None, group[0]) for group in alike.values()]


def csv_of(heads: Sequence[HeadSummary], even: Sequence[HeadSummary]) -> str:
    """One line a head, then for each layer the line of an even head (`even` in place of a number); empty: no score."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["layer", "head", *SCORES])
    for one in [*heads, *even]:
        writer.writerow([one.layer, "even" if one.head is None else one.head, *one.scores.values()])
    return text.getvalue()
