"""What attention does with a row of scores, as LLVM instructions: a panel at a time, and no key that stands alone.

Owns: the softmax of a row, the slopes of its scores, and the largest number of any row. Does not own: the
products before and after (`training_attention_loops`).

Plain compiled loops take what is beyond their last whole vectors one by one, and rows of scores are short.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.registers import PANEL
from lilliput.kernels.tiles import INT, WHOLE_PANEL, add_over, function, load, load_some, long, place, spread

FLOAT = ir.FloatType()
INTS = ir.VectorType(INT, PANEL)
LOWEST = -3.0e38


def all_lanes(number: float) -> ir.Constant:
    return ir.Constant(WHOLE_PANEL, [number] * PANEL)


def call(builder: Any, name: str, *vectors: Any) -> Any:
    called = function(builder, f"llvm.{name}.v{PANEL}f32", WHOLE_PANEL, *(WHOLE_PANEL for _ in vectors))
    return builder.call(called, list(vectors))


def exponentials(builder: Any, x: Any) -> Any:
    """`arithmetic.exponential` of every lane."""
    x = call(builder, "minnum", call(builder, "maxnum", x, all_lanes(-87.0)), all_lanes(88.0))
    power = call(builder, "floor", call(builder, "fma", x, all_lanes(1.44269504), all_lanes(0.5)))
    rest = call(builder, "fma", power, all_lanes(-0.693359375), x)
    rest = call(builder, "fma", power, all_lanes(2.12194440e-4), rest)
    value = all_lanes(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        value = call(builder, "fma", value, rest, all_lanes(factor))
    value = builder.fadd(call(builder, "fma", builder.fmul(value, rest), rest, rest), all_lanes(1.0))
    exponent = builder.add(builder.fptosi(power, INTS), ir.Constant(INTS, [127] * PANEL))
    bits = builder.shl(exponent, ir.Constant(INTS, [23] * PANEL))
    return builder.fmul(value, builder.bitcast(bits, WHOLE_PANEL))


class Row:
    """The keys from `start` to `last` among the panels from `begin` on; lanes of other keys are not its own."""

    def __init__(
        self, context: Any, builder: Any, kind: Any, value: Any, begin: Any, end: Any, start: Any, last: Any
    ) -> None:
        self.context, self.builder, self.kind, self.value = context, builder, kind, value
        self.begin, self.panels = begin, builder.sub(end, begin)
        self.start, self.last = (self.spread_key(key) for key in (start, last))

    def spread_key(self, key: Any) -> Any:
        narrow, nothing = self.builder.trunc(key, INT), ir.Constant(INTS, ir.Undefined)
        first = self.builder.insert_element(nothing, narrow, ir.Constant(INT, 0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(INTS, [0] * PANEL))

    def own(self, step: Any) -> Any:
        """Which lanes of a panel are the row's."""
        keys = self.builder.mul(self.builder.add(self.begin, step), long(PANEL))
        keys = self.builder.add(self.spread_key(keys), ir.Constant(INTS, list(range(PANEL))))
        after = self.builder.icmp_signed(">=", keys, self.start)
        return self.builder.and_(after, self.builder.icmp_signed("<=", keys, self.last))

    def panel(self, at: Any, step: Any) -> Any:
        """Where a panel begins of the line that begins at `at`."""
        key = self.builder.mul(self.builder.add(self.begin, step), long(PANEL))
        return place(self.context, self.builder, self.kind, self.value, at, key)

    def shares(self, at: Any, step: Any, peak: Any, scale: Any) -> Any:
        """exp((score - peak) scale) of the row's own lanes, 0 of others."""
        scores = load(self.builder, self.panel(at, step), WHOLE_PANEL, align=4)
        lower = self.builder.fmul(self.builder.fsub(scores, peak), scale)
        return self.builder.select(self.own(step), exponentials(self.builder, lower), all_lanes(0.0))

    def store(self, at: Any, step: Any, panel: Any) -> None:
        self.builder.store(panel, self.builder.bitcast(self.panel(at, step), WHOLE_PANEL.as_pointer()), align=4)


