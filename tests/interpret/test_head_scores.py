"""Scores of heads compared with plain loops over their definitions, and for heads with known scores."""

from __future__ import annotations

import csv
import io
import math
import string
from collections.abc import Callable

import numpy as np
import pytest

from helpers.attention_pages import draw_attention, small_writer
from helpers.labelled_corpora import token_file
from helpers.user_errors import refused
from lilliput.interpret import AttentionMaps, HeadSummary, summarise, summarise_documents
from lilliput.interpret.attention_capture import HeadChoice, capture_ids
from lilliput.interpret.head_score_definitions import SCORES
from lilliput.interpret.head_scores import Tally, csv_of, is_punctuation, sort_heads

TOKENS = ["Once", " a", ".", " fox", " a", " fox", "!", " a", ".", " fox", " a", " fox", ".", "?", "<pad>"]
LENGTHS = [5, 40, 1, 9, 31, 32]  # of documents


def by_loops(attention: AttentionMaps, place: int, head: int) -> dict[str, float | None]:
    """Compute the scores from their definitions, one query and one key at a time."""
    weights, mask, tokens = attention.weights[place][head], attention.mask(place), list(attention.tokens)
    scores: dict[str, list[float]] = {name: [] for name in SCORES}
    for t in range(len(tokens)):
        keys = [k for k in range(len(tokens)) if mask[t, k]]
        if len(keys) < 2:
            continue
        scores["entropy"].append(-sum(weights[t, k] * math.log2(weights[t, k]) for k in keys if weights[t, k] > 0))
        scores["distance"].append(sum(weights[t, k] * abs(t - k) for k in keys))
        wanted = {
            "previous": [k for k in keys if k == t - 1],
            "first": [k for k in keys if k == 0 and t != 0],
            "punctuation": [k for k in keys if all(letter in string.punctuation for letter in tokens[k].strip())],
            "same": [k for k in keys if k != t and tokens[k] == tokens[t]],
            "induction": [k for k in keys if k not in (t, t + 1) and k >= 1 and tokens[k - 1] == tokens[t]],
        }
        for name, targets in wanted.items():
            if targets:
                scores[name].append(sum(weights[t, k] for k in targets))
    return {name: sum(found) / len(found) if found else None for name, found in scores.items()}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2, 4])
def test_scores_equal_their_definitions(causal: bool, window: int | None) -> None:
    attention = draw_attention(TOKENS, causal=causal, window=window, padded=1, seed=3)
    found = summarise(attention)
    assert [(one.layer, one.head) for one in found] == [(layer, head) for layer in range(2) for head in range(3)]
    for one in found:
        assert one.head is not None
        expected = by_loops(attention, one.layer, one.head)
        assert one.scores == pytest.approx(expected, abs=1e-12)
        assert all(score is None for score in expected.values()) == (window == 1)


def test_scores_of_two_texts_weight_tokens_equally() -> None:
    """The score of two texts of different lengths is a mean over all tokens, not a mean of means."""
    long, short = draw_attention(TOKENS[:-1], seed=1), draw_attention(TOKENS[:4], seed=2)
    both = Tally().add(long).add(short)
    assert (both.texts, both.tokens) == (2, 18)
    score = both.heads()[0].scores["entropy"]
    parts = [by_loops(one, 0, 0)["entropy"] for one in (long, short)]
    assert score == pytest.approx((13 * parts[0] + 3 * parts[1]) / 16, abs=1e-12)


def test_baseline_equals_scores_of_uniform_weights() -> None:
    attention = draw_attention(TOKENS, window=5, padded=1)
    (first, second) = Tally().add(attention).even()
    mask = attention.mask(0)
    weights = mask / np.maximum(1, mask.sum(axis=1, keepdims=True))
    flat = AttentionMaps(TOKENS, [weights[None]], [mask], padding=attention.padding)
    assert first.head is None and first.scores == pytest.approx(by_loops(flat, 0, 0), abs=1e-12)
    assert (second.layer, second.scores) == (1, first.scores)


KNOWN: list[tuple[str, Callable[[int], int], dict[str, float]]] = [
    ("previous token", lambda t: max(0, t - 1), {"entropy": 0.0, "distance": 1.0, "previous": 1.0}),
    ("first token", lambda t: 0, {"entropy": 0.0, "distance": 3.0, "first": 1.0}),
    ("same token", lambda t: t - 3 if t > 2 else 0, {"same": 1.0, "induction": 0.0}),
    ("induction", lambda t: t - 2 if t > 2 else 0, {"same": 0.0, "induction": 1.0}),
]


