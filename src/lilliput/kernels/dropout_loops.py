"""Masks of dropout as compiled code, and dropout of a whole tensor.

Owns: the mask of a seed. Does not own: seeds and tensors (`dropout`), or the loops over attention weights
(`training_attention_loops`).

A mask has lines, and each line has a key of 64 bits: key n is number n of the generator SplitMix64 (Steele, Lea and Flood
2014) that starts at the seed. The hash of number k of a line is that of an integer of 32 bits, with two rounds of shift
and multiplication (constants: Wellons, hash-prospector): the lower half of the key is added to k, the upper half enters
between the rounds. A hash below the threshold drops the number. The comparison depends on the upper bits, which the usual
last shift would not change. `tests/helpers/dropout_masks.py` is the same in NumPy.
"""

# Numba infers the types of compiled functions from their calls: flat arrays, and integers for offsets and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.calling_convention import array_reader, c_function, tuple_reader
from lilliput.kernels.dropout import LINE, RANGE, DropoutArguments
from lilliput.kernels.registers import PANEL
from lilliput.kernels.tiles import (
    FLOAT_PANEL,
    INT,
    LONG,
    accumulate,
    add_atomically,
    broadcast,
    compiled,
    element_address,
    load,
    long,
)

INTS = ir.VectorType(INT, PANEL)
GOLDEN, MIX_1, MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
ROUNDS = (16, 0x21F0AAAD), (15, 0xD35A2D97)  # shift and factor
read_arguments = tuple_reader(DropoutArguments)
floats_at, longs_at = array_reader(types.float32, ir.FloatType()), array_reader(types.int64, LONG)


@compiled()
def line_key(seed, line):
    """Return the key of a line."""
    key = np.uint64(seed) + np.uint64(line + 1) * GOLDEN
    key = (key ^ (key >> SHIFT_1)) * MIX_1
    key = (key ^ (key >> SHIFT_2)) * MIX_2
    return np.int64(key ^ (key >> SHIFT_3))


@compiled()
def keep_scale(threshold):
    """Return 1 / (1 - p)."""
    return np.float32(RANGE / (RANGE - np.float64(threshold)))


def every_lane(number: int) -> ir.Constant:
    return ir.Constant(INTS, [number] * PANEL)


def hashes(builder: Any, numbers: Any, low: Any, high: Any) -> Any:
    """Return the hash of every lane; `low` and `high` are the halves of the line's key in every lane."""
    (shift_1, factor_1), (shift_2, factor_2) = ROUNDS
    x = builder.add(numbers, low)
    x = builder.mul(builder.xor(x, builder.lshr(x, every_lane(shift_1))), every_lane(factor_1))
    x = builder.xor(builder.xor(x, builder.lshr(x, every_lane(shift_2))), high)
    return builder.mul(x, every_lane(factor_2))


@intrinsic
def drop_line(typing, x, at, out, to, begin, end, key, threshold, scale):
    """Write the panels `begin` to `end` of a line to `out`: times `scale` where the mask keeps a number, else 0.

    The line begins at x[at] and at out[to]; both may be the same.
    """
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_value, x_at, out_value, out_at, first, behind, line, least, factor = arguments
        low, high, limits = (
            broadcast(builder, builder.trunc(number, INT), INTS)
            for number in (line, builder.lshr(line, long(32)), least)
        )
        factors = broadcast(builder, factor, FLOAT_PANEL)

        def change(step: Any, none: dict[Any, Any]) -> dict[Any, Any]:
            place = builder.mul(builder.add(first, step), long(PANEL))
            lanes = ir.Constant(INTS, list(range(PANEL)))
            numbers = builder.add(broadcast(builder, builder.trunc(place, INT), INTS), lanes)
            kept = builder.icmp_unsigned(">=", hashes(builder, numbers, low, high), limits)
            panel = load(
                builder, element_address(context, builder, signature.args[0], x_value, x_at, place), FLOAT_PANEL, 4
            )
            target = element_address(context, builder, signature.args[2], out_value, out_at, place)
            new = builder.select(kept, builder.fmul(panel, factors), ir.Constant(FLOAT_PANEL, [0.0] * PANEL))
            builder.store(new, builder.bitcast(target, FLOAT_PANEL.as_pointer()), align=4)
            return none

        accumulate(builder, builder.sub(behind, first), 1, FLOAT_PANEL, [], change)
        return context.get_dummy_value()

    return types.void(x, index, out, index, index, index, types.int64, types.int64, types.float32), generate


def run_dropout(numbers):
    """Compute lines until none is left; every OpenMP thread calls this with the same numbers."""
    args = read_arguments(numbers, 0)
    x, out, counter, scale = floats_at(args.x), floats_at(args.out), longs_at(args.counter), keep_scale(args.threshold)
    while True:
        line = add_atomically(counter, 0, 1)
        at = line * LINE
        if at >= args.size:
            break
        panels = min(LINE, args.size - at) // PANEL
        drop_line(x, at, out, at, 0, panels, line_key(args.seed, line), args.threshold, scale)


def compile_dropout() -> tuple[str, bytes]:
    return c_function("lilliput_dropout", run_dropout)
