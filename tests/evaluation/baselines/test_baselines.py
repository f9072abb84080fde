"""Rows of baselines: each has the values of its module, divided as the model's own metric is."""

from __future__ import annotations

import lzma
import math
import sys

import numpy as np
import pytest

from helpers.labelled_corpora import token_file
from lilliput.data.ngrams.kneser_ney import NGrams, choose_order, lay_out
from lilliput.evaluation import baselines
from lilliput.evaluation.baselines import (
    compression_baselines,
    cross_mix,
    label_baselines,
    language_baselines,
    mix,
    mixed_baseline,
)

VOCAB, START = 17, 16


def test_language_rows() -> None:
    train, evaluated = token_file([90, 80, 70], below=5), token_file([30, 0, 20], below=5, seed=1)
    rows = language_baselines(train, evaluated, START, VOCAB)
    assert [row.name for row in rows] == [f"Kneser-Ney, order {order}" for order in range(1, 6)]
    text = lay_out(train, START)
    expected = list(NGrams(text, VOCAB, 5).nats(lay_out(evaluated, START)))
    for row, nats in zip(rows, expected, strict=True):
        assert row.nats is not None and np.array_equal(row.nats, nats)
        assert row.figures == {
            "loss": pytest.approx(nats.sum() / 53, rel=1e-12),
            "perplexity": pytest.approx(math.exp(nats.sum() / 53), rel=1e-12),
            "bits_per_byte": pytest.approx(nats.sum() / math.log(2) / 50, rel=1e-12),
        }
    assert [row.chosen for row in rows].index(True) + 1 == choose_order(text, VOCAB, (1, 2, 3, 4, 5))
    assert sum(row.chosen for row in rows) == 1


def test_language_rows_with_given_orders_and_discount() -> None:
    train, evaluated = token_file([90, 80]), token_file([30], seed=1)
    every = language_baselines(train, evaluated, START, VOCAB, discount=0.9)
    (second,) = language_baselines(train, evaluated, START, VOCAB, (2,), discount=0.9)
    assert second.name == every[1].name == "Kneser-Ney, order 2, discount 0.9"
    assert second.figures == every[1].figures and second.chosen
    assert second.figures != language_baselines(train, evaluated, START, VOCAB, (2,))[0].figures


def test_large_training_data_is_truncated_and_the_name_states_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_TOKENS", 100)
    train, evaluated = token_file([40, 40, 40]), token_file([30], seed=1)
    (row,) = language_baselines(train, evaluated, START, VOCAB, (2,))
    assert row.name == "Kneser-Ney, order 2, first 100 tokens of training"
    expected = list(NGrams(lay_out(train, START).before(100), VOCAB, 2).nats(lay_out(evaluated, START)))
    assert row.nats is not None and np.array_equal(row.nats, expected[1])


def test_mixture_rows() -> None:
    evaluated = token_file([20, 0, 30], below=5, seed=1)
    (row,) = language_baselines(token_file([99], below=5), evaluated, START, VOCAB, (2,))
    assert row.nats is not None
    model = np.random.default_rng(0).gamma(2.0, 1.0, len(row.nats))
    given = mixed_baseline(model, row, evaluated, weight=0.25)
    assert given.name == "mixture: 25% this model + 75% Kneser-Ney, order 2"
    assert given.nats is not None and np.array_equal(given.nats, mix(model, row.nats, 0.25))
    fitted, halves = (
        mixed_baseline(model, row, evaluated),
        cross_mix(model, row.nats, np.repeat([0, 1, 2], [21, 1, 31])),
    )
    assert fitted.name.startswith("mixture: ") and fitted.name.endswith("Kneser-Ney, order 2")
    assert fitted.nats is not None and np.array_equal(fitted.nats, halves.nats)
    alone = mixed_baseline(model, row, evaluated, weight=1.0)
    assert alone.no_gain and not given.no_gain and "0%" in alone.name
    assert fitted.figures["loss"] == pytest.approx(halves.nats.mean(), rel=1e-12)


def test_compression_rows() -> None:
    train = [f"The sun sees moon {number}, and the moon sees the sun. Füße." for number in range(300)]
    evaluated = [*train[::7], "What is new costs more."]
    rows = {row.name: row.figures["bits_per_byte"] for row in compression_baselines(iter(train), iter(evaluated))}
    assert list(rows) == ["xz", "xz after reading the training split", "zstd", "zstd after reading the training split"]
    data = b"".join(text.encode() + b"\xff" for text in evaluated)
    size = 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / sum(len(text.encode()) for text in evaluated)
    assert rows["xz"] == pytest.approx(size, rel=1e-12)
    for name in ("xz", "zstd"):
        alone, after = rows[name], rows[f"{name} after reading the training split"]
        assert alone is not None and after is not None and 0 < after < alone


def test_compression_rows_without_zstandard_or_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(baselines, "MOST_BYTES", 10)
    rows = {row.name: row.figures["bits_per_byte"] for row in compression_baselines(["abcd"] * 9, ["abcd"])}
    assert list(rows) == [
        "xz",
        "xz after reading the first 10 bytes of training",
        "zstd (not installed: lilliput[data])",
    ]
    assert rows["zstd (not installed: lilliput[data])"] is None
    assert all(row.figures["bits_per_byte"] is None for row in compression_baselines([""], ["", ""]))


def test_label_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["honey wax", "moon mouse", "honey hive", "moon night", "honey"] * 2
    labels = ["bee" if "honey" in text else "owl" for text in texts]
    common, linear, bayes = label_baselines(texts, labels, ["moon", "hive", "night"], ["owl", "bee", "bee"])
    assert (common.name, common.figures) == ("always predicts bee", {"accuracy": pytest.approx(2 / 3)})
    assert (linear.name, linear.figures) == ("TF-IDF + logistic regression", {"accuracy": pytest.approx(2 / 3)})
    assert common.right is not None and common.right.tolist() == [False, True, True]
    assert linear.right is not None and linear.right.tolist() == [True, True, False]
    assert (bayes.name, bayes.figures) == ("naive Bayes", {"accuracy": pytest.approx(2 / 3)})
    (alone,) = label_baselines(["honey"], ["bee"], ["moon"], ["bee"])
    assert alone.figures == {"accuracy": 1.0}
    monkeypatch.setattr(baselines, "MOST_DOCUMENTS", 6)
    names = [row.name for row in label_baselines(texts, labels, ["moon"], ["owl"])]
    note = ", 6 documents of training"
    assert names == [f"always predicts bee{note}", f"TF-IDF + logistic regression{note}", f"naive Bayes{note}"]
