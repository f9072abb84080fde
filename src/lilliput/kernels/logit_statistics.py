"""Statistics of logits for token choice: the largest logit of each set of tokens, and the log normaliser of each row.

Owns: both, in float32 by compiled code and in NumPy for other dtypes. Does not own: the compiled loops
(`logit_statistics_loops`; they need numba and are not imported if their code is cached), or the choice of a token
(`decoding.processors`, `decoding.beam_search`).

With many rows and a large vocabulary, reading logits takes most of the time between two passes of an engine. The compiled
code takes a fifth of NumPy's time. The result of a row does not depend on the other rows.

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
SETS = 64  # token t is in set t % SETS; 4,096 tokens make 64 sets of 64 tokens
ROW_STATISTICS = SETS + 2
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class LogitStatistics(NamedTuple):
    peaks: Values  # (B, SETS): the largest logit of each set, -inf for a set without tokens
    largest: Doubles  # (B): the largest logit
    logs: Doubles  # (B): log of the sum of exp(logit - largest)

    @property
    def norms(self) -> Doubles:
        """Return (B): log of the sum of exp(logit); a logit minus the norm of its row is a log-probability."""
        return self.largest + self.logs

    def logprobs(self, logits: Values, rows: Ids, ids: Sequence[int] | Ids) -> Doubles:
        """Return log-probabilities of some tokens. Subtracting `largest` first avoids the rounding error of a large norm."""
        return np.asarray(logits[rows, ids] - self.largest[rows] - self.logs[rows])


class StatisticsArguments(NamedTuple):
    """Arguments of the compiled code: sizes, and addresses of float32 arrays."""

    values: int
    rows: int
    width: int  # V
    step: int  # stride of rows
    found: int  # (B, ROW_STATISTICS): per row its peaks, the largest, and the sum of exp(logit - largest)


NUMBERS = ctypes.c_int64 * len(StatisticsArguments._fields)  # filled in half the time that a NumPy array takes


def compile_statistics() -> tuple[str, bytes]:
    from lilliput.kernels.logit_statistics_loops import compile_statistics

    return compile_statistics()


STATISTICS = Kernel("statistics", "the statistics of logits", [], compile_statistics)


def load_statistics(report: Callable[[str], None] | None) -> None:
    """Load or compile the kernel before the first token; `report` gets messages about a compilation."""
    STATISTICS.load(report)


@cache
def find_function() -> Callable[[ctypes.Array[ctypes.c_int64]], None]:
    return FUNCTION(STATISTICS.load())


def logit_statistics(values: Values) -> LogitStatistics:
    """Return the statistics of logits (B, V)."""
    rows, width = values.shape
    if values.dtype != np.float32:
        return statistics_in_numpy(values)
    if values.strides[1] != values.itemsize:
        values = np.ascontiguousarray(values)
    found = np.empty((rows, ROW_STATISTICS), np.float32)
    args = StatisticsArguments(values.ctypes.data, rows, width, values.strides[0] // values.itemsize, found.ctypes.data)
    find_function()(NUMBERS(*args))
    return build_statistics(values, found[:, :SETS], found[:, SETS], found[:, SETS + 1])


def statistics_in_numpy(values: Values) -> LogitStatistics:
    """Return the same as `logit_statistics`, computed by NumPy in the dtype of the values."""
    peaks = find_peaks(values)
    largest = peaks.max(axis=1)
    with np.errstate(invalid="ignore"):  # `build_statistics` raises for such rows
        below = values - largest[:, None]
    return build_statistics(values, peaks, largest, np.exp(below, out=below).sum(axis=1))


def find_peaks(values: Values) -> Values:
    """Return the largest value of each set (B, SETS) of values (B, V)."""
    whole = values.shape[1] // SETS * SETS
    sets = values[:, :whole].reshape(len(values), whole // SETS, SETS)
    peaks: Values = np.maximum.reduce(sets, axis=1, initial=-np.inf)
    left = peaks[:, : values.shape[1] - whole]
    np.maximum(left, values[:, whole:], out=left)
    return peaks


def build_statistics(values: Values, peaks: Values, largest: Values, mass: Values) -> LogitStatistics:
    if not np.isfinite(largest + mass).all():
        assert not (values < np.inf).all(), "every row must have at least one finite logit"
        fix = "use an earlier checkpoint of the run"
        raise UserError(
            "the logits of the model must be finite (got NaN or infinity)", fix=fix, code="model.not-finite"
        )
    return LogitStatistics(peaks, largest.astype(np.float64), np.log(mass, dtype=np.float64))
