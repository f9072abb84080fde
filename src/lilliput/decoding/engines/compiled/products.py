"""Products of a few rows with a matrix, and the other arithmetic of rows.

Owns: which tile takes which rows, rows as whole numbers, norms, activations, exp. Does not own: the tiles (`tiles`), or what is
multiplied when (`kernels`).

A row's outcome never depends on the rows beside it: a tile sums every output in one order, and everything else is done
row by row by the same instructions. A row is taken out of the flat array before a loop goes over it: numba lets an index be
negative and count from the end, and a loop over `x[at + k]`, where it cannot know better, is not turned into vectors.
"""

# Compiled functions have the types that they are called with: flat arrays, and whole numbers for places and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"

from __future__ import annotations

import math

import numpy as np

from lilliput.decoding.engines.compiled.layout import (
    BIAS,
    CHUNK,
    GELU,
    LAYER_NORM,
    NO_NORM,
    PANEL,
    RELU2,
    SCALE,
    STRIDE,
    SWIGLU,
)
from lilliput.decoding.engines.compiled.tiles import compiled, float_tile, power_of_two, whole_tile
from lilliput.model.norms import EPSILON

ONE, HALF, ZERO = np.float32(1.0), np.float32(0.5), np.float32(0.0)
SMALL = np.float32(EPSILON)
# Sums may be taken in another order than written: the one that the loop over a row was compiled with, the same for all rows. No
# liberty beyond that: a division that becomes an estimate in one version of a loop would differ from its other version.
ANY_ORDER = {"reassoc", "contract", "nsz"}
FUSED = {"contract"}

TILE = 6  # most rows of a tile: the sums of more would not fit into the registers
float_1x4, float_2x2 = float_tile(1, 4), float_tile(2, 2)
float_1, float_2, float_3, float_4, float_5, float_6 = (float_tile(rows, 1) for rows in range(1, 7))
whole_1, whole_2, whole_3 = (whole_tile(rows, 4) for rows in range(1, 4))
whole_4, whole_5, whole_6 = (whole_tile(rows, 2) for rows in range(4, 7))


@compiled()
def multiply_floats(x, x_place, rows, depth, w, w_at, out, out_place, panels):
    """out = x w for the panels from the first to the last."""
    x_at, x_step = x_place
    out_at, out_step = out_place
    panel, last = panels
    size = depth * PANEL
    if rows == 1:
        while panel + 4 <= last:
            float_1x4(x, x_at, x_step, w, w_at + panel * size, depth, out, out_at + panel * PANEL, out_step)
            panel += 4
    elif rows == 2:
        while panel + 2 <= last:
            float_2x2(x, x_at, x_step, w, w_at + panel * size, depth, out, out_at + panel * PANEL, out_step)
            panel += 2
    tiles = (rows + TILE - 1) // TILE
    while panel < last:
        at, row = w_at + panel * size, 0
        for tile in range(tiles):
            taken = (rows - row + tiles - tile - 1) // (tiles - tile)
            here, there = x_at + row * x_step, out_at + row * out_step + panel * PANEL
            if taken == 1:
                float_1(x, here, x_step, w, at, depth, out, there, out_step)
            elif taken == 2:
                float_2(x, here, x_step, w, at, depth, out, there, out_step)
            elif taken == 3:
                float_3(x, here, x_step, w, at, depth, out, there, out_step)
            elif taken == 4:
                float_4(x, here, x_step, w, at, depth, out, there, out_step)
            elif taken == 5:
                float_5(x, here, x_step, w, at, depth, out, there, out_step)
            else:
                float_6(x, here, x_step, w, at, depth, out, there, out_step)
            row += taken
        panel += 1


