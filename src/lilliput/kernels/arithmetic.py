"""Row arithmetic that compiled loops share.

Owns: exp, the sum of a row, and the fast-math flags that LLVM may use. Does not own: products (`tiles`).

A loop runs over a slice of a flat array, not over `x[at + k]`: numba allows negative indices, which count from
the end, and LLVM does not vectorise a loop in which an index may be negative.
"""

# Numba infers the types of compiled functions from their calls: flat arrays, and integers for offsets and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"

from __future__ import annotations

import numpy as np

from lilliput.kernels.tiles import compiled, power_of_two

ONE, HALF, ZERO = np.float32(1.0), np.float32(0.5), np.float32(0.0)
# LLVM may reorder a sum; the order is fixed at compilation and is the same for all rows. Other fast-math flags are not
# set: they allow an approximate division in the vectorised part of a loop and an exact one in its remainder.
ANY_ORDER = {"reassoc", "contract", "nsz"}
FUSED = {"contract"}


@compiled(FUSED, inline=True)
def exponential(x):
    """Return exp(x), exact to about one unit in the last place (Cephes). A loop that calls libm is not vectorised."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    power = np.floor(x * np.float32(1.44269504) + HALF)
    rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    value = np.float32(1.9875691500e-4)
    value = value * rest + np.float32(1.3981999507e-3)
    value = value * rest + np.float32(8.3334519073e-3)
    value = value * rest + np.float32(4.1665795894e-2)
    value = value * rest + np.float32(1.6666665459e-1)
    value = value * rest + np.float32(5.0000001201e-1)
    return (value * rest * rest + rest + ONE) * power_of_two(np.int32(power))


@compiled(ANY_ORDER)
def add_up(x, at, count):
    """Return the sum of x[at : at + count]."""
    row, total = x[at : at + count], ZERO
    for k in range(count):
        total += row[k]
    return total
