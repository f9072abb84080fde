"""Sums by document and by block, and metrics of groups: nothing is lost or counted twice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.labelled_corpora import token_file
from lilliput.data.packed_windows import predictions_of
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.token_scores import Scored
from lilliput.evaluation.language_metrics import PredictionScores, by_frequency, by_group, by_position, leaked_figures

LENGTHS = [3, 24, 25, 1, 50]


def make_scores(file: TokenFile, seed: int = 0) -> PredictionScores:
    sizes = predictions_of(file.offsets, file.ends)
    document = np.repeat(np.arange(file.documents), sizes)
    place = np.arange(len(document)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids = np.asarray(file.tokens)[file.offsets[document] + place].astype(np.int64)
    generator = np.random.default_rng(seed)
    nats = generator.gamma(2.0, size=len(ids))
    unknown, end = ids == 3, (place == np.diff(file.offsets)[document] - 1) & file.ends
    return PredictionScores(file, Scored(nats, ids, document, place, place % 24 + 1), nats + unknown, end, unknown)


def test_sums_by_document() -> None:
    file = token_file(LENGTHS)
    found = make_scores(file)
    sums, at = found.by_document(), 0
    for number, length in enumerate(LENGTHS):
        here = slice(at, at + length + 1)
        assert sums.nats[number] == pytest.approx(found.scored.nats[here].sum(), rel=1e-13)
        assert (sums.predictions[number], sums.tokens[number], sums.bytes[number]) == (length + 1, length, length)
        assert sums.unknown[number] == (found.scored.ids[here] == 3).sum()
        at += length + 1
    result = sums.figures()
    assert result["tokens"] == file.predictions == at
    assert result["loss"] == pytest.approx(found.scored.nats.mean(), rel=1e-13)
    assert result["bits_per_byte"] == pytest.approx(found.scored.nats.sum() / math.log(2) / sum(LENGTHS), rel=1e-13)
    assert result["unknown_rate"] == (found.scored.ids == 3).sum() / sum(LENGTHS)


@pytest.mark.parametrize("ends", [True, False])
def test_blocks_cover_every_document_separately(ends: bool) -> None:
    file = token_file(LENGTHS, ends=ends)
    found = make_scores(file)
    blocks, documents = found.by_block(10), found.by_document()
    assert blocks.predictions.tolist() == [
        min(10, size - first) for size in predictions_of(file.offsets, ends).tolist() for first in range(0, size, 10)
    ]
    for name in ("nats", "spelled", "predictions", "tokens", "unknown", "bytes"):
        assert getattr(blocks, name).sum() == pytest.approx(getattr(documents, name).sum(), rel=1e-12), name


def test_few_documents_are_resampled_in_blocks() -> None:
    few, many = make_scores(token_file(LENGTHS)), make_scores(token_file(LENGTHS * 2))
    assert few.units(24)[1] == "blocks of 24 tokens" and many.units(24)[1] == "documents"
    assert len(many.units(24)[0].nats) == 10
    assert make_scores(token_file([5])).by_document().intervals() is None, "one unit has no interval"


def test_nats_of_another_model() -> None:
    found = make_scores(token_file(LENGTHS))
    other = found.with_nats(np.ones(len(found.scored.nats)))
    assert other.by_document().figures()["loss"] == 1.0
    assert other.by_document().predictions.tolist() == found.by_document().predictions.tolist()


@pytest.mark.parametrize(("context", "borders"), [(24, [1, 2, 4, 8, 16, 24]), (16, [1, 2, 4, 8, 16]), (1, [1])])
def test_positions_are_in_exactly_one_group(context: int, borders: list[int]) -> None:
    scored = make_scores(token_file([100])).scored
    scored = Scored(scored.nats, scored.ids, scored.document, scored.place, scored.place % context + 1)
    rows = by_position(scored, context)
    assert [row["to"] for row in rows] == borders
    assert [row["from"] for row in rows] == [1, *(border + 1 for border in borders[:-1])]
    assert sum(row["tokens"] for row in rows) == 101


def test_frequencies() -> None:
    train = token_file([200], seed=4)
    found = make_scores(token_file(LENGTHS))
    counts = {token: int((train.tokens == token).sum()) for token in range(17)}
    rows = by_frequency(train, found)
    for row in rows[:-1]:
        inside = [
            nats
            for token, nats in zip(found.scored.ids.tolist(), found.scored.nats.tolist(), strict=True)
            if token != 3 and row["from"] <= counts[token] <= row["to"]
        ]
        assert row["tokens"] == len(inside) and row["loss"] == pytest.approx(np.mean(inside), rel=1e-12)
    assert rows[-1]["tokens"] == found.is_unknown.sum()
    assert sum(row["tokens"] for row in rows) == len(found.scored.ids)
    assert by_frequency(None, found) == []


def test_groups_and_duplicates() -> None:
    file = token_file(LENGTHS)
    sums = make_scores(file).by_document()
    rows = by_group(sums, ["a", "b", "c", "none"], file.labels)
    assert [row["name"] for row in rows] == ["a", "b", "c"] and [row["documents"] for row in rows] == [2, 2, 1]
    assert rows[2]["loss"] == pytest.approx(sums.nats[2] / sums.predictions[2], rel=1e-13)
    assert rows[2]["interval"] is None
    assert by_group(sums, ["one"], np.zeros(5, int)) == [] == by_group(sums, [], None)
    result = leaked_figures(np.array([True, False, False, False, True]), sums)
    assert result is not None and result["without"]["tokens"] == 25 + 26 + 2
    assert leaked_figures(np.ones(5, bool), sums) == {"documents": 5, "without": None}


def test_documents_without_tokens_have_no_metrics() -> None:
    """A document of punctuation only, for a tokenizer that strips it and has no end token."""
    sums = make_scores(token_file([3, 0, 5], ends=False)).by_document()
    assert [row["name"] for row in by_group(sums, ["a", "b", "c"], np.arange(3))] == ["a", "c"]
    assert leaked_figures(np.array([True, False, True]), sums) == {"documents": 2, "without": None}
