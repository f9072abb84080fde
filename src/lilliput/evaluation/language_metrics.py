"""Metrics of a language model, computed from the nats of each token.

Owns: the metrics of all documents, and by document, label, set, position and token frequency; with and without
duplicates of training documents; the closed share of the gap to the floor. Does not own: the nats
(`decoding.token_scores`, `unknown_words`), the arithmetic of one metric (`likelihood`) or of intervals (`intervals`).

N predictions.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.batches import LanguageBatch, OverlappingRows
from lilliput.data.packed_windows import Integers
from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.storybook import floor_bits_per_byte
from lilliput.decoding.token_scores import Scored, score_tokens
from lilliput.evaluation.baselines import language_baselines
from lilliput.evaluation.intervals import Interval, ratio_interval
from lilliput.evaluation.likelihood import Likelihood, likelihood_of, measure_likelihood, to_perplexity
from lilliput.evaluation.unknown_words import LOST_LINE_ENDS, list_lost, spell_unknown
from lilliput.storage.atomic_files import write_whole

if TYPE_CHECKING:
    from lilliput.evaluation.evaluate import Evaluation

LEAST_DOCUMENTS = 10  # with fewer, blocks of text are resampled instead of documents
BITS = math.log(2)

Floats = NDArray[np.float64]
Columns = dict[str, Sequence[Any]]  # one row per document


@dataclass(frozen=True)
class Sums:
    """Sums over units of text: documents or blocks. All (units,)."""

    nats: Floats
    spelled: Floats  # nats plus the spelling cost of unknown words
    predictions: Floats
    tokens: Floats  # predictions except the ends of documents
    unknown: Floats
    bytes: Floats

    def only(self, which: NDArray[np.bool_]) -> Sums:
        return Sums(*(getattr(self, field.name)[which] for field in fields(self)))

    def figures(self) -> dict[str, Any]:
        found = Likelihood(float(self.nats.sum()), int(self.predictions.sum()), float(self.bytes.sum()))
        return {
            "loss": found.loss,
            "perplexity": found.perplexity,
            "bits_per_byte": found.bits_per_byte,
            "bits_per_byte_spelled": float(self.spelled.sum()) / BITS / found.bytes,
            "unknown_rate": float(self.unknown.sum() / max(1.0, self.tokens.sum())),
            "tokens": found.tokens,
        }

    def intervals(self) -> dict[str, list[float]] | None:
        """Return the 95% confidence interval of each metric; None for fewer than two units."""
        if len(self.nats) < 2:
            return None
        loss = ratio_interval(self.nats, self.predictions)
        perplexity = Interval(*map(to_perplexity, loss))
        plain, spelled = (ratio_interval(nats / BITS, self.bytes) for nats in (self.nats, self.spelled))
        reported = {"loss": loss, "perplexity": perplexity, "bits_per_byte": plain, "bits_per_byte_spelled": spelled}
        return {name: list(interval) for name, interval in reported.items()}


@dataclass(frozen=True)
class PredictionScores:
    """All predictions of a token file and their costs. All (N,)."""

    file: TokenFile
    scored: Scored
    spelled: Floats
    is_end: NDArray[np.bool_]
    is_unknown: NDArray[np.bool_]

    def with_nats(self, nats: Floats) -> PredictionScores:
        """Return the same predictions with the nats of another model, without spelling costs."""
        return replace(self, scored=replace(self.scored, nats=nats), spelled=nats)

    def by_document(self) -> Sums:
        return self.add_up(self.scored.document, self.file.documents, self.file.document_bytes.astype(np.float64))

    def by_block(self, size: int) -> Sums:
        """Sum over blocks of `size` predictions; the bytes of a document are spread evenly over its predictions."""
        document, place = self.scored.document, self.scored.place
        begins = np.flatnonzero(place % size == 0)
        block = np.searchsorted(begins, np.arange(len(place)), side="right") - 1
        share = self.file.document_bytes / np.maximum(1, np.bincount(document, minlength=self.file.documents))
        return self.add_up(block, len(begins), np.bincount(block, share[document], len(begins)).astype(np.float64))

    def add_up(self, unit: NDArray[np.int64], units: int, sizes: Floats) -> Sums:
        def total(part: NDArray[Any]) -> Floats:
            return np.bincount(unit, part, units).astype(np.float64)

        return Sums(
            nats=total(self.scored.nats),
            spelled=total(self.spelled),
            predictions=total(np.ones(len(unit))),
            tokens=total(~self.is_end),
            unknown=total(self.is_unknown),
            bytes=sizes,
        )

    def units(self, context: int) -> tuple[Sums, str]:
        """Return the units that are resampled for intervals, and their description."""
        if self.file.documents >= LEAST_DOCUMENTS:
            return self.by_document(), "documents"
        return self.by_block(context), f"blocks of {context:,} tokens"


def score_predictions(evaluation: Evaluation, stride: int | None, batch: int) -> PredictionScores:
    """Score each prediction. The spelling cost of a document is spread evenly over its unknown tokens."""
    file, writer = evaluation.file, evaluation.writer
    tokenizer, context = writer.tokenizer, writer.config.model.context
    scored = score_tokens(writer.model, file, tokenizer.start, context, stride, batch, evaluation.report)
    last = np.diff(file.offsets)[scored.document] - 1
    is_end = (scored.place == last) & file.ends
    is_unknown = (scored.ids == (-1 if tokenizer.unknown is None else tokenizer.unknown)) & ~is_end
    counts = np.bincount(scored.document, is_unknown, file.documents).astype(np.int64)
    spelled = scored.nats
    if counts.any():
        each = spell_unknown(tokenizer, evaluation.texts, counts) / np.maximum(1, counts)
        spelled = scored.nats + is_unknown * each[scored.document]
    return PredictionScores(file, scored, spelled, is_end, is_unknown)


def evaluate_language(
    evaluation: Evaluation, scores: PredictionScores, stride: int | None
) -> tuple[dict[str, Any], Columns]:
    """Return the metrics of a language model, and those of each document as columns."""
    writer, context = evaluation.writer, evaluation.writer.config.model.context
    documents, (units, over) = scores.by_document(), scores.units(context)
    found = documents.figures()
    words = max(1, evaluation.documents.words)
    line_ends = [LOST_LINE_ENDS] if evaluation.documents.line_ends else []
    found |= {
        "word_perplexity": to_perplexity(float(documents.nats.sum()) / words),
        "word_perplexity_spelled": to_perplexity(float(documents.spelled.sum()) / words),
        "words": evaluation.documents.words,
        "lossy": writer.tokenizer.lossy or bool(line_ends),
        "lost": line_ends + list_lost(writer.tokenizer, writer.config.tokenizer, found["unknown_rate"] > 0),
        "context": context,
        "stride": context if stride is None else stride,
        "interval": units.intervals(),
        "interval_over": over,
        **floor_figures(evaluation, found["bits_per_byte"]),
        "leaked": leaked_figures(evaluation.leaked, documents),
        "by": {
            "position": by_position(scores.scored, context),
            "frequency": by_frequency(evaluation.train, scores),
            "set": by_group(documents, evaluation.documents.sets, evaluation.documents.part),
            "label": by_group(documents, evaluation.labels or [], evaluation.file.labels),
        },
    }
    return found, document_columns(evaluation, documents)


def measure_overlapping(evaluation: Evaluation, batch: int) -> dict[str, Any]:
    """Measure a window at every offset, so that each token is scored up to `context` times; over all sets, and each.

    In a long text all windows have the same length, so the result equals the mean of batch losses for any batch size.
    Some published reports use this metric.
    """
    writer, file, documents = evaluation.writer, evaluation.file, evaluation.documents
    rows = OverlappingRows(file, writer.config.model.context, writer.tokenizer.start)

    def reported(chosen: Integers) -> Iterator[LanguageBatch]:
        done = int(chosen[0])
        for found in rows.cut(rows.by_length(chosen), batch):
            yield found
            done += len(found.rows)
            evaluation.report("measuring overlapping windows", done * file.bytes // len(rows), file.bytes)

    parts = []
    for number, name in enumerate(documents.sets):
        within = np.flatnonzero(documents.part == number)
        chosen = np.arange(rows.windows.firsts[within[0]], rows.windows.after[within[-1]])
        parts.append((name, len(chosen), measure_likelihood(writer.model, reported(chosen), 1.0)))
    whole = likelihood_of([sum(one.nats for *_, one in parts), sum(one.tokens for *_, one in parts)], 1.0)
    each = [
        {"name": name, "loss": one.loss, "perplexity": one.perplexity, "windows": size} for name, size, one in parts
    ]
    return {"loss": whole.loss, "perplexity": whole.perplexity, "windows": len(rows), "sets": each}


def floor_figures(evaluation: Evaluation, bits_per_byte: float) -> dict[str, Any]:
    """Return the floor of the storybook, and the closed share of the gap between a unigram model and the floor.

    The unigram model is Kneser-Ney of order 1 on the training split.
    """
    if not evaluation.documents.storybook:
        return {"floor": None, "gap": None}
    floor, gap = floor_bits_per_byte(evaluation.texts), None
    if evaluation.train is not None:
        start_token, vocab_size = evaluation.writer.tokenizer.start, evaluation.writer.config.model.vocab_size
        assert vocab_size is not None
        (unigram,) = language_baselines(evaluation.train, evaluation.file, start_token, vocab_size, orders=(1,))
        start = unigram.figures["bits_per_byte"]
        assert start is not None
        gap = {"start": start, "floor": floor, "closed": (start - bits_per_byte) / (start - floor)}
    return {"floor": floor, "gap": gap}


def leaked_figures(leaked: NDArray[np.bool_] | None, documents: Sums) -> dict[str, Any] | None:
    """Return the number of documents that are also in training, and the metrics without them (None if no tokens
    remain).

    None if the training data is unknown.
    """
    if leaked is None:
        return None
    rest = documents.only(~leaked)
    without = None
    if leaked.any() and rest.predictions.any():
        without = rest.figures() | {"documents": int((~leaked).sum()), "interval": rest.intervals()}
    return {"documents": int(leaked.sum()), "without": without}


# Groups ---------------------------------------------------------------------------------------------------------------


def by_position(scored: Scored, context: int) -> list[dict[str, Any]]:
    """Group by the number of tokens before each prediction: 1, 2, 3 to 4, 5 to 8, and so on."""
    highs = [*(1 << power for power in range((context - 1).bit_length())), context]
    rows = []
    for low, high in zip([1, *(before + 1 for before in highs)], highs, strict=False):
        rows.append({"from": low, "to": high} | part_figures(scored.nats[(scored.seen >= low) & (scored.seen <= high)]))
    return [row for row in rows if row["tokens"]]


def by_frequency(train: TokenFile | None, scores: PredictionScores) -> list[dict[str, Any]]:
    """Group by the count of each token in the training split, in powers of ten; the unknown token is a separate row."""
    if train is None:
        return []
    ids, nats = scores.scored.ids, scores.scored.nats
    known = ~scores.is_unknown
    times = np.bincount(train.tokens, minlength=int(ids.max(initial=0)) + 1)[ids]
    powers = range(len(str(int(times.max(initial=0)))))
    borders = [(0, 0), *((10**power, 10 ** (power + 1) - 1) for power in powers)]
    rows = [
        {"from": low, "to": high} | part_figures(nats[known & (times >= low) & (times <= high)])
        for low, high in borders
    ]
    rows.append({"from": None, "to": None} | part_figures(nats[scores.is_unknown]))
    return [row for row in rows if row["tokens"]]


def part_figures(nats: Floats) -> dict[str, Any]:
    loss = float(nats.mean()) if len(nats) else 0.0
    return {"tokens": len(nats), "loss": loss, "perplexity": to_perplexity(loss)}


def by_group(documents: Sums, names: Sequence[str], groups: NDArray[Any] | None) -> list[dict[str, Any]]:
    """Group documents by set or label; an empty list if there is only one group."""
    if groups is None or len(names) < 2:
        return []
    rows = []
    for number, name in enumerate(names):
        part = documents.only(groups == number)
        if part.predictions.any():
            rows.append({"name": name, "documents": len(part.nats), **part.figures(), "interval": part.intervals()})
    return rows


# One row per document -------------------------------------------------------------------------------------------------


def document_columns(evaluation: Evaluation, documents: Sums) -> Columns:
    losses = documents.nats / np.maximum(1.0, documents.predictions)
    return {
        **common_columns(evaluation),
        "tokens": documents.predictions.astype(np.int64).tolist(),
        "bytes": documents.bytes.astype(np.int64).tolist(),
        "unknown": documents.unknown.astype(np.int64).tolist(),
        "nats": documents.nats.tolist(),
        "nats_spelled": documents.spelled.tolist(),
        "loss": losses.tolist(),
        "perplexity": [to_perplexity(loss) for loss in losses],
        "bits_per_byte": (documents.nats / BITS / np.maximum(1.0, documents.bytes)).tolist(),
    }


def common_columns(evaluation: Evaluation) -> Columns:
    """Return the columns that identify a document; `document` counts from 0 within each set."""
    found, file = evaluation.documents, evaluation.file
    numbers = np.arange(file.documents) - np.searchsorted(found.part, found.part)  # numbers restart in each set
    columns: Columns = {"set": [found.sets[part] for part in found.part], "document": numbers.tolist()}
    if evaluation.labels and file.labels is not None:
        columns["label"] = [evaluation.labels[number] for number in file.labels]
    if evaluation.leaked is not None:
        columns["leaked"] = evaluation.leaked.astype(int).tolist()
    return columns


def write_rows(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write CSV (RFC 4180, UTF-8, with header); numbers in full precision."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(columns)
    table.writerows(zip(*columns.values(), strict=True))
    write_whole(path, text.getvalue().encode())
