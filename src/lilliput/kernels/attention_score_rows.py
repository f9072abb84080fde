"""Operations of attention on a row of scores, as LLVM instructions that work on whole panels.

Owns: the exponentials of a softmax row, the gradient of its scores, and the largest absolute value of a row. Does
not own: the products before and after (`training_attention_loops`).

Rows of scores are short. Plain compiled loops process the remainder after the last full vector one number at a time; here
lanes outside the row are masked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.registers import PANEL
from lilliput.kernels.tiles import (
    FLOAT_PANEL,
    INT,
    accumulate,
    broadcast,
    element_address,
    function,
    load,
    load_masked,
    long,
)

FLOAT = ir.FloatType()
INTS = ir.VectorType(INT, PANEL)
LOWEST = -3.0e38


def constant_panel(number: float) -> ir.Constant:
    """Return a panel with the number in every lane."""
    return ir.Constant(FLOAT_PANEL, [number] * PANEL)


def call_intrinsic(builder: Any, name: str, *vectors: Any) -> Any:
    called = function(builder, f"llvm.{name}.v{PANEL}f32", FLOAT_PANEL, *(FLOAT_PANEL for _ in vectors))
    return builder.call(called, list(vectors))


def exponentials(builder: Any, x: Any) -> Any:
    """Return `arithmetic.exponential` of every lane."""
    x = call_intrinsic(
        builder, "minnum", call_intrinsic(builder, "maxnum", x, constant_panel(-87.0)), constant_panel(88.0)
    )
    power = call_intrinsic(
        builder, "floor", call_intrinsic(builder, "fma", x, constant_panel(1.44269504), constant_panel(0.5))
    )
    rest = call_intrinsic(builder, "fma", power, constant_panel(-0.693359375), x)
    rest = call_intrinsic(builder, "fma", power, constant_panel(2.12194440e-4), rest)
    value = constant_panel(1.9875691500e-4)
    for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        value = call_intrinsic(builder, "fma", value, rest, constant_panel(factor))
    value = builder.fadd(call_intrinsic(builder, "fma", builder.fmul(value, rest), rest, rest), constant_panel(1.0))
    exponent = builder.add(builder.fptosi(power, INTS), ir.Constant(INTS, [127] * PANEL))
    bits = builder.shl(exponent, ir.Constant(INTS, [23] * PANEL))
    return builder.fmul(value, builder.bitcast(bits, FLOAT_PANEL))


class ScoreRow:
    """The keys from `start` to `last` (inclusive) in the panels `begin` to `end`; other lanes are masked."""

    def __init__(
        self, context: Any, builder: Any, kind: Any, value: Any, begin: Any, end: Any, start: Any, last: Any
    ) -> None:
        self.context, self.builder, self.kind, self.value = context, builder, kind, value
        self.begin, self.panels = begin, builder.sub(end, begin)
        self.start, self.last = (self.broadcast_key(key) for key in (start, last))

    def broadcast_key(self, key: Any) -> Any:
        narrow, nothing = self.builder.trunc(key, INT), ir.Constant(INTS, ir.Undefined)
        first = self.builder.insert_element(nothing, narrow, ir.Constant(INT, 0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(INTS, [0] * PANEL))

    def mask(self, step: Any) -> Any:
        """Return which lanes of a panel belong to the row."""
        keys = self.builder.mul(self.builder.add(self.begin, step), long(PANEL))
        keys = self.builder.add(self.broadcast_key(keys), ir.Constant(INTS, list(range(PANEL))))
        after = self.builder.icmp_signed(">=", keys, self.start)
        return self.builder.and_(after, self.builder.icmp_signed("<=", keys, self.last))

    def panel(self, at: Any, step: Any) -> Any:
        """Return the address of a panel in the line of scores that begins at `at`."""
        key = self.builder.mul(self.builder.add(self.begin, step), long(PANEL))
        return element_address(self.context, self.builder, self.kind, self.value, at, key)

    def exp_scores(self, at: Any, step: Any, peak: Any, scale: Any) -> Any:
        """Return exp((score - peak) scale) in the lanes of the row, 0 in others."""
        scores = load(self.builder, self.panel(at, step), FLOAT_PANEL, align=4)
        lower = self.builder.fmul(self.builder.fsub(scores, peak), scale)
        return self.builder.select(self.mask(step), exponentials(self.builder, lower), constant_panel(0.0))

    def store(self, at: Any, step: Any, panel: Any) -> None:
        self.builder.store(panel, self.builder.bitcast(self.panel(at, step), FLOAT_PANEL.as_pointer()), align=4)


@intrinsic
def find_max_abs(typing, x, at, count):  # type: ignore[no-untyped-def]
    """Return the largest absolute value of `count` numbers. Numba does not vectorise the plain loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, first, numbers = arguments

        def update_maximum(step: Any, most: dict[Any, Any]) -> dict[Any, Any]:
            here = element_address(context, builder, signature.args[0], value, first, step)
            own = load_masked(builder, here, builder.sub(numbers, step), constant_panel(0.0))
            return {0: call_intrinsic(builder, "maxnum", most[0], call_intrinsic(builder, "fabs", own))}

        most = accumulate(builder, numbers, PANEL, FLOAT_PANEL, [0], update_maximum)[0]
        return builder.call(function(builder, f"llvm.vector.reduce.fmax.v{PANEL}f32", FLOAT, FLOAT_PANEL), [most])

    return types.float32(x, types.intp, types.intp), generate


