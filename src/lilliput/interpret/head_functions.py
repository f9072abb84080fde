"""Functions of heads, measured on annotated text: between which words a head attends.

Owns: the scores of `FUNCTIONS` with two baselines and intervals, and the named pattern of a head. Does not own: annotations
(`data.corpora.conllu`), examples of relations (`word_alignment`), token scores (`head_scores`), or tables (`cli`, `reports`).

Baselines, for the same relations: the *even* head, with equal weights on all visible tokens; and the *position* head, whose
weights depend on the distance alone: the mean weight of this very head at each distance, normalised for each query.

D documents, H heads of all layers, T tokens, F functions.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lilliput.data.corpora.conllu import AnnotatedDocument
from lilliput.data.progress import Report, silent
from lilliput.decoding.writer import Writer
from lilliput.errors import UserError
from lilliput.evaluation.intervals import LEVEL, Interval, central_interval, resampled_ratios
from lilliput.interpret.attention_capture import HeadChoice, capture_ids
from lilliput.interpret.attention_maps import AttentionMaps, Mask
from lilliput.interpret.head_names import Head
from lilliput.interpret.head_score_definitions import FUNCTIONS, SCORES
from lilliput.interpret.head_scores import score_sums, score_targets, uniform_weights
from lilliput.interpret.word_alignment import AlignedText, align

Numbers = NDArray[np.float64]
NAMES = list(FUNCTIONS)
TOKEN_SCORES = [name for name in SCORES if name in FUNCTIONS]
NONE = "none"


@dataclass(frozen=True)
class FunctionScore:
    """The score of a head for one function, None if nothing counts; `position` is None if the function is positional."""

    score: float
    even: float
    position: float | None
    excess: Interval | None  # 95%, of the score minus the larger baseline, over documents; None for fewer than two
    significant: bool  # above both baselines, at 95% over all functions together
    count: int

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"excess": None if self.excess is None else list(self.excess)}


@dataclass(frozen=True)
class HeadFunctions:
    head: Head
    scores: dict[str, FunctionScore | None]

    @property
    def pattern(self) -> str:
        """The function with the highest score of those that are significantly above the baselines, or none."""
        found = {name: one.score for name, one in self.scores.items() if one is not None and one.significant}
        return max(found, key=found.__getitem__, default=NONE)

    def as_dict(self) -> dict[str, Any]:
        scores = {name: None if one is None else one.as_dict() for name, one in self.scores.items()}
        return {"layer": self.head.layer, "head": self.head.head, "pattern": self.pattern, "scores": scores}


def measure_functions(
    writer: Writer,
    documents: Sequence[AnnotatedDocument],
    limit: int = 100,
    seed: int = 0,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    report: Report = silent,
) -> list[HeadFunctions]:
    """Return the functions of every head over at most `limit` documents, drawn with the seed.

    A document longer than the context is cut between sentences; a sentence longer than the context is truncated.
    """
    chosen = np.sort(np.random.default_rng(seed).permutation(len(documents))[:limit])
    texts = [text for number, at in enumerate(chosen) for text in align(writer, documents[at], number)]
    texts = [text for text in texts if len(text.ids) >= 2]
    if not texts:
        what = "head functions require annotated texts of at least two tokens (got none)"
        raise UserError(what, fix="use a file with longer sentences", code="attention.text", setting="conllu")
    choice = HeadChoice(layers, heads)

    def captured(phase: str) -> Iterator[tuple[AlignedText, AttentionMaps]]:
        for done, text in enumerate(texts, start=1):
            yield text, capture_ids(writer, text.ids, choice)
            report(phase, done, len(texts))

    distances = DistanceMeans()
    for _, attention in captured("measuring distances"):
        distances.add(attention)
    sums = FunctionSums(len(chosen), distances)
    for text, attention in captured("measuring functions"):
        sums.add(text, attention, cosines(writer, text.ids))
    return sums.result(seed)


# Sums -----------------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def cosines(writer: Writer, ids: Sequence[int]) -> Numbers:
    """Return (T, T): the cosine of the embeddings of each two tokens."""
    vectors = writer.model.embedding(torch.tensor(ids, device=writer.model.device)).double()
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    found: Numbers = (unit @ unit.T).cpu().numpy()
    return found


class DistanceMeans:
    """The mean weight of each head at each distance from query to key, over all visible pairs."""

    def __init__(self) -> None:
        self.sums: dict[Head, dict[int, float]] = {}
        self.counts: dict[int, dict[int, int]] = {}

    def add(self, attention: AttentionMaps) -> None:
        tokens = len(attention.tokens)
        for place, layer in enumerate(attention.layer_numbers):
            mask, counts = attention.mask(place), self.counts.setdefault(layer, {})
            for distance in range(1 - tokens, tokens):
                seen = np.diagonal(mask, -distance)
                if not seen.any():
                    continue
                counts[distance] = counts.get(distance, 0) + int(seen.sum())
                on = np.diagonal(attention.weights[place], -distance, axis1=1, axis2=2).sum(axis=1, dtype=np.float64)
                for head, total in zip(attention.head_numbers(place), on, strict=True):
                    sums = self.sums.setdefault(Head(layer, head), {})
                    sums[distance] = sums.get(distance, 0.0) + float(total)

    def weights(self, head: Head, mask: Mask) -> Numbers:
        """Return (T, T): the weights of the position head."""
        tokens = len(mask)
        table = np.zeros(2 * tokens - 1)
        for distance, total in self.sums[head].items():
            if abs(distance) < tokens:
                table[distance + tokens - 1] = total / self.counts[head.layer][distance]
        at = np.arange(tokens)
        found = table[at[:, None] - at[None, :] + tokens - 1] * mask
        sums = found.sum(axis=1, keepdims=True)
        normed: Numbers = np.divide(found, sums, out=np.zeros_like(found), where=sums > 0)
        return normed


class FunctionSums:
    """Sums over the examples of each document: of the head, the even head, the position head, and their number."""

    def __init__(self, documents: int, distances: DistanceMeans) -> None:
        self.documents, self.distances = documents, distances
        self.sums: dict[Head, Numbers] = {}  # (4, D, F)

    def add(self, text: AlignedText, attention: AttentionMaps, cosine: Numbers) -> None:
        known: dict[bytes, tuple[Callable[[Numbers], Numbers], Numbers, Numbers]] = {}
        for place, layer in enumerate(attention.layer_numbers):
            mask = attention.mask(place)
            if mask.tobytes() not in known:
                score, counts = scorer(text, attention, mask, cosine)
                known[mask.tobytes()] = score, counts, score(uniform_weights(mask))[0]
            score, counts, even = known[mask.tobytes()]
            weights = attention.weights[place].astype(np.float64)
            heads = [Head(layer, head) for head in attention.head_numbers(place)]
            by_position = np.stack([self.distances.weights(head, mask) for head in heads])
            for head, own, other in zip(heads, score(weights), score(by_position), strict=True):
                sums = self.sums.setdefault(head, np.zeros((4, self.documents, len(NAMES))))
                sums[:, text.document] += np.stack((own, even, other, counts))

    def result(self, seed: int) -> list[HeadFunctions]:
        heads = sorted(self.sums)
        own, even, position, counts = np.stack([self.sums[head] for head in heads], axis=2)  # (D, H, F) each
        draws = (
            [resampled_ratios(own - other, counts, seed) for other in (even, position)] if self.documents > 1 else []
        )
        found = []
        for place, head in enumerate(heads):
            scores: dict[str, FunctionScore | None] = {}
            for number, name in enumerate(NAMES):
                total = counts[:, place, number].sum()
                means = [
                    float(part[:, place, number].sum() / total) if total else 0.0 for part in (own, even, position)
                ]
                excess = [one[:, place, number] for one in draws]
                scores[name] = function_score(name, means, excess, int(total)) if total else None
            found.append(HeadFunctions(head, scores))
        return found


def function_score(name: str, means: Sequence[float], draws: Sequence[Numbers], count: int) -> FunctionScore:
    """`means` of head, even head and position head; `draws` of the excess of the head over the other two."""
    score, even, position = means
    baselines = [even] if FUNCTIONS[name].positional else [even, position]
    excess = [one[np.isfinite(one)] for one in draws[: len(baselines)]]
    level = (1 - LEVEL) / 2 / len(FUNCTIONS)  # Bonferroni: a head has as many chances as there are functions
    significant = bool(excess) and all(len(one) and np.quantile(one, level) > 0 for one in excess)
    larger = int(np.argmax(baselines))
    interval = central_interval(excess[larger]) if excess and len(excess[larger]) else None
    shown = None if FUNCTIONS[name].positional else position
    return FunctionScore(score, even, shown, interval, bool(significant), count)


def scorer(
    text: AlignedText, attention: AttentionMaps, mask: Mask, cosine: Numbers
) -> tuple[Callable[[Numbers], Numbers], Numbers]:
    """Return a function from weights (H, T, T) to sums of scores (H, F), and the number of examples (F,)."""
    targets = score_targets(attention, mask)
    skipped = len(SCORES) - len(TOKEN_SCORES)  # entropy and distance
    queries, keys, columns, counts = [], [], [], []
    for column, name in enumerate(one for one in NAMES if one in text.examples and one != "similarity"):
        seen = [(q, ks) for q, ks in text.examples[name] if mask[q, ks.start : ks.stop].all()]
        counts.append(len(seen))
        for query, some in seen:
            queries += [query] * len(some)
            keys += list(some)
            columns += [column] * len(some)
    belongs = np.zeros((len(columns), len(counts)))
    belongs[np.arange(len(columns)), columns] = 1.0
    pairs = similar_pairs(attention, mask)

    def score(weights: Numbers) -> Numbers:
        tokens = score_sums(weights, targets)[:, skipped:]
        relations = weights[:, queries, keys] @ belongs
        return np.concatenate((tokens, relations, correlations(weights, cosine, pairs)[:, None]), axis=1)

    rows = np.array([float(varies(cosine, pairs).sum())])
    return score, np.concatenate((targets.counts[skipped:], np.array(counts, float), rows))


def similar_pairs(attention: AttentionMaps, mask: Mask) -> Mask:
    """Return (T, T): the pairs that count for similarity: visible tokens of another kind, without the first token."""
    kinds = attention.kinds
    pairs: Mask = mask & (kinds[:, None] != kinds[None, :])
    pairs[:, 0] = False
    return pairs


def varies(values: Numbers, pairs: Mask) -> Mask:
    """Return (..., T): whether the selected values of a row are at least three and not all equal."""
    count = pairs.sum(axis=-1)
    low = np.where(pairs, values, np.inf).min(axis=-1)
    high = np.where(pairs, values, -np.inf).max(axis=-1)
    found: Mask = (count >= 3) & (high - low > 1e-12 * np.maximum(1e-300, np.abs(high)))
    return found


def correlations(weights: Numbers, cosine: Numbers, pairs: Mask) -> Numbers:
    """Return (H,): the sum over queries of the correlation of weights and cosines; 0 for equal weights."""
    count = np.maximum(1, pairs.sum(axis=-1))[:, None]
    centred = (cosine - (cosine * pairs).sum(axis=-1, keepdims=True) / count) * pairs
    own = (weights - (weights * pairs).sum(axis=-1, keepdims=True) / count) * pairs
    scale = np.sqrt((own**2).sum(axis=-1) * (centred**2).sum(axis=-1))
    valid = varies(weights, pairs) & varies(cosine, pairs)
    found = np.divide((own * centred).sum(axis=-1), scale, out=np.zeros_like(scale), where=valid & (scale > 0))
    sums: Numbers = found.sum(axis=-1)
    return sums


def csv_of_functions(found: Sequence[HeadFunctions]) -> str:
    """Return one line per head and function; empty: no example, no interval, or no such baseline."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["score", "even", "position", "excess_low", "excess_high", "significant", "count"]
    writer.writerow(["layer", "head", "pattern", "function", *names])
    for one in found:
        for name, score in one.scores.items():
            values: list[Any] = [""] * len(names)
            if score is not None:
                low, high = ("", "") if score.excess is None else score.excess
                values = [score.score, score.even, score.position, low, high, score.significant, score.count]
            writer.writerow([one.head.layer, one.head.head, one.pattern, name, *values])
    return text.getvalue()
