"""Sums by document and by block, and the figures of parts: nothing is lost, nothing counted twice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from helpers.labelled_corpora import token_file
from lilliput.data.packed_windows import predictions_of
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.language_metrics import PredictionScores, by_frequency, by_group, by_position, leaked_figures
from lilliput.evaluation.token_scores import Scored

LENGTHS = [3, 24, 25, 1, 50]


def priced(file: TokenFile, seed: int = 0) -> PredictionScores:
    sizes = predictions_of(file.offsets, file.ends)
    document = np.repeat(np.arange(file.documents), sizes)
    place = np.arange(len(document)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids = np.asarray(file.tokens)[file.offsets[document] + place].astype(np.int64)
    generator = np.random.default_rng(seed)
    nats = generator.gamma(2.0, size=len(ids))
    unknown, end = ids == 3, (place == np.diff(file.offsets)[document] - 1) & file.ends
    return PredictionScores(file, Scored(nats, ids, document, place, place % 24 + 1), nats + unknown, end, unknown)


def test_documents_add_up_by_hand() -> None:
    file = token_file(LENGTHS)
    found = priced(file)
    sums, at = found.by_document(), 0
    for number, length in enumerate(LENGTHS):
        here = slice(at, at + length + 1)
        assert sums.nats[number] == pytest.approx(found.scored.nats[here].sum(), rel=1e-13)
        assert (sums.predictions[number], sums.tokens[number], sums.bytes[number]) == (length + 1, length, length)
        assert sums.unknown[number] == (found.scored.ids[here] == 3).sum()
        at += length + 1
    told = sums.figures()
    assert told["tokens"] == file.predictions == at
    assert told["loss"] == pytest.approx(found.scored.nats.mean(), rel=1e-13)
    assert told["bits_per_byte"] == pytest.approx(found.scored.nats.sum() / math.log(2) / sum(LENGTHS), rel=1e-13)
    assert told["unknown_rate"] == (found.scored.ids == 3).sum() / sum(LENGTHS)


@pytest.mark.parametrize("ends", [True, False])
def test_blocks_cover_every_document_by_itself(ends: bool) -> None:
    file = token_file(LENGTHS, ends=ends)
    found = priced(file)
    blocks, documents = found.by_block(10), found.by_document()
    assert blocks.predictions.tolist() == [
        min(10, size - first) for size in predictions_of(file.offsets, ends).tolist() for first in range(0, size, 10)
    ]
    for name in ("nats", "spelled", "predictions", "tokens", "unknown", "bytes"):
        assert getattr(blocks, name).sum() == pytest.approx(getattr(documents, name).sum(), rel=1e-12), name


def test_few_documents_are_drawn_in_blocks() -> None:
    few, many = priced(token_file(LENGTHS)), priced(token_file(LENGTHS * 2))
    assert few.units(24)[1] == "blocks of 24 tokens" and many.units(24)[1] == "documents"
    assert len(many.units(24)[0].nats) == 10
    assert priced(token_file([5])).by_document().intervals() is None, "one unit says nothing of others"


def test_another_model_on_the_same_predictions() -> None:
    found = priced(token_file(LENGTHS))
    other = found.with_nats(np.ones(len(found.scored.nats)))
    assert other.by_document().figures()["loss"] == 1.0
    assert other.by_document().predictions.tolist() == found.by_document().predictions.tolist()


@pytest.mark.parametrize(("context", "borders"), [(24, [1, 2, 4, 8, 16, 24]), (16, [1, 2, 4, 8, 16]), (1, [1])])
def test_positions_fall_into_one_part_each(context: int, borders: list[int]) -> None:
    scored = priced(token_file([100])).scored
    scored = Scored(scored.nats, scored.ids, scored.document, scored.place, scored.place % context + 1)
    rows = by_position(scored, context)
    assert [row["to"] for row in rows] == borders
    assert [row["from"] for row in rows] == [1, *(border + 1 for border in borders[:-1])]
    assert sum(row["tokens"] for row in rows) == 101


def test_frequencies_by_hand() -> None:
    train = token_file([200], seed=4)
    found = priced(token_file(LENGTHS))
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


def test_groups_and_leaks() -> None:
    file = token_file(LENGTHS)
    sums = priced(file).by_document()
    rows = by_group(sums, ["a", "b", "c", "nobody"], file.labels)
    assert [row["name"] for row in rows] == ["a", "b", "c"] and [row["documents"] for row in rows] == [2, 2, 1]
    assert rows[2]["loss"] == pytest.approx(sums.nats[2] / sums.predictions[2], rel=1e-13)
    assert rows[2]["interval"] is None
    assert by_group(sums, ["one"], np.zeros(5, int)) == [] == by_group(sums, [], None)
    told = leaked_figures(np.array([True, False, False, False, True]), sums)
    assert told is not None and told["without"]["tokens"] == 25 + 26 + 2
    assert leaked_figures(np.ones(5, bool), sums) == {"documents": 5, "without": None}


def test_what_has_no_tokens_has_no_figures() -> None:
    """A document of marks alone, to a tokenizer that strips them and does not tell ends."""
    sums = priced(token_file([3, 0, 5], ends=False)).by_document()
    assert [row["name"] for row in by_group(sums, ["a", "b", "c"], np.arange(3))] == ["a", "c"]
    assert leaked_figures(np.array([True, False, True]), sums) == {"documents": 2, "without": None}
