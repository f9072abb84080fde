"""The innermost loops of the compiled engine, as LLVM instructions: what plain compiled loops cannot say.

Owns: products of a few rows with a panel of weights whose sums stay in registers, in float32 and in whole numbers; a query with a
few keys; the atomic counters by which threads wait for each other; powers of two; and how plain loops are compiled. Does not own:
loops over them (`products`, `kernels`, `meeting`).

A panel is PANEL outputs of a matrix. In float32 it is stored (depth, PANEL): every output is summed over the depth one by one,
each step a fused multiply-add, whatever else is computed beside it. So a row's sums have one order and do not depend on
how many rows come along. Plain compiled loops were a third as fast: they keep sums in memory, or sum in an order of their own.

As whole numbers a panel is stored (PANEL, depth), the depth filled up with zeros to a multiple of STRIDE: weights of 8 bits, rows
of 16, sums of 32. They are exact, so that their order does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from lilliput.decoding.engines.compiled.layout import LANES, PANEL, STRIDE

AHEAD = 2048  # floats: how far ahead of the sums weights are fetched, where only one panel is read at a time

INT, LONG = ir.IntType(32), ir.IntType(64)
Add = Callable[[Any, dict[Any, Any]], dict[Any, Any]]
Function = TypeVar("Function", bound=Callable[..., Any])
FLOATS = ir.VectorType(ir.FloatType(), LANES)
INTS = ir.VectorType(INT, LANES)
BYTES, SHORTS, WIDE = (ir.VectorType(ir.IntType(bits), STRIDE) for bits in (8, 16, 32))


def compiled(fast: set[str] | None = None, inline: bool = False) -> Callable[[Function], Function]:
    """Machine code, made when it is needed. `fast` are the liberties that LLVM may take with float32.

    Without the runtime of numba and its exceptions, so that the code needs nothing of numba to run.
    """

    def decorate(function: Function) -> Function:
        build: Any = numba.njit  # whose types know less than it takes
        options = {"fastmath": fast or False, "forceinline": inline, "error_model": "numpy", "_nrt": False}
        return cast("Function", build(**options)(function))

    return decorate


def long(value: int) -> ir.Constant:
    return ir.Constant(LONG, value)


def place(context: Any, builder: Any, array: Any, value: Any, *offsets: Any) -> Any:
    """The address of an element of a flat array; its number is the sum of the offsets."""
    at = long(0)
    for offset in offsets:
        at = builder.add(at, offset)
    return builder.gep(context.make_array(array)(context, builder, value).data, [at])


def places(context: Any, builder: Any, array: Any, value: Any, first: Any, step: Any, count: int) -> list[Any]:
    """So many addresses, `step` elements apart."""
    return [place(context, builder, array, value, first, builder.mul(step, long(number))) for number in range(count)]


def load(builder: Any, at: Any, vector: ir.VectorType, align: int) -> Any:
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=align)


def spread(builder: Any, number: Any) -> Any:
    """The number in every lane."""
    nothing = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(INTS, [0] * LANES))


def function(builder: Any, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)  # type: ignore[no-untyped-call]


def add_over(builder: Any, count: Any, stride: int, kind: ir.VectorType, keys: list[Any], add: Add) -> dict[Any, Any]:
    """Sums in registers, one for each key, from zero: `add(step, sums)` gives the next ones, for 0, stride, ... below `count`.

    There is always a first time. Loops may stand in each other.
    """
    before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(LONG)
    sums = {key: builder.phi(kind) for key in keys}
    new = add(step, sums)
    following, end = builder.add(step, long(stride)), builder.block
    step.add_incoming(long(0), before)
    step.add_incoming(following, end)
    for key, total in sums.items():
        total.add_incoming(ir.Constant(kind, [0] * kind.count), before)
        total.add_incoming(new[key], end)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return new


def float_tile(rows: int, panels: int) -> Any:
    """out[r, p, j] = sum over k of x[r, k] w[p, k, j] for `rows` rows and `panels` panels side by side."""
    parts = [(row, panel, part) for row in range(rows) for panel in range(panels) for part in range(PANEL // LANES)]

    @intrinsic
    def tile(typing, x, x_at, x_step, w, w_at, depth, out, out_at, out_step):  # type: ignore[no-untyped-def]
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x_value, x_first, x_next, w_value, w_first, steps, out_value, out_first, out_next = arguments
            x_kind, w_kind, out_kind = signature.args[0], signature.args[3], signature.args[6]
            x_rows = places(context, builder, x_kind, x_value, x_first, x_next, rows)
            w_panels = places(context, builder, w_kind, w_value, w_first, builder.mul(steps, long(PANEL)), panels)
            fma = function(builder, f"llvm.fma.v{LANES}f32", FLOATS, FLOATS, FLOATS, FLOATS)

            def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
                at = builder.mul(step, long(PANEL))
                if panels == 1:  # several panels are streams enough for the machine to see where they go
                    fetch(builder, builder.gep(w_panels[0], [builder.add(at, long(AHEAD))]))
                weights = {
                    (panel, part): load(
                        builder, builder.gep(w_panels[panel], [builder.add(at, long(part * LANES))]), FLOATS, align=4
                    )
                    for panel in range(panels)
                    for part in range(PANEL // LANES)
                }
                numbers = [spread(builder, builder.load(builder.gep(row, [step]))) for row in x_rows]
                return {
                    (row, panel, part): builder.call(fma, [numbers[row], weights[panel, part], total])
                    for (row, panel, part), total in sums.items()
                }

            new = add_over(builder, steps, 1, FLOATS, parts, add)
            for (row, panel, part), total in new.items():
                offset = builder.add(builder.mul(out_next, long(row)), long(panel * PANEL + part * LANES))
                target = place(context, builder, out_kind, out_value, out_first, offset)
                builder.store(total, builder.bitcast(target, FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, index, index, w, index, index, out, index, index), generate

    return tile


def fetch(builder: Any, at: Any) -> None:
    """Tell the machine that this will be read soon."""
    pointer = ir.IntType(8).as_pointer()
    prefetch = function(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, INT, INT, INT)
    read, second_level, data = (ir.Constant(INT, value) for value in (0, 2, 1))
    builder.call(prefetch, [builder.bitcast(at, pointer), read, second_level, data])


def whole_tile(rows: int, outputs: int) -> Any:
    """out[r, j] = sum over k of x[r, k] w[j, k], x of 16 bits and w of 8, as float32."""
    parts = [(row, output) for row in range(rows) for output in range(outputs)]
    even, odd = ([lane for lane in range(STRIDE) if lane % 2 == side] for side in (0, 1))

    @intrinsic
    def tile(typing, x, x_at, x_step, w, w_at, depth, out, out_at, out_step):  # type: ignore[no-untyped-def]
        index = types.intp

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x_value, x_first, x_next, w_value, w_first, steps, out_value, out_first, out_next = arguments
            x_kind, w_kind, out_kind = signature.args[0], signature.args[3], signature.args[6]
            x_rows = places(context, builder, x_kind, x_value, x_first, x_next, rows)
            w_rows = places(context, builder, w_kind, w_value, w_first, steps, outputs)

            def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
                weights = [
                    builder.sext(load(builder, builder.gep(row, [step]), BYTES, align=1), WIDE) for row in w_rows
                ]
                numbers = [
                    builder.sext(load(builder, builder.gep(row, [step]), SHORTS, align=2), WIDE) for row in x_rows
                ]
                new = {}
                for (row, output), total in sums.items():
                    products = builder.mul(numbers[row], weights[output])
                    # Neighbours added: the shape in which LLVM knows the instruction that multiplies and adds pairs of 16 bits.
                    pairs = [
                        builder.shuffle_vector(products, ir.Constant(WIDE, ir.Undefined), ir.Constant(INTS, side))
                        for side in (even, odd)
                    ]
                    new[row, output] = builder.add(total, builder.add(*pairs))
                return new

            new = add_over(builder, steps, STRIDE, INTS, parts, add)
            add_up = function(builder, f"llvm.vector.reduce.add.v{LANES}i32", INT, INTS)
            for (row, output), total in new.items():
                offset = builder.add(builder.mul(out_next, long(row)), long(output))
                number = builder.sitofp(builder.call(add_up, [total]), ir.FloatType())
                builder.store(number, place(context, builder, out_kind, out_value, out_first, offset))
            return context.get_dummy_value()

        return types.void(x, index, index, w, index, index, out, index, index), generate

    return tile


@intrinsic
def power_of_two(typing, exponent):  # type: ignore[no-untyped-def]
    """2 ** exponent as float32, for an int32 from -126 to 127: the bits of the number are put together."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.add(arguments[0], ir.Constant(INT, 127)), ir.Constant(INT, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def add_atomically(typing, array, index, amount):  # type: ignore[no-untyped-def]
    """array[index] += amount, and what it was before; whoever sees it sees all that was written earlier."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = place(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.atomic_rmw("add", at, arguments[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), generate


@intrinsic
def load_atomically(typing, array, index):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = place(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(at, "seq_cst", 8)

    return types.int64(array, types.intp), generate


@intrinsic
def store_atomically(typing, array, index, number):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = place(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], at, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


@intrinsic
def let_others_run(typing):  # type: ignore[no-untyped-def]
    """Give the core to another thread that wants it, if there is one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(function(builder, "SwitchToThread" if sys.platform == "win32" else "sched_yield", INT), [])
        return context.get_dummy_value()

    return types.void(), generate
