"""Baselines: n-grams, compressors and linear classifiers of words.

Owns: the rows that are compared with a model, their names, and the limits on training data. Does not own: the
arithmetic of each baseline (`data.ngrams`, `decoding.mixture_weights`, `compression`, `linear_classifiers`), or the
model's own metrics (`likelihood`).

Every choice (discounts, order, regularisation) is made within the training data. Limits bound the memory and time of
fitting; a row that was fitted on a part of the training data states this in its name. The evaluated text is never
truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lilliput.data.ngrams.kneser_ney import MOST_TOKENS, Floats, NGrams, choose_order, lay_out
from lilliput.data.packed_windows import predictions_of
from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.mixture_weights import cross_mix, fit_weight, mix
from lilliput.evaluation.baselines.compression import BORDER, Compressor, find_zstandard, join, measure_sizes, xz
from lilliput.evaluation.baselines.linear_classifiers import most_common_label, predict_by_naive_bayes, predict_by_tfidf
from lilliput.evaluation.likelihood import Likelihood

__all__ = [
    "Baseline",
    "compression_baselines",
    "cross_mix",
    "fit_weight",
    "label_baselines",
    "language_baselines",
    "mix",
    "mixed_baseline",
]

MOST_BYTES = 8 << 20  # for compressors, before the evaluated text: 10 to 20 s each
MOST_DOCUMENTS = 20_000  # for label classifiers


@dataclass(frozen=True, eq=False)
class Baseline:
    """One row. A metric is None if it is not available; the name gives the reason."""

    name: str
    figures: dict[str, float | None]
    nats: Floats | None = None  # of each prediction, in the order of the file
    right: NDArray[np.bool_] | None = None  # of each document, whether its label is predicted correctly
    chosen: bool = False  # the n-gram order that is best on held-out training data
    no_gain: bool = False  # a mixture without n-grams: the model itself


def language_baselines(
    train: TokenFile,
    test: TokenFile,
    start: int,
    vocab_size: int,
    orders: tuple[int, ...] = (1, 2, 3, 4, 5),
    discount: float | None = None,
) -> list[Baseline]:
    """Return Kneser-Ney n-grams over the same token ids, one row per order. `discount` replaces the estimated ones."""
    text = lay_out(train, start, MOST_TOKENS)
    note = "" if discount is None else f", discount {discount:g}"
    if train.predictions + train.documents > MOST_TOKENS:
        note += f", first {MOST_TOKENS:,} tokens of training"
    chosen = choose_order(text, vocab_size, orders, discount) if len(orders) > 1 else orders[0]
    found = NGrams(text, vocab_size, max(orders)).nats(lay_out(test, start), discount)
    return [
        Baseline(f"Kneser-Ney, order {order}{note}", likelihood_figures(nats, test), nats, chosen=order == chosen)
        for order, nats in enumerate(found, start=1)
        if order in orders
    ]


def mixed_baseline(model: Floats, other: Baseline, test: TokenFile, weight: float | None = None) -> Baseline:
    """Return the mixture of a model and n-grams. `weight` is the model's weight.

    If it is None, the weight of each half of the documents is fitted on the other half.
    """
    assert other.nats is not None
    if weight is None:
        document = np.repeat(np.arange(test.documents), predictions_of(np.asarray(test.offsets), test.ends))
        nats, weight = cross_mix(model, other.nats, document)
    else:
        nats = mix(model, other.nats, weight)
    figures, share = likelihood_figures(nats, test), f"{1 - weight:.0%}"
    if share == "0%":
        return Baseline(f"mixture: no gain (n-gram share {share})", figures, nats, no_gain=True)
    return Baseline(f"mixture: {weight:.0%} this model + {share} {other.name}", figures, nats)


def likelihood_figures(nats: Floats, test: TokenFile) -> dict[str, float | None]:
    found = Likelihood(float(nats.sum()), len(nats), test.bytes)
    return {
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte if test.bytes else None,
    }


def compression_baselines(train_texts: Iterable[str], test_texts: Iterable[str]) -> list[Baseline]:
    """Return xz and zstd rows: of the evaluated texts alone, and after the training texts.

    "After" means the size of both together minus the size of the training texts.
    """
    test, train, note = join(test_texts), join(train_texts, MOST_BYTES), "the training split"
    if len(train) > MOST_BYTES:
        train, note = train[:MOST_BYTES], f"the first {MOST_BYTES:,} bytes of training"
    text_bytes = len(test) - test.count(BORDER)

    def row(name: str, size: int) -> Baseline:
        return Baseline(name, {"bits_per_byte": 8 * size / text_bytes if text_bytes else None})

    rows = []
    compressors: dict[str, Compressor | None] = {"xz": xz, "zstd": find_zstandard()}
    for name, compressor in compressors.items():
        if compressor is None:
            rows.append(Baseline(f"{name} (not installed: lilliput[data])", {"bits_per_byte": None}))
            continue
        alone, before, together = measure_sizes(compressor, (test, train, train + test))
        rows += [row(name, alone), row(f"{name} after reading {note}", together - before)]
    return rows


def label_baselines(
    train_texts: Sequence[str], train_labels: Sequence[str], test_texts: Sequence[str], test_labels: Sequence[str]
) -> list[Baseline]:
    """Return the most common training label, and two classifiers of words and word bigrams."""
    note = ""
    if len(train_texts) > MOST_DOCUMENTS:
        some = np.linspace(0, len(train_texts) - 1, MOST_DOCUMENTS).astype(np.int64).tolist()
        train_texts, train_labels = [train_texts[at] for at in some], [train_labels[at] for at in some]
        note = f", {MOST_DOCUMENTS:,} documents of training"
    label = most_common_label(train_labels)
    rows = [label_row(f"always predicts {label}{note}", [label] * len(test_labels), test_labels)]
    for name, predict in (("TF-IDF + logistic regression", predict_by_tfidf), ("naive Bayes", predict_by_naive_bayes)):
        predicted = predict(train_texts, train_labels, test_texts)
        if predicted is not None:
            rows.append(label_row(f"{name}{note}", predicted, test_labels))
    return rows


def label_row(name: str, predicted: Sequence[str], labels: Sequence[str]) -> Baseline:
    right = np.array(predicted) == np.array(labels)
    return Baseline(name, {"accuracy": float(right.mean())}, right=right)
