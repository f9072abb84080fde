"""What needs no net: n-grams, compressors, word counts. A net that loses to one of them should say so.

Owns: the rows that stand beside a net's figures, their names, and how much of a large training text they
learn from. Does not own: the arithmetic of any of them (`ngrams`, `mixture`, `compression`,
`evaluation.label_metrics`), or the net's own figures (`likelihood`).

Every choice (discounts, the order, the strength of a penalty) is made within the training text. Limits keep
memory and time of learning bounded, and a row that learned from a part says so in its name; the judged text
is never cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lilliput.data.packed_windows import predictions_of
from lilliput.data.prepare.token_files import TokenFile
from lilliput.evaluation.baselines.compression import BORDER, Compressor, find_zstandard, join, measure_sizes, xz
from lilliput.evaluation.baselines.linear_classifiers import commonest, predict_by_naive_bayes, predict_by_tfidf
from lilliput.evaluation.baselines.mixture import cross_mix, fit_weight, mix
from lilliput.evaluation.baselines.ngrams import Floats, NGrams, choose_order, lay_out
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

MOST_TOKENS = 10_000_000  # counted: about 1.5 GB and a minute
MOST_BYTES = 8 << 20  # read by compressors before the judged text: 10 to 20 s each
MOST_DOCUMENTS = 20_000  # of which words are counted


@dataclass(frozen=True, eq=False)
class Baseline:
    """A row. A figure is None where it cannot be had, and the name says why."""

    name: str
    figures: dict[str, float | None]
    nats: Floats | None = None  # of each prediction, in the order of the file
    right: NDArray[np.bool_] | None = None  # of each document, whether its label was told
    chosen: bool = False  # the order of n-grams that training itself prefers: the one to compare a net with


def language_baselines(
    train: TokenFile,
    test: TokenFile,
    start: int,
    vocab_size: int,
    orders: tuple[int, ...] = (1, 2, 3, 4, 5),
    discount: float | None = None,
) -> list[Baseline]:
    """Kneser-Ney n-grams over the same token ids, one row an order. A discount replaces the estimated ones."""
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


def mixed_baseline(net: Floats, other: Baseline, test: TokenFile, weight: float | None = None) -> Baseline:
    """A net and n-grams as one model. `weight` is the net's, chosen elsewhere; None: in each half by the other half."""
    assert other.nats is not None
    where = ""
    if weight is None:
        document = np.repeat(np.arange(test.documents), predictions_of(np.asarray(test.offsets), test.ends))
        nats, weight = cross_mix(net, other.nats, document)
        where = ", each half weighted by the other"
    else:
        nats = mix(net, other.nats, weight)
    return Baseline(f"{weight:.2f} net + {1 - weight:.2f} {other.name}{where}", likelihood_figures(nats, test), nats)


def likelihood_figures(nats: Floats, test: TokenFile) -> dict[str, float | None]:
    found = Likelihood(float(nats.sum()), len(nats), test.bytes)
    return {
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte if test.bytes else None,
    }


def compression_baselines(train_texts: Iterable[str], test_texts: Iterable[str]) -> list[Baseline]:
    """xz and zstd, of the judged texts alone and after the training texts: what both together take beyond training alone."""
    test, train, note = join(test_texts), join(train_texts, MOST_BYTES), "training"
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
        rows += [row(name, alone), row(f"{name} after {note}", together - before)]
    return rows


def label_baselines(
    train_texts: Sequence[str], train_labels: Sequence[str], test_texts: Sequence[str], test_labels: Sequence[str]
) -> list[Baseline]:
    """Always the commonest label of training, and two classifiers of words and word pairs."""
    note = ""
    if len(train_texts) > MOST_DOCUMENTS:
        some = np.linspace(0, len(train_texts) - 1, MOST_DOCUMENTS).astype(np.int64).tolist()
        train_texts, train_labels = [train_texts[at] for at in some], [train_labels[at] for at in some]
        note = f", {MOST_DOCUMENTS:,} documents of training"
    often = commonest(train_labels)
    rows = [label_row(f"always {often}{note}", [often] * len(test_labels), test_labels)]
    for name, predict in (("TF-IDF + logistic regression", predict_by_tfidf), ("naive Bayes", predict_by_naive_bayes)):
        predicted = predict(train_texts, train_labels, test_texts)
        if predicted is not None:
            rows.append(label_row(f"{name}{note}", predicted, test_labels))
    return rows


def label_row(name: str, predicted: Sequence[str], labels: Sequence[str]) -> Baseline:
    right = np.array(predicted) == np.array(labels)
    return Baseline(name, {"accuracy": float(right.mean())}, right=right)