@intrinsic
def find_largest(typing, x, at, count):  # type: ignore[no-untyped-def]
    """Of so many numbers, by its size; plain compiled loops look for it one by one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, first, numbers = arguments

        def look(step: Any, most: dict[Any, Any]) -> dict[Any, Any]:
            here = place(context, builder, signature.args[0], value, first, step)
            own = load_some(builder, here, builder.sub(numbers, step), all_lanes(0.0))
            return {0: call(builder, "maxnum", most[0], call(builder, "fabs", own))}

        most = add_over(builder, numbers, PANEL, WHOLE_PANEL, [0], look)[0]
        return builder.call(function(builder, f"llvm.vector.reduce.fmax.v{PANEL}f32", FLOAT, WHOLE_PANEL), [most])

    return types.float32(x, types.intp, types.intp), generate


@intrinsic
def share_row(typing, x, at, begin, end, start, last, scale, levels, level):  # type: ignore[no-untyped-def]
    """Scores become exp((score - largest) scale), in the panels from `begin` to `end`; 0 but for the keys from `start` to `last`.

    levels[level] is the largest score then, and the one after it the sum.
    """
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, line, first, behind, oldest, newest, factor, levels_value, level_at = arguments
        row = Row(context, builder, signature.args[0], value, first, behind, oldest, newest)
        factors = spread(builder, factor, WHOLE_PANEL)

        def look(step: Any, most: dict[Any, Any]) -> dict[Any, Any]:
            scores = load(builder, row.panel(line, step), WHOLE_PANEL, align=4)
            own = builder.select(row.own(step), scores, all_lanes(LOWEST))
            return {0: call(builder, "maxnum", own, most[0])}

        def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
            shares = row.shares(line, step, peaks, factors)
            row.store(line, step, shares)
            return {0: builder.fadd(sums[0], shares)}

        most = add_over(builder, row.panels, 1, WHOLE_PANEL, [0], look, LOWEST)[0]
        largest = function(builder, f"llvm.vector.reduce.fmax.v{PANEL}f32", FLOAT, WHOLE_PANEL)
        peak = builder.call(largest, [most])
        peaks = spread(builder, peak, WHOLE_PANEL)
        total = builder.call(
            function(builder, f"llvm.vector.reduce.fadd.v{PANEL}f32", FLOAT, FLOAT, WHOLE_PANEL),
            [ir.Constant(FLOAT, 0.0), add_over(builder, row.panels, 1, WHOLE_PANEL, [0], add)[0]],
            fastmath=("reassoc",),
        )
        for number, told in enumerate((peak, total)):
            builder.store(told, place(context, builder, signature.args[7], levels_value, level_at, long(number)))
        return context.get_dummy_value()

    return types.void(x, index, index, index, index, index, types.float32, levels, index), generate


@intrinsic
def slope_row(typing, x, at, slopes, begin, end, start, last, scale, peak, share, mean):  # type: ignore[no-untyped-def]
    """Scores become weights, exp((score - peak) scale) share; and what stands at `slopes`, the slopes of the weights, becomes
    those of the scores, weight (slope - mean) scale. Panels and keys as for `share_row`."""
    index, number = types.intp, types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, line, slopes_at, first, behind, oldest, newest, *numbers = arguments
        row = Row(context, builder, signature.args[0], value, first, behind, oldest, newest)
        factors, peaks, inverse, means = (spread(builder, one, WHOLE_PANEL) for one in numbers)

        def change(step: Any, none: dict[Any, Any]) -> dict[Any, Any]:
            weights = builder.fmul(row.shares(line, step, peaks, factors), inverse)
            row.store(line, step, weights)
            slope = load(builder, row.panel(slopes_at, step), WHOLE_PANEL, align=4)
            change = builder.fmul(builder.fmul(weights, builder.fsub(slope, means)), factors)
            row.store(slopes_at, step, builder.select(row.own(step), change, all_lanes(0.0)))
            return none

        add_over(builder, row.panels, 1, WHOLE_PANEL, [], change)
        return context.get_dummy_value()

    return types.void(x, index, index, index, index, index, index, number, number, number, number), generate
