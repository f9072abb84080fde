"""The innermost loops of attention, as LLVM instructions: scores of keys, and the mixture of values.

Owns: these two, for one head of one token. Does not own: which keys it sees, the softmax between them
(`loops`).

Keys and values stand wherever there was room, so that no machine foresees where the next one is: it is told,
some keys ahead, and the values while their keys are scored. Where keys and values are not in the nearest
cache this is most of the time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.decoding_pass.layout import KEYS_AHEAD, KEYS_TOGETHER
from lilliput.kernels.registers import LANES, LINE
from lilliput.kernels.tiles import FLOATS, INTS, add_over, fetch, function, load, long, place, spread

assert KEYS_TOGETHER == LANES == 8, "the sums of eight keys are put together in a vector of eight"


def fold(builder: Any, one: Any, two: Any, left: list[int], right: list[int]) -> Any:
    """The sum of two choices among the lanes of two vectors, those of the second counted on."""
    return builder.fadd(*(builder.shuffle_vector(one, two, ir.Constant(INTS, lanes)) for lanes in (left, right)))


def add_lanes(builder: Any, vectors: list[Any]) -> Any:
    """The sums of the lanes of each of eight vectors, as one: neighbours within halves, twice, and then the halves."""
    even, odd = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
    low, high = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    for _ in range(2):
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [fold(builder, one, two, even, odd) for one, two in pairs]
    return fold(builder, vectors[0], vectors[1], low, high)


@intrinsic
def score_keys(typing, x, query, memory, keys, values, places, count, width, out_at):  # type: ignore[no-untyped-def]
    """x[out_at + t] = sum over k of x[query + k] memory[keys + places[t] + k], for all t below `count`, filled up to whole
    KEYS_TOGETHER; the width is a multiple of LANES. `values`: where values begin as keys do, to be fetched for later."""
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_value, query_at, memory_value, first_key, first_value, places_value, times, steps, to = arguments
        x_kind, memory_kind, places_kind = signature.args[0], signature.args[2], signature.args[5]
        fma = function(builder, f"llvm.fma.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)

        def start(t: Any, number: int) -> Any:
            return builder.load(place(context, builder, places_kind, places_value, t, long(number)))

        def score(t: Any, none: dict[Any, Any]) -> dict[Any, Any]:
            starts = [start(t, number) for number in range(KEYS_TOGETHER)]
            later = [start(t, number + KEYS_AHEAD) for number in range(KEYS_TOGETHER)]

            def tell(step: Any, none: dict[Any, Any]) -> dict[Any, Any]:
                for soon, now in zip(later, starts, strict=True):
                    fetch(builder, place(context, builder, memory_kind, memory_value, first_key, soon, step))
                    fetch(builder, place(context, builder, memory_kind, memory_value, first_value, now, step))
                return none

            def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
                numbers = load(builder, place(context, builder, x_kind, x_value, query_at, step), FLOATS, align=4)
                keys_now = [place(context, builder, memory_kind, memory_value, first_key, now, step) for now in starts]
                vectors = [load(builder, key, FLOATS, align=4) for key in keys_now]
                return {number: builder.call(fma, [numbers, vectors[number], total]) for number, total in sums.items()}

            add_over(builder, steps, LINE // 4, FLOATS, [], tell)
            sums = add_over(builder, steps, LANES, FLOATS, list(range(KEYS_TOGETHER)), add)
            target = place(context, builder, x_kind, x_value, to, t)
            scores = add_lanes(builder, [sums[number] for number in range(KEYS_TOGETHER)])
            builder.store(scores, builder.bitcast(target, FLOATS.as_pointer()), align=4)
            return none

        add_over(builder, times, KEYS_TOGETHER, FLOATS, [], score)
        return context.get_dummy_value()

    return types.void(x, index, memory, index, index, places, index, index, index), generate


def value_tile(vectors: int, together: int) -> Any:
    """x[out_at + k] = sum over t of x[weights + t] memory[values + places[t] + k] for the `vectors` vectors of k.

    `together` tokens at a time, each with sums of its own, so that no sum waits for the one before; `count` as for keys.
    """
    parts = [(number, vector) for number in range(together) for vector in range(vectors)]

    @intrinsic
    def tile(typing, x, weights, memory, values, places, count, out_at):  # type: ignore[no-untyped-def]
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x_value, weights_at, memory_value, first, places_value, times, to = arguments
            x_kind, memory_kind, places_kind = signature.args[0], signature.args[2], signature.args[4]
            fma = function(builder, f"llvm.fma.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)

            def add(t: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
                new = {}
                for number in range(together):
                    weight = builder.load(place(context, builder, x_kind, x_value, weights_at, t, long(number)))
                    start = builder.load(place(context, builder, places_kind, places_value, t, long(number)))
                    share = spread(builder, weight, FLOATS)
                    value = place(context, builder, memory_kind, memory_value, first, start)
                    for vector in range(vectors):
                        here = load(builder, builder.gep(value, [long(vector * LANES)]), FLOATS, align=4)
                        new[number, vector] = builder.call(fma, [share, here, sums[number, vector]])
                return new

            sums = add_over(builder, times, together, FLOATS, parts, add)
            for vector in range(vectors):
                total = sums[0, vector]
                for number in range(1, together):
                    total = builder.fadd(total, sums[number, vector])
                target = place(context, builder, x_kind, x_value, to, long(vector * LANES))
                builder.store(total, builder.bitcast(target, FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, index, memory, index, places, index, index), generate

    return tile


values_8, values_6, values_4 = value_tile(8, 1), value_tile(6, 2), value_tile(4, 2)
values_2, values_1 = value_tile(2, 4), value_tile(1, 4)