@compiled()
def multiply_wholes(x, x_place, rows, depth, w, w_at, out, out_place, panels):
    """out = x w for the panels from the first to the last; the scales of both are still to be applied."""
    x_at, x_step = x_place
    out_at, out_step = out_place
    tiles = (rows + TILE - 1) // TILE
    for panel in range(panels[0], panels[1]):
        at, row = w_at + panel * PANEL * depth, 0
        for tile in range(tiles):
            taken = (rows - row + tiles - tile - 1) // (tiles - tile)
            here, there = x_at + row * x_step, out_at + row * out_step + panel * PANEL
            if taken <= 3:
                for output in range(0, PANEL, 4):
                    if taken == 1:
                        whole_1(x, here, x_step, w, at + output * depth, depth, out, there + output, out_step)
                    elif taken == 2:
                        whole_2(x, here, x_step, w, at + output * depth, depth, out, there + output, out_step)
                    else:
                        whole_3(x, here, x_step, w, at + output * depth, depth, out, there + output, out_step)
            else:
                for output in range(0, PANEL, 2):
                    if taken == 4:
                        whole_4(x, here, x_step, w, at + output * depth, depth, out, there + output, out_step)
                    elif taken == 5:
                        whole_5(x, here, x_step, w, at + output * depth, depth, out, there + output, out_step)
                    else:
                        whole_6(x, here, x_step, w, at + output * depth, depth, out, there + output, out_step)
            row += taken


@compiled({"nnan", "nsz", "reassoc"})
def find_largest(x, at, count):
    """By its size; a largest number has no order to be found in."""
    row, largest = x[at : at + count], ZERO
    for k in range(count):
        largest = max(largest, abs(row[k]))
    return largest


@compiled({"nnan", "nsz", "reassoc"})
def find_peak(x, at, count):
    row, peak = x[at : at + count], x[at]
    for k in range(1, count):
        peak = max(peak, row[k])
    return peak


