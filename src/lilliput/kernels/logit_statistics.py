"""What every choice of a token asks of the logits first: the largest of each of some sets of tokens, and each row's
norm.


Owns: both, in float32 by machine code and in NumPy for all else. Does not own: the loops of the former
(`logit_statistics_loops`, which need numba and are not imported where their code is kept), or what is chosen
(`processors`, `decoding.beam_search`).

A sweep over many rows and a large vocabulary is most of what happens between two passes of an engine. Machine
code takes a fifth of NumPy's time for it. A row's outcome does not depend on its batch.

B rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lilliput.errors import UserError
from lilliput.kernels.code_cache import Kernel

Ids = NDArray[np.int64]
Values = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
SETS = 64  # token t is in set t % SETS; of a vocabulary of 4,096 a set has as many tokens as there are sets
FOUND = SETS + 2
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class LogitStatistics(NamedTuple):
    peaks: Values  # (B, SETS): the largest logit of each set, -inf of one without tokens
    largest: Doubles  # (B): of all
    logs: Doubles  # (B): the logarithm of the sum of exponentials of how far all logits are below the largest

    @property
    def norms(self) -> Doubles:
        """(B): a logit less its row's norm is a log-probability."""
        return self.largest + self.logs

    def logprobs(self, logits: Values, rows: Ids, ids: Sequence[int] | Ids) -> Doubles:
        """Of some tokens of the logits that were surveyed; without the rounding of a norm that is much larger."""
        return np.asarray(logits[rows, ids] - self.largest[rows] - self.logs[rows])


class StatisticsArguments(NamedTuple):
    """What machine code is told: sizes, and addresses of float32 arrays."""

    values: int
    rows: int
    width: int  # V
    step: int  # from row to row
    found: int  # (B, FOUND): a row's peaks, the largest of them, and the sum of exponentials below it


def compile_statistics() -> tuple[str, bytes]:
    from lilliput.kernels.logit_statistics_loops import compile_statistics

    return compile_statistics()


STATISTICS = Kernel("statistics", "the statistics of logits", [], compile_statistics)


def load_statistics(tell: Callable[[str], None] | None) -> None:
    """Before the first token, so that a compilation, which takes a while, is told of."""
    STATISTICS.load(tell)


@cache
def find_function() -> Callable[[int], None]:
    return FUNCTION(STATISTICS.load())


def logit_statistics(values: Values) -> LogitStatistics:
    """Of logits (B, V)."""
    rows, width = values.shape
    if values.dtype != np.float32:
        return statistics_in_numpy(values)
    if values.strides[1] != values.itemsize:
        values = np.ascontiguousarray(values)
    found = np.empty((rows, FOUND), np.float32)
    asked = StatisticsArguments(
        values.ctypes.data, rows, width, values.strides[0] // values.itemsize, found.ctypes.data
    )
    numbers = np.array(asked, dtype=np.int64)
    find_function()(numbers.ctypes.data)
    return tell(values, found[:, :SETS], found[:, SETS], found[:, SETS + 1])


def statistics_in_numpy(values: Values) -> LogitStatistics:
    """The same in NumPy, in any precision."""
    peaks = find_peaks(values)
    largest = peaks.max(axis=1)
    with np.errstate(invalid="ignore"):  # of rows that `tell` refuses
        below = values - largest[:, None]
    return tell(values, peaks, largest, np.exp(below, out=below).sum(axis=1))


def find_peaks(values: Values) -> Values:
    """Of any numbers (B, V), as a statistics has them."""
    whole = values.shape[1] // SETS * SETS
    sets = values[:, :whole].reshape(len(values), whole // SETS, SETS)
    peaks: Values = np.maximum.reduce(sets, axis=1, initial=-np.inf)
    left = peaks[:, : values.shape[1] - whole]
    np.maximum(left, values[:, whole:], out=left)
    return peaks


def tell(values: Values, peaks: Values, largest: Values, mass: Values) -> LogitStatistics:
    if not np.isfinite(largest + mass).all():
        assert not (values < np.inf).all(), "no processor takes a row's last token"
        fix = "use an earlier checkpoint of the run"
        raise UserError("the model's logits are not finite", fix=fix, code="model.not-finite")
    return LogitStatistics(peaks, largest.astype(np.float64), np.log(mass, dtype=np.float64))
