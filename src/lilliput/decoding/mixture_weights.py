"""Mixture of two models: the probability of each token is the weighted mean of both probabilities.

Owns: mixing nats of the same predictions, fitting the weight on other predictions than those that are scored, and the
text that names a mixture. Does not own: the nats (`token_scores`, `data.ngrams`), or the n-grams of a run
(`ngram_mixture`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lilliput.data.ngrams.kneser_ney import MOST_TOKENS

Floats = NDArray[np.float64]
ENOUGH = 1e-9  # the fit stops when the weight changes less
ROUNDS = 1000  # upper bound; tens are usual


class Mixed(NamedTuple):
    nats: Floats
    weight: float  # of the first model; the mean over all predictions


def mix(nats_a: Floats, nats_b: Floats, weight: float) -> Floats:
    """-log(weight exp(-a) + (1 - weight) exp(-b))."""
    assert 0 <= weight <= 1
    with np.errstate(divide="ignore"):  # log(0) = -inf removes the model from the sum
        first, second = np.log(weight), np.log1p(-weight)
    mixed: Floats = -np.logaddexp(first - nats_a, second - nats_b)
    return mixed


def fit_weight(nats_a: Floats, nats_b: Floats) -> float:
    """Return the weight of the first model that maximises the likelihood, by expectation maximisation.

    The likelihood is concave in the weight, and no iteration lowers it. Fit it on predictions that neither model was
    trained on. Without predictions the weight is 0.5.
    """
    if not len(nats_a):
        return 0.5
    odds = np.exp(np.clip(nats_a - nats_b, -700, 700))  # odds against the first model; e ** 709 is the limit of a float
    weight = 0.5
    for _ in range(ROUNDS):
        last, weight = weight, float((weight / (weight + (1 - weight) * odds)).mean())
        if abs(weight - last) < ENOUGH:
            break
    return weight


def cross_mix(nats_a: Floats, nats_b: Floats, document: NDArray[np.int64]) -> Mixed:
    """Mix each half of the documents with the weight that is fitted on the other half.

    `document` is the index of each prediction's document, in ascending order. A single document is split in the middle.
    """
    size = len(document)
    first, after = (int(np.searchsorted(document, document[size // 2], side)) for side in ("left", "right"))
    border = first or (after if after < size else size // 2)
    mixed, weights = np.empty(size), np.empty(size)
    for part, other in ((slice(border), slice(border, None)), (slice(border, None), slice(border))):
        weights[part] = weight = fit_weight(nats_a[other], nats_b[other])
        mixed[part] = mix(nats_a[part], nats_b[part], weight)
    return Mixed(mixed, float(weights.mean()))


def describe_mixture(found: Mapping[str, Any]) -> str:
    """Return the parts of a mixture with n-grams as text, and where a fitted weight comes from.

    `found` is the result of `NGramMixture.as_dict`, or the metrics of a mixture. Its `weight` is that of the n-grams.
    """
    weight, tokens = found["weight"], found["ngram_tokens"]
    part = "of the training split" if tokens < MOST_TOKENS else f"of the first {tokens:,} tokens of training"
    origin = " (weight fitted on the validation split)" if found["weight_from"] == "validation" else ""
    return (
        f"{1 - weight:.1%} this model + {weight:.1%} Kneser-Ney n-grams of order {found['ngram_order']} {part}{origin}"
    )
