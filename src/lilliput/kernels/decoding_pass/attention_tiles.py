"""Innermost loops of attention as LLVM instructions: scores of keys, and the weighted sum of values.

Owns: these two, for one head of one token. Does not own: which keys are visible, and the softmax (`loops`).

Keys and values are in arbitrary slots of the memory, so the processor cannot predict the next address. The loops prefetch
keys some steps ahead, and values while their keys are scored. Waiting for memory would otherwise take most of the time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.decoding_pass.layout import KEYS_AHEAD, KEYS_PER_STEP
from lilliput.kernels.registers import LANES, LINE
from lilliput.kernels.tiles import FLOATS, INTS, accumulate, broadcast, element_address, function, load, long, prefetch

assert KEYS_PER_STEP == LANES == 8, "the sums of eight keys form a vector of eight"


def fold(builder: Any, one: Any, two: Any, left: list[int], right: list[int]) -> Any:
    """Return the sum of two shuffles of the lanes of two vectors; lanes of the second are numbered from LANES on."""
    return builder.fadd(*(builder.shuffle_vector(one, two, ir.Constant(INTS, lanes)) for lanes in (left, right)))


def add_lanes(builder: Any, vectors: list[Any]) -> Any:
    """Return the lane sums of eight vectors as one vector: add neighbours within halves, twice, then the halves."""
    even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    for _ in range(2):
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [fold(builder, one, two, even, odd) for one, two in pairs]
    return fold(builder, vectors[0], vectors[1], low, high)


@intrinsic
def score_keys(typing, x, query, memory, keys, values, key_offsets, count, width, out_at):  # type: ignore[no-untyped-def]
    """Set x[out_at + t] = sum over k of x[query + k] memory[keys + key_offsets[t] + k], for all t below `count`, rounded up
    to a multiple of KEYS_PER_STEP; the width is a multiple of LANES. `values`: offset of the values, which are prefetched.
    """
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_value, query_at, memory_value, first_key, first_value, offsets_value, times, steps, to = arguments
        x_kind, memory_kind, offsets_kind = signature.args[0], signature.args[2], signature.args[5]
        fma = function(builder, f"llvm.fma.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)

        def start(t: Any, number: int) -> Any:
            return builder.load(element_address(context, builder, offsets_kind, offsets_value, t, long(number)))

        def score(t: Any, none: dict[Any, Any]) -> dict[Any, Any]:
            starts = [start(t, number) for number in range(KEYS_PER_STEP)]
            later = [start(t, number + KEYS_AHEAD) for number in range(KEYS_PER_STEP)]

            def prefetch_rows(step: Any, none: dict[Any, Any]) -> dict[Any, Any]:
                for soon, now in zip(later, starts, strict=True):
                    prefetch(
                        builder, element_address(context, builder, memory_kind, memory_value, first_key, soon, step)
                    )
                    prefetch(
                        builder, element_address(context, builder, memory_kind, memory_value, first_value, now, step)
                    )
                return none

            def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
                numbers = load(
                    builder, element_address(context, builder, x_kind, x_value, query_at, step), FLOATS, align=4
                )
                keys_now = [
                    element_address(context, builder, memory_kind, memory_value, first_key, now, step) for now in starts
                ]
                vectors = [load(builder, key, FLOATS, align=4) for key in keys_now]
                return {number: builder.call(fma, [numbers, vectors[number], total]) for number, total in sums.items()}

            accumulate(builder, steps, LINE // 4, FLOATS, [], prefetch_rows)
            sums = accumulate(builder, steps, LANES, FLOATS, list(range(KEYS_PER_STEP)), add)
            target = element_address(context, builder, x_kind, x_value, to, t)
            scores = add_lanes(builder, [sums[number] for number in range(KEYS_PER_STEP)])
            builder.store(scores, builder.bitcast(target, FLOATS.as_pointer()), align=4)
            return none

        accumulate(builder, times, KEYS_PER_STEP, FLOATS, [], score)
        return context.get_dummy_value()

    return types.void(x, index, memory, index, index, key_offsets, index, index, index), generate


def value_tile(vectors: int, tokens_per_step: int) -> Any:
    """Return x[out_at + k] = sum over t of x[weights + t] memory[values + key_offsets[t] + k] for `vectors` vectors of k.

    Each of `tokens_per_step` tokens has its own sums, so that additions do not depend on each other; `count` as for keys.
    """
    accumulators = [(number, vector) for number in range(tokens_per_step) for vector in range(vectors)]

    @intrinsic
    def tile(typing, x, weights, memory, values, key_offsets, count, out_at):  # type: ignore[no-untyped-def]
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x_value, weights_at, memory_value, first, offsets_value, times, to = arguments
            x_kind, memory_kind, offsets_kind = signature.args[0], signature.args[2], signature.args[4]
            fma = function(builder, f"llvm.fma.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)

            def add(t: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
                new = {}
                for number in range(tokens_per_step):
                    weight = builder.load(
                        element_address(context, builder, x_kind, x_value, weights_at, t, long(number))
                    )
                    start = builder.load(
                        element_address(context, builder, offsets_kind, offsets_value, t, long(number))
                    )
                    share = broadcast(builder, weight, FLOATS)
                    value = element_address(context, builder, memory_kind, memory_value, first, start)
                    for vector in range(vectors):
                        here = load(builder, builder.gep(value, [long(vector * LANES)]), FLOATS, align=4)
                        new[number, vector] = builder.call(fma, [share, here, sums[number, vector]])
                return new

            sums = accumulate(builder, times, tokens_per_step, FLOATS, accumulators, add)
            for vector in range(vectors):
                total = sums[0, vector]
                for number in range(1, tokens_per_step):
                    total = builder.fadd(total, sums[number, vector])
                target = element_address(context, builder, x_kind, x_value, to, long(vector * LANES))
                builder.store(total, builder.bitcast(target, FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, index, memory, index, key_offsets, index, index), generate

    return tile


values_8, values_6, values_4 = value_tile(8, 1), value_tile(6, 2), value_tile(4, 2)
values_2, values_1 = value_tile(2, 4), value_tile(1, 4)
