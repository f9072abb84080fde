"""The arithmetic of rows that compiled loops share.

Owns: exp, sums of a row, and the liberties that LLVM may take. Does not own: products (`tiles`).

A row is taken out of a flat array before a loop goes over it: numba lets an index be negative and count from
the end, and a loop over `x[at + k]`, where it cannot know better, is not turned into vectors.
"""

# Compiled functions have the types that they are called with: flat arrays, and whole numbers for places and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"

from __future__ import annotations

import numpy as np

from lilliput.kernels.tiles import compiled, power_of_two

ONE, HALF, ZERO = np.float32(1.0), np.float32(0.5), np.float32(0.0)
# Sums may be taken in another order than written: the one that the loop over a row was compiled with, the same for all rows. No
# liberty beyond that: a division that becomes an estimate in one version of a loop would differ from its other version.
ANY_ORDER = {"reassoc", "contract", "nsz"}
FUSED = {"contract"}


@compiled(FUSED, inline=True)
def exponential(x):
    """exp to about one unit in the last place (Cephes): a loop over libm's would not be turned into vectors."""
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
    row, total = x[at : at + count], ZERO
    for k in range(count):
        total += row[k]
    return total
