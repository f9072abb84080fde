"""The statistics of logits as LLVM instructions: two sweeps over a row, all sets at once.

Owns: the arithmetic. Does not own: who asks for it (`logit_statistics`).

A step takes one token of every set: SETS numbers, a few panels. So the largest of a set is never looked for
among the lanes of a vector, and behind the last whole step the lanes without tokens are -inf.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg"

from __future__ import annotations

from functools import partial, reduce
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from lilliput.kernels.calling_convention import array_of, c_function, numbers_as
from lilliput.kernels.logit_statistics import FOUND, SETS, StatisticsArguments
from lilliput.kernels.registers import PANEL
from lilliput.kernels.score_rows import FLOAT, all_lanes, call, exponentials
from lilliput.kernels.tiles import WHOLE_PANEL, add_over, function, load_some, long, place, spread

PANELS = range(SETS // PANEL)
NOTHING = all_lanes(float("-inf"))
read_asked, floats_at = numbers_as(StatisticsArguments), array_of(types.float32, FLOAT)


@intrinsic
def row_statistics(typing, x, at, width, found, found_at):
    """found[found_at + s] of the numbers from x[at] on; the one after the last set is the largest of all, then comes the sum."""
    index = types.intp

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x_value, first, count, found_value, to = arguments
        x_kind, found_kind = signature.args[0], signature.args[3]

        def step_of(step: Any) -> list[Any]:
            """The next number of every set."""
            places = [builder.add(step, long(panel * PANEL)) for panel in PANELS]
            addresses = [place(context, builder, x_kind, x_value, first, here) for here in places]
            lefts = [builder.sub(count, here) for here in places]
            return [load_some(builder, at, left, NOTHING) for at, left in zip(addresses, lefts, strict=True)]

        def look(step: Any, most: dict[Any, Any]) -> dict[Any, Any]:
            return {panel: call(builder, "maxnum", most[panel], own) for panel, own in enumerate(step_of(step))}

        def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
            below = [builder.fsub(own, peaks) for own in step_of(step)]
            return {panel: builder.fadd(sums[panel], exponentials(builder, own)) for panel, own in enumerate(below)}

        most = add_over(builder, count, SETS, WHOLE_PANEL, list(PANELS), look, float("-inf"))
        for panel in PANELS:
            target = place(context, builder, found_kind, found_value, to, long(panel * PANEL))
            builder.store(most[panel], builder.bitcast(target, WHOLE_PANEL.as_pointer()), align=4)
        largest = function(builder, f"llvm.vector.reduce.fmax.v{PANEL}f32", FLOAT, WHOLE_PANEL)
        peak = builder.call(largest, [reduce(partial(call, builder, "maxnum"), most.values())])
        peaks = spread(builder, peak, WHOLE_PANEL)
        sums = add_over(builder, count, SETS, WHOLE_PANEL, list(PANELS), add)
        add_lanes = function(builder, f"llvm.vector.reduce.fadd.v{PANEL}f32", FLOAT, FLOAT, WHOLE_PANEL)
        mass = reduce(builder.fadd, sums.values())
        total = builder.call(add_lanes, [ir.Constant(FLOAT, 0.0), mass], fastmath=("reassoc",))
        for number, told in enumerate((peak, total)):
            builder.store(told, place(context, builder, found_kind, found_value, to, long(SETS + number)))
        return context.get_dummy_value()

    return types.void(x, index, index, found, index), generate


def enter(numbers):
    """What `statistics` asks for."""
    asked = read_asked(numbers, 0)
    values, found = floats_at(asked.values), floats_at(asked.found)
    for row in range(asked.rows):
        row_statistics(values, row * asked.step, asked.width, found, row * FOUND)


def compile_statistics() -> tuple[str, bytes]:
    return c_function("lilliput_survey", enter)
