"""Two models as one: the probability of each token is the weighted mean of what both give it.

Owns: mixing nats of the same predictions, and choosing the weight on predictions that are not the ones it is
judged by. Does not own: where the nats come from (`scores`, `ngrams`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ENOUGH = 1e-9  # change of the weight at which it stays
ROUNDS = 1000  # a bound only: tens are usual


class Mixed(NamedTuple):
    nats: Floats
    weight: float  # of the first model; the mean over all predictions


def mix(nats_a: Floats, nats_b: Floats, weight: float) -> Floats:
    """-log(weight exp(-a) + (1 - weight) exp(-b))."""
    assert 0 <= weight <= 1
    with np.errstate(divide="ignore"):  # a weight of nothing has the logarithm -inf, and its model no part
        first, second = np.log(weight), np.log1p(-weight)
    mixed: Floats = -np.logaddexp(first - nats_a, second - nats_b)
    return mixed


def fit_weight(nats_a: Floats, nats_b: Floats) -> float:
    """The weight of the first model under which these predictions are likeliest, by expectation maximisation.

    The likelihood has one peak, and no round lowers it. To be fitted on predictions that neither model has learned from; a
    half where there are none.
    """
    if not len(nats_a):
        return 0.5
    odds = np.exp(np.clip(nats_a - nats_b, -700, 700))  # against the first model; a float holds e ** 709
    weight = 0.5
    for _ in range(ROUNDS):
        last, weight = weight, float((weight / (weight + (1 - weight) * odds)).mean())
        if abs(weight - last) < ENOUGH:
            break
    return weight


def cross_mix(nats_a: Floats, nats_b: Floats, document: NDArray[np.int64]) -> Mixed:
    """Each half of the documents mixed with the weight that suits the other half: nothing is judged by what chose its weight.

    `document` is the number of each prediction's document, rising. A lone document is halved between its predictions.
    """
    size = len(document)
    first, after = (int(np.searchsorted(document, document[size // 2], side)) for side in ("left", "right"))
    border = first or (after if after < size else size // 2)
    mixed, weights = np.empty(size), np.empty(size)
    for part, other in ((slice(border), slice(border, None)), (slice(border, None), slice(border))):
        weights[part] = weight = fit_weight(nats_a[other], nats_b[other])
        mixed[part] = mix(nats_a[part], nats_b[part], weight)
    return Mixed(mixed, float(weights.mean()))