@pytest.mark.parametrize(("name", "target", "scores"), KNOWN, ids=[name for name, _, _ in KNOWN])
def test_heads_with_one_target(name: str, target: Callable[[int], int], scores: dict[str, float]) -> None:
    tokens = list("abcabc")
    weights = np.zeros((1, len(tokens), len(tokens)))
    for t in range(len(tokens)):
        weights[0, t, target(t)] = 1.0
    (found,) = summarise(AttentionMaps(tokens, [weights], [np.tri(len(tokens), dtype=np.bool_)]))
    assert {name: found.scores[name] for name in scores} == scores
    assert found.scores["punctuation"] is None


@pytest.mark.parametrize("token", [".", " ,", "...", "”", "—", "¿?", "\n."])
def test_punctuation(token: str) -> None:
    assert is_punctuation(token)


@pytest.mark.parametrize("token", ["", " ", "\n", "a.", "$", "+", "5", "<|endoftext|>", "<0xE2>"])
def test_not_punctuation(token: str) -> None:
    assert not is_punctuation(token)


def test_tokens_of_equal_text_differ_by_id() -> None:
    weights = np.full((1, 3, 3), 1 / 3)
    assert summarise(AttentionMaps(["x", "x", "y"], [weights]))[0].scores["same"] == pytest.approx(1 / 3)
    assert summarise(AttentionMaps(["x", "x", "y"], [weights], ids=[1, 2, 3]))[0].scores["same"] is None


def test_sort_heads() -> None:
    heads = [
        HeadSummary(1, 0, {"entropy": 2.0, "induction": 0.5}),
        HeadSummary(0, 1, {"entropy": 1.0, "induction": None}),
        HeadSummary(0, 0, {"entropy": 3.0, "induction": 0.9}),
    ]
    order = {by: [(one.layer, one.head) for one in sort_heads(heads, by)] for by in ("entropy", "induction", "layer")}
    assert order == {
        "entropy": [(0, 1), (1, 0), (0, 0)],
        "induction": [(0, 0), (1, 0), (0, 1)],
        "layer": [(0, 0), (0, 1), (1, 0)],
    }


def test_csv_has_heads_and_baseline() -> None:
    tally = Tally().add(draw_attention(["a", "b", "a"], layers=1, heads=2))
    rows = list(csv.DictReader(io.StringIO(csv_of(tally.heads(), tally.even()))))
    assert [row["head"] for row in rows] == ["0", "1", "even"]
    assert float(rows[1]["entropy"]) == tally.heads()[1].scores["entropy"]
    assert rows[0]["punctuation"] == ""


# Over documents


@pytest.mark.parametrize("task", ["language", "classifier"])
def test_documents_are_truncated_to_the_context(task: str) -> None:
    writer = small_writer(task=task, classes=3 if task == "classifier" else None)
    file = token_file(LENGTHS)
    found = summarise_documents(writer, file)
    expected, first = Tally(), [] if task == "classifier" else [writer.tokenizer.start]
    for number in range(len(LENGTHS)):
        ids = [*first, *file.tokens[file.offsets[number] : file.offsets[number + 1] - 1].tolist()][:32]
        if len(ids) > 1:
            expected.add(capture_ids(writer, ids, HeadChoice()))
    assert (found.texts, found.tokens) == (expected.texts, expected.tokens)
    assert found.tokens == (5 + 32 + 9 + 31 + 32 if task == "classifier" else 6 + 32 + 2 + 10 + 32 + 32)
    for one, other in zip(found.heads(), expected.heads(), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-12)


def test_selected_documents_depend_only_on_the_seed() -> None:
    writer, file = small_writer(), token_file(list(range(3, 30)))
    reports: list[tuple[str, int, int | None]] = []
    one = summarise_documents(
        writer, file, 5, seed=1, report=lambda what, done, total: reports.append((what, done, total))
    )
    assert one.texts == 5 and reports[-1][1:] == (5, 5)
    again, other = (summarise_documents(writer, file, 5, seed=seed) for seed in (1, 2))
    assert again.heads() == one.heads() != other.heads()
    chosen = summarise_documents(writer, file, 5, seed=1, layers=[1], heads=[0])
    (head,) = chosen.heads()
    expected = next(found for found in one.heads() if (found.layer, found.head) == (1, 0))
    assert head.scores == pytest.approx(expected.scores, abs=1e-12)


def test_documents_of_one_token_are_skipped() -> None:
    writer = small_writer(task="classifier", classes=3)
    assert refused(lambda: summarise_documents(writer, token_file([1, 1]))).code == "attention.text"
    assert np.isfinite(summarise_documents(writer, token_file([1, 2])).heads()[0].scores["entropy"] or 0.0)