@intrinsic
def exponentiate_row(typing, x, at, begin, end, start, last, scale, softmax_stats, stats_at):  # type: ignore[no-untyped-def]
    """Replace scores by exp((score - largest) scale) in the panels `begin` to `end`, 0 outside keys `start` to `last`.

    Write the largest score to softmax_stats[stats_at] and the sum of the exponentials after it.
    """
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, line, first, behind, oldest, newest, factor, stats_value, stats_offset = arguments
        row = ScoreRow(context, builder, signature.args[0], value, first, behind, oldest, newest)
        factors = broadcast(builder, factor, FLOAT_PANEL)

        def update_maximum(step: Any, most: dict[Any, Any]) -> dict[Any, Any]:
            scores = load(builder, row.panel(line, step), FLOAT_PANEL, align=4)
            own = builder.select(row.mask(step), scores, constant_panel(LOWEST))
            return {0: call_intrinsic(builder, "maxnum", own, most[0])}

        def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
            shares = row.exp_scores(line, step, peaks, factors)
            row.store(line, step, shares)
            return {0: builder.fadd(sums[0], shares)}

        most = accumulate(builder, row.panels, 1, FLOAT_PANEL, [0], update_maximum, LOWEST)[0]
        largest = function(builder, f"llvm.vector.reduce.fmax.v{PANEL}f32", FLOAT, FLOAT_PANEL)
        peak = builder.call(largest, [most])
        peaks = broadcast(builder, peak, FLOAT_PANEL)
        total = builder.call(
            function(builder, f"llvm.vector.reduce.fadd.v{PANEL}f32", FLOAT, FLOAT, FLOAT_PANEL),
            [ir.Constant(FLOAT, 0.0), accumulate(builder, row.panels, 1, FLOAT_PANEL, [0], add)[0]],
            fastmath=("reassoc",),
        )
        for number, statistic in enumerate((peak, total)):
            builder.store(
                statistic, element_address(context, builder, signature.args[7], stats_value, stats_offset, long(number))
            )
        return context.get_dummy_value()

    return types.void(x, index, index, index, index, index, types.float32, softmax_stats, index), generate


@intrinsic
def softmax_gradient_row(typing, x, at, gradients, begin, end, start, last, scale, peak, inverse_sum, mean):  # type: ignore[no-untyped-def]
    """Replace scores by weights, exp((score - peak) scale) inverse_sum, and gradients of weights by gradients of
    scores, weight (gradient - mean) scale. Panels and keys as for `exponentiate_row`.
    """
    index, number = types.intp, types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, line, gradients_at, first, behind, oldest, newest, *numbers = arguments
        row = ScoreRow(context, builder, signature.args[0], value, first, behind, oldest, newest)
        factors, peaks, inverse, means = (broadcast(builder, one, FLOAT_PANEL) for one in numbers)

        def change(step: Any, none: dict[Any, Any]) -> dict[Any, Any]:
            weights = builder.fmul(row.exp_scores(line, step, peaks, factors), inverse)
            row.store(line, step, weights)
            gradient = load(builder, row.panel(gradients_at, step), FLOAT_PANEL, align=4)
            change = builder.fmul(builder.fmul(weights, builder.fsub(gradient, means)), factors)
            row.store(gradients_at, step, builder.select(row.mask(step), change, constant_panel(0.0)))
            return none

        accumulate(builder, row.panels, 1, FLOAT_PANEL, [], change)
        return context.get_dummy_value()

    return types.void(x, index, index, index, index, index, index, number, number, number, number), generate
