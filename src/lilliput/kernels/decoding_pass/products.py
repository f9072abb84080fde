"""Products of a few rows with a matrix, and the other arithmetic on rows.

Owns: which tile computes which rows, rows as int16, norms, activations. Does not own: the tiles
(`kernels.tiles`), or the order of products (`loops`).

A float32 matrix is stored as panels of PANEL outputs, each (depth, PANEL). An int8 panel is stored as (depth / PAIR,
PANEL, PAIR), the depth padded with zeros to a multiple of PAIR. Weights are int8, rows int16, sums int32, which are exact.

The result of a row does not depend on other rows: a tile sums every output in one order, and everything else is done
row by row with the same instructions.
"""

# Numba infers the types of compiled functions from their calls: flat arrays, and integers for offsets and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lilliput.kernels.arithmetic import ANY_ORDER, FUSED, HALF, ONE, ZERO, add_up, exponential
from lilliput.kernels.attention_score_rows import find_max_abs
from lilliput.kernels.decoding_pass.layout import (
    BIAS,
    CHUNK,
    GELU,
    NO_NORM,
    NORM_EPSILON,
    RELU2,
    RMS_NORM,
    SCALE,
    SWIGLU,
    UNBIASED_EPSILON,
    UNBIASED_LAYER_NORM,
)
from lilliput.kernels.registers import PAIR, PANEL, wide_registers
from lilliput.kernels.tiles import compiled, float_tile, integer_tile

EPSILON = np.float32(NORM_EPSILON)
ROWS = 12 if wide_registers() else 6  # most rows of a tile: sums of more do not fit into the registers


def multiply_with(one_row: Any, some_rows: Any) -> Any:
    """Return a product by tiles of one row and four panels, and of some rows and one panel."""

    @compiled()
    def multiply(x, x_place, rows, depth, w, w_at, out, out_place, panels):
        """Set out = x w for the panels from the first to the last."""
        x_at, x_row = x_place
        out_at, out_row = out_place
        panel, last = panels
        size = depth * PANEL
        if rows == 1:
            while panel + 4 <= last:
                at, to = w_at + panel * size, out_at + panel * PANEL
                one_row(1, x, x_at, x_row, 1, w, at, size, PANEL, depth, out, to, out_row)
                panel += 4
        tiles = (rows + ROWS - 1) // ROWS
        while panel < last:
            at, row = w_at + panel * size, 0
            for tile in range(tiles):
                taken = (rows - row + tiles - tile - 1) // (tiles - tile)
                here, there = x_at + row * x_row, out_at + row * out_row + panel * PANEL
                some_rows(taken, x, here, x_row, 1, w, at, size, PANEL, depth, out, there, out_row)
                row += taken
            panel += 1

    return multiply


multiply_floats = multiply_with(float_tile(1, 4), float_tile(ROWS, 1, prefetches=True))
# Integer results must still be multiplied by the scales of both factors.
multiply_integers = multiply_with(integer_tile(1, 4), integer_tile(ROWS, 1, prefetches=True))


@compiled()
def quantise(x, x_place, rows, depth, shorts, int16_place, scales):
    """Write rows as int16, as large as 32-bit sums of products with int8 allow; write their scales (rows) to x."""
    most = np.float32(min(32767, 2147483647 // (127 * depth)))
    for row in range(rows):
        at, to = x_place[0] + row * x_place[1], int16_place[0] + row * int16_place[1]
        largest = max(find_max_abs(x, at, depth), np.float32(1e-30))
        scale = most / largest
        numbers, integers = x[at : at + depth], shorts[to : to + int16_place[1]]
        for k in range(depth):
            integers[k] = np.int16(np.rint(numbers[k] * scale))
        for k in range(depth, (depth + PAIR - 1) // PAIR * PAIR):
            integers[k] = 0
        x[scales + row] = largest / most


@compiled(FUSED)
def multiply(plan, layout, arrays, thread, rows, x, depth, matrix, column, out, panels):
    """Set out = x w + bias for the panels from the first to the last of the matrix at `matrix[column]`.

    `x` and `out` are (offset of the first row, stride of rows) in the scratch memory.
    """
    scratch, floats = arrays.scratch, arrays.floats
    first, last = panels[0] * PANEL, panels[1] * PANEL
    if plan.quantised:
        scales, short = (
            layout.thread_area + thread * layout.thread_step + 2 * CHUNK * plan.dim,
            thread * CHUNK * layout.int16_step,
        )
        rounded = (short, layout.int16_step)
        quantise(scratch, x, rows, depth, arrays.shorts, rounded, scales)
        full = (depth + PAIR - 1) // PAIR * PAIR
        multiply_integers(arrays.shorts, rounded, rows, full, arrays.bytes, matrix[column], scratch, out, panels)
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
def error_function(x):
    """Return erf(x) with an error below 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
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
    """Apply the activation to one row, for the panels from the first to the last (pairs of panels if gated)."""
    if kind == SWIGLU:  # a panel of gates, then the panel that they multiply
        for pair in range(panels[0] // 2, panels[1] // 2):
            first, to = up + 2 * pair * PANEL, inner + pair * PANEL
            gates, opened = scratch[first : first + PANEL], scratch[first + PANEL : first + 2 * PANEL]
            values = scratch[to : to + PANEL]
            # len(values) is PANEL, but LLVM unrolls a loop of constant length instead of vectorising it.
            for j in range(len(values)):
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
def cap_logits(cap, scratch, first, last):
    """Replace x by cap tanh(x / cap). Small x use Cephes' series: 1 minus nearly 1 would lose all digits."""
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
def add_squares(x, at, count, mean):
    """Return the sum of squared distances from the mean."""
    row, total = x[at : at + count], ZERO
    for k in range(count):
        total += (row[k] - mean) * (row[k] - mean)
    return total


@compiled(FUSED)
def normalise(kind, floats, weight, x, at, width, to):
    """Normalise one row of x into another row of x, or copy it if there is no norm.

    The biases of both kinds of LayerNorm follow the weights.
    """
    row, normed = x[at : at + width], x[to : to + width]
    if kind == NO_NORM or weight < 0:
        for k in range(width):
            normed[k] = row[k]
        return
    mean = ZERO if kind == RMS_NORM else add_up(x, at, width) / np.float32(width)
    squares = add_squares(x, at, width, mean)
    if kind == UNBIASED_LAYER_NORM:
        scale = ONE / (np.float32(math.sqrt(squares / np.float32(width - 1))) + np.float32(UNBIASED_EPSILON))
    else:
        scale = ONE / np.float32(math.sqrt(squares / np.float32(width) + EPSILON))
    weights = floats[weight : weight + width]
    for k in range(width):
        normed[k] = (row[k] - mean) * scale * weights[k]
    if kind != RMS_NORM:
        biases = floats[weight + width : weight + 2 * width]
        for k in range(width):
            normed[k] += biases[k]