@compiled()
def quantise(x, x_place, rows, depth, shorts, short_place, scales):
    """Rows as whole numbers of 16 bits, as large as sums of their products with bytes allow; scales (rows) into x."""
    most = np.float32(min(32767, 2147483647 // (127 * depth)))
    for row in range(rows):
        at, to = x_place[0] + row * x_place[1], short_place[0] + row * short_place[1]
        largest = max(find_largest(x, at, depth), np.float32(1e-30))
        scale = most / largest
        numbers, wholes = x[at : at + depth], shorts[to : to + short_place[1]]
        for k in range(depth):
            wholes[k] = np.int16(np.rint(numbers[k] * scale))
        for k in range(depth, (depth + STRIDE - 1) // STRIDE * STRIDE):
            wholes[k] = 0
        x[scales + row] = largest / most


@compiled(FUSED)
def multiply(plan, room, arrays, part, rows, x, depth, matrix, column, out, panels):
    """out = x w + bias for the panels from the first to the last of the matrix that `matrix[column]` names.

    `x` and `out` are places in the scratch: where the first row begins, and how far the next ones are.
    """
    scratch, floats = arrays.scratch, arrays.floats
    first, last = panels[0] * PANEL, panels[1] * PANEL
    if plan.quantised:
        scales, short = room.own + part * room.own_step + 3 * CHUNK * plan.dim, part * CHUNK * room.short_step
        rounded = (short, room.short_step)
        quantise(scratch, x, rows, depth, arrays.shorts, rounded, scales)
        full = (depth + STRIDE - 1) // STRIDE * STRIDE
        multiply_wholes(arrays.shorts, rounded, rows, full, arrays.bytes, matrix[column], scratch, out, panels)
        of_outputs = floats[matrix[column + SCALE] + first : matrix[column + SCALE] + last]
        for row in range(rows):
            scale, to = scratch[scales + row], out[0] + row * out[1]
            sums = scratch[to + first : to + last]
            for j in range(last - first):
                sums[j] *= scale * of_outputs[j]
    else:
        multiply_floats(scratch, x, rows, depth, floats, matrix[column], scratch, out, panels)
    if matrix[column + BIAS] >= 0:
        biases = floats[matrix[column + BIAS] + first : matrix[column + BIAS] + last]
        for row in range(rows):
            to = out[0] + row * out[1]
            sums = scratch[to + first : to + last]
            for j in range(last - first):
                sums[j] += biases[j]


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


@compiled(FUSED, inline=True)
def error_function(x):
    """Abramowitz and Stegun 7.1.26, to 1.5e-7."""
    size = abs(x)
    t = ONE / (ONE + np.float32(0.3275911) * size)
    series = np.float32(1.061405429) * t - np.float32(1.453152027)
    series = series * t + np.float32(1.421413741)
    series = series * t - np.float32(0.284496736)
    series = series * t + np.float32(0.254829592)
    value = ONE - series * t * exponential(-size * size)
    return -value if x < ZERO else value


@compiled(FUSED)
def activate(kind, scratch, up, inner, panels):
    """Of one row, the outputs of the panels from the first to the last (pairs of panels where it is gated)."""
    if kind == SWIGLU:  # a panel of gates, then the panel that they open
        for pair in range(panels[0] // 2, panels[1] // 2):
            first, to = up + 2 * pair * PANEL, inner + pair * PANEL
            gates, opened = scratch[first : first + PANEL], scratch[first + PANEL : first + 2 * PANEL]
            values = scratch[to : to + PANEL]
            for j in range(
                len(values)
            ):  # as many as a panel has, but a loop of a known length is unrolled in place of vectors
                values[j] = gates[j] / (ONE + exponential(-gates[j])) * opened[j]
        return
    first, count = panels[0] * PANEL, (panels[1] - panels[0]) * PANEL
    inputs, values = scratch[up + first : up + first + count], scratch[inner + first : inner + first + count]
    if kind == GELU:
        for j in range(count):
            values[j] = HALF * inputs[j] * (ONE + error_function(inputs[j] * np.float32(0.70710678)))
    elif kind == RELU2:
        for j in range(count):
            x = max(inputs[j], ZERO)
            values[j] = x * x
    else:
        for j in range(count):
            values[j] = max(inputs[j], ZERO)


@compiled(FUSED)
def bound(cap, scratch, first, last):
    """cap x tanh(x / cap): Cephes' series for small numbers, where 1 less nearly 1 would have no digits left."""
    row = scratch[first:last]
    for j in range(last - first):
        x = row[j] / cap
        square = x * x
        series = np.float32(-5.70498872745e-3) * square + np.float32(2.06390887954e-2)
        series = series * square - np.float32(5.37397155531e-2)
        series = series * square + np.float32(1.33314422036e-1)
        series = series * square - np.float32(3.33332819422e-1)
        near = series * square * x + x
        far = ONE - np.float32(2.0) / (exponential(np.float32(2.0) * abs(x)) + ONE)
        row[j] = cap * (near if abs(x) < np.float32(0.625) else math.copysign(far, x))


@compiled(ANY_ORDER)
def add_up(x, at, count):
    row, total = x[at : at + count], ZERO
    for k in range(count):
        total += row[k]
    return total


@compiled(ANY_ORDER)
def add_squares(x, at, count, mean):
    """Of the distances from the mean."""
    row, total = x[at : at + count], ZERO
    for k in range(count):
        total += (row[k] - mean) * (row[k] - mean)
    return total


@compiled(FUSED)
def normalise(kind, floats, weight, x, at, width, to):
    """One row of x to another place in x; LayerNorm's biases stand after its weights. Without a norm it is copied."""
    row, normed = x[at : at + width], x[to : to + width]
    if kind == NO_NORM or weight < 0:
        for k in range(width):
            normed[k] = row[k]
        return
    mean = add_up(x, at, width) / np.float32(width) if kind == LAYER_NORM else ZERO
    scale = ONE / np.float32(math.sqrt(add_squares(x, at, width, mean) / np.float32(width) + SMALL))
    weights = floats[weight : weight + width]
    for k in range(width):
        normed[k] = (row[k] - mean) * scale * weights[k]
    if kind == LAYER_NORM:
        biases = floats[weight + width : weight + 2 * width]
        for k in range(width):
            normed[k] += biases[k]
