"""Statistics of logits as LLVM instructions: two loops over a row, all sets at once.

Owns: the arithmetic. Does not own: arguments and results (`logit_statistics`).

A step reads one token of every set (SETS numbers, a few panels), so that each set stays in one lane of a vector. In the last
step, lanes without a token are -inf.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"

from __future__ import annotations

from functools import partial, reduce
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.attention_score_rows import FLOAT, call_intrinsic, constant_panel, exponentials
from lilliput.kernels.calling_convention import array_reader, c_function, tuple_reader
from lilliput.kernels.logit_statistics import ROW_STATISTICS, SETS, StatisticsArguments
from lilliput.kernels.registers import PANEL
from lilliput.kernels.tiles import FLOAT_PANEL, accumulate, broadcast, element_address, function, load_masked, long

PANELS = range(SETS // PANEL)
MINUS_INFINITY = constant_panel(float("-inf"))
read_arguments, floats_at = tuple_reader(StatisticsArguments), array_reader(types.float32, FLOAT)


@intrinsic
def row_statistics(typing, x, at, width, found, found_at):
    """Write the peak of set s of x[at : at + width] to found[found_at + s]; then the largest number, then the sum."""
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_value, first, count, found_value, to = arguments
        x_kind, found_kind = signature.args[0], signature.args[3]

        def load_step(step: Any) -> list[Any]:
            """Load the next number of every set."""
            offsets = [builder.add(step, long(panel * PANEL)) for panel in PANELS]
            addresses = [element_address(context, builder, x_kind, x_value, first, here) for here in offsets]
            lefts = [builder.sub(count, here) for here in offsets]
            return [load_masked(builder, at, left, MINUS_INFINITY) for at, left in zip(addresses, lefts, strict=True)]

        def update_peaks(step: Any, most: dict[Any, Any]) -> dict[Any, Any]:
            return {
                panel: call_intrinsic(builder, "maxnum", most[panel], own) for panel, own in enumerate(load_step(step))
            }

        def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
            below = [builder.fsub(own, peaks) for own in load_step(step)]
            return {panel: builder.fadd(sums[panel], exponentials(builder, own)) for panel, own in enumerate(below)}

        most = accumulate(builder, count, SETS, FLOAT_PANEL, list(PANELS), update_peaks, float("-inf"))
        for panel in PANELS:
            target = element_address(context, builder, found_kind, found_value, to, long(panel * PANEL))
            builder.store(most[panel], builder.bitcast(target, FLOAT_PANEL.as_pointer()), align=4)
        largest = function(builder, f"llvm.vector.reduce.fmax.v{PANEL}f32", FLOAT, FLOAT_PANEL)
        peak = builder.call(largest, [reduce(partial(call_intrinsic, builder, "maxnum"), most.values())])
        peaks = broadcast(builder, peak, FLOAT_PANEL)
        sums = accumulate(builder, count, SETS, FLOAT_PANEL, list(PANELS), add)
        add_lanes = function(builder, f"llvm.vector.reduce.fadd.v{PANEL}f32", FLOAT, FLOAT, FLOAT_PANEL)
        mass = reduce(builder.fadd, sums.values())
        total = builder.call(add_lanes, [ir.Constant(FLOAT, 0.0), mass], fastmath=("reassoc",))
        for number, statistic in enumerate((peak, total)):
            builder.store(
                statistic, element_address(context, builder, found_kind, found_value, to, long(SETS + number))
            )
        return context.get_dummy_value()

    return types.void(x, index, index, found, index), generate


def run_statistics(numbers):
    """Compute the statistics of all rows."""
    args = read_arguments(numbers, 0)
    values, found = floats_at(args.values), floats_at(args.found)
    for row in range(args.rows):
        row_statistics(values, row * args.step, args.width, found, row * ROW_STATISTICS)


def compile_statistics() -> tuple[str, bytes]:
    return c_function("lilliput_statistics", run_statistics)
