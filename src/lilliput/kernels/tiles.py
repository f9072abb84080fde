"""Innermost loops as LLVM instructions, where plain compiled loops are too slow or not possible.

Owns: products of a few rows with a few panels whose sums stay in registers, in float32 and in integers; atomic counters for
dividing work among threads and for barriers; powers of two; and the compiler options of plain loops. Does not own: loops
over tiles (`training_attention_loops`, `decoding_pass`).

A panel is PANEL outputs of a matrix, adjacent at every step of the depth. Every output is summed over the depth in order,
each step a fused multiply-add, so the sums of a row do not depend on the number of rows computed together. Plain compiled
loops reach a third of this speed: they keep sums in memory, or reorder them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

from lilliput.kernels.registers import LANES, PAIR, PANEL

INT, LONG = ir.IntType(32), ir.IntType(64)
LoopBody = Callable[[Any, dict[Any, Any]], dict[Any, Any]]
Function = TypeVar("Function", bound=Callable[..., Any])
FLOATS, FLOAT_PANEL = (ir.VectorType(ir.FloatType(), lanes) for lanes in (LANES, PANEL))
INTS = ir.VectorType(INT, LANES)
BYTES, SHORTS, WIDE = (ir.VectorType(ir.IntType(bits), PAIR * PANEL) for bits in (8, 16, 32))
INTEGER_SUMS = ir.VectorType(INT, PANEL)


def compiled(fast: set[str] | None = None, inline: bool = False) -> Callable[[Function], Function]:
    """Compile a function at its first use. `fast` are LLVM's fast-math flags for float32.

    Numba's runtime and its exceptions are off, so that the compiled code runs without numba.
    """

    def decorate(function: Function) -> Function:
        build: Any = numba.njit  # its type stubs do not list all options
        options = {"fastmath": fast or False, "forceinline": inline, "error_model": "numpy", "_nrt": False}
        return cast("Function", build(**options)(function))

    return decorate


def long(value: int) -> ir.Constant:
    return ir.Constant(LONG, value)


def element_address(context: Any, builder: Any, array: Any, value: Any, *offsets: Any) -> Any:
    """Return the address of an element of a flat array; its index is the sum of the offsets."""
    at = long(0)
    for offset in offsets:
        at = builder.add(at, offset)
    return builder.gep(context.make_array(array)(context, builder, value).data, [at])


def element_addresses(
    context: Any, builder: Any, array: Any, value: Any, first: Any, step: Any, count: int
) -> list[Any]:
    """Return `count` addresses, `step` elements apart."""
    return [
        element_address(context, builder, array, value, first, builder.mul(step, long(number)))
        for number in range(count)
    ]


def load(builder: Any, at: Any, vector: ir.Type, align: int) -> Any:
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=align)


def load_masked(builder: Any, at: Any, left: Any, otherwise: ir.Constant) -> Any:
    """Load the first `left` floats of a panel; the other lanes are not read and become `otherwise`."""
    lanes, count = ir.VectorType(INT, PANEL), builder.trunc(left, INT)
    mask = builder.icmp_signed("<", ir.Constant(lanes, list(range(PANEL))), broadcast(builder, count, lanes))
    kinds = at.type, INT, mask.type, FLOAT_PANEL
    masked = function(builder, f"llvm.masked.load.v{PANEL}f32.p0", FLOAT_PANEL, *kinds)
    return builder.call(masked, [at, ir.Constant(INT, 4), mask, otherwise])


def broadcast(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    """Return a vector with the number in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(INT, vector.count), [0] * vector.count))


def function(builder: Any, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)  # type: ignore[no-untyped-call]


def accumulate(
    builder: Any, count: Any, stride: int, kind: ir.VectorType, keys: list[Any], add: LoopBody, begin: float = 0
) -> dict[Any, Any]:
    """Build a loop over step = 0, stride, ... below `count`; return its sums, which stay in registers.

    There is one sum per key, initially `begin`; `add(step, sums)` returns the new sums. The body runs at least once. Loops
    may be nested.
    """
    before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(LONG)
    sums = {key: builder.phi(kind) for key in keys}
    new = add(step, sums)
    next_step, end = builder.add(step, long(stride)), builder.block
    step.add_incoming(long(0), before)
    step.add_incoming(next_step, end)
    for key, total in sums.items():
        total.add_incoming(ir.Constant(kind, [begin] * kind.count), before)
        total.add_incoming(new[key], end)
    builder.cbranch(builder.icmp_signed("<", next_step, count), loop, after)
    builder.position_at_end(after)
    return new


def tile(max_rows: int, generate: Callable[..., None]) -> Any:
    """Return the product of 1 to `max_rows` rows with some panels; `generate(rows, ...)` builds one case.

    x and w have an offset and the strides of rows (w: of panels) and of steps of the depth; out, whose panels are adjacent,
    has an offset and the stride of rows.
    """

    @intrinsic
    def multiply(typing, rows, x, x_at, x_row, x_step, w, w_at, w_panel, w_step, depth, out, out_at, out_row):  # type: ignore[no-untyped-def]
        index = types.intp

        def choose(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            after = builder.append_basic_block("chosen")
            choice = builder.switch(arguments[0], after)
            for rows in range(1, max_rows + 1):
                block = builder.append_basic_block(f"rows_{rows}")
                choice.add_case(long(rows), block)
                builder.position_at_end(block)
                generate(rows, context, builder, signature.args[1:], arguments[1:])
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        of_x, of_w, of_out = (x, index, index, index), (w, index, index, index), (out, index, index)
        return types.void(index, *of_x, *of_w, index, *of_out), choose

    return multiply


class TileArithmetic(NamedTuple):
    """The number type of a tile: functions that read the weights of a panel, broadcast the number of a row for `steps` steps
    of the depth, add their product to the sums, and convert the sums to floats.
    """

    steps: int
    sums: ir.VectorType
    read_weights: Callable[[Any, Any], Any]
    read_number: Callable[[Any, Any], Any]
    multiply_add: Callable[[Any, Any, Any, Any], Any]
    to_floats: Callable[[Any, Any], Any]


def product_tile(arithmetic: TileArithmetic, max_rows: int, panels: int, adds: bool, prefetches: bool) -> Any:
    """out[r, p, j] = sum over k of x[r, k] w[p, k, j]; with `adds` the sum is added to out.

    `prefetches`: also prefetch the panels that follow in memory, which are needed next.
    """

    def generate(rows: int, context: Any, builder: Any, kinds: Any, arguments: Any) -> None:
        x_value, x_first, x_row, x_step, w_value, w_first, w_panel, w_step, steps, out_value, out_first, out_row = (
            arguments
        )
        x_kind, w_kind, out_kind = kinds[0], kinds[4], kinds[9]
        x_rows = element_addresses(context, builder, x_kind, x_value, x_first, x_row, rows)
        w_panels = element_addresses(context, builder, w_kind, w_value, w_first, w_panel, panels)

        def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
            x_at, w_at = builder.mul(step, x_step), builder.mul(step, w_step)
            if prefetches:
                ahead = builder.add(w_at, builder.mul(steps, builder.mul(w_step, long(panels))))
                for panel in w_panels:
                    prefetch(builder, builder.gep(panel, [ahead]))
            weights = [arithmetic.read_weights(builder, builder.gep(panel, [w_at])) for panel in w_panels]
            broadcasts = [arithmetic.read_number(builder, builder.gep(row, [x_at])) for row in x_rows]
            return {
                (row, panel): arithmetic.multiply_add(builder, broadcasts[row], weights[panel], total)
                for (row, panel), total in sums.items()
            }

        outputs = list(itertools.product(range(rows), range(panels)))
        for (row, panel), total in accumulate(builder, steps, arithmetic.steps, arithmetic.sums, outputs, add).items():
            offset = builder.add(builder.mul(out_row, long(row)), long(panel * PANEL))
            at = element_address(context, builder, out_kind, out_value, out_first, offset)
            new = arithmetic.to_floats(builder, total)
            if adds:
                new = builder.fadd(load(builder, at, FLOAT_PANEL, align=4), new)
            builder.store(new, builder.bitcast(at, FLOAT_PANEL.as_pointer()), align=4)

    return tile(max_rows, generate)


def float_tile(max_rows: int, panels: int, adds: bool = False, prefetches: bool = False) -> Any:
    """Return a product tile in float32: see `product_tile`."""

    def multiply_add(builder: Any, number: Any, weights: Any, total: Any) -> Any:
        fma = function(builder, f"llvm.fma.v{PANEL}f32", FLOAT_PANEL, FLOAT_PANEL, FLOAT_PANEL, FLOAT_PANEL)
        return builder.call(fma, [number, weights, total])

    floats = TileArithmetic(
        1,
        FLOAT_PANEL,
        lambda builder, at: load(builder, at, FLOAT_PANEL, align=4),
        lambda builder, at: broadcast(builder, builder.load(at), FLOAT_PANEL),
        multiply_add,
        lambda builder, total: total,
    )
    return product_tile(floats, max_rows, panels, adds, prefetches)


def prefetch(builder: Any, at: Any) -> None:
    """Emit a prefetch of this address for reading, into the second-level cache."""
    pointer = ir.IntType(8).as_pointer()
    instruction = function(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, INT, INT, INT)
    read, second_level, data = (ir.Constant(INT, value) for value in (0, 2, 1))
    builder.call(instruction, [builder.bitcast(at, pointer), read, second_level, data])


def integer_tile(max_rows: int, panels: int, prefetches: bool = False) -> Any:
    """Return a product tile with float32 output: x is int16, w int8, sums int32; see `product_tile`.

    At every PAIR of steps a panel holds the two numbers of each output next to each other: one instruction multiplies and
    adds the pairs of all outputs. The depth is a multiple of PAIR.
    """
    even, odd = ([lane for lane in range(PAIR * PANEL) if lane % PAIR == side] for side in range(PAIR))

    def multiply_add(builder: Any, pair: Any, weights: Any, total: Any) -> Any:
        products = builder.mul(builder.sext(pair, WIDE), builder.sext(weights, WIDE))
        # LLVM recognises this pattern as the instruction that multiplies and adds pairs of 16 bits (vpmaddwd).
        sides = [
            builder.shuffle_vector(products, ir.Constant(WIDE, ir.Undefined), ir.Constant(INTEGER_SUMS, side))
            for side in (even, odd)
        ]
        return builder.add(total, builder.add(*sides))

    integers = TileArithmetic(
        PAIR,
        INTEGER_SUMS,
        lambda builder, at: load(builder, at, BYTES, align=1),
        lambda builder, at: builder.bitcast(broadcast(builder, load(builder, at, INT, align=2), INTEGER_SUMS), SHORTS),
        multiply_add,
        lambda builder, total: builder.sitofp(total, FLOAT_PANEL),
    )
    return product_tile(integers, max_rows, panels, False, prefetches)


@intrinsic
def power_of_two(typing, exponent):  # type: ignore[no-untyped-def]
    """Return 2 ** exponent as float32 for an int32 from -126 to 127, built from its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.add(arguments[0], ir.Constant(INT, 127)), ir.Constant(INT, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def add_atomically(typing, array, index, amount):  # type: ignore[no-untyped-def]
    """Add to array[index], sequentially consistent; return the value before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = element_address(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.atomic_rmw("add", at, arguments[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), generate


@intrinsic
def load_atomically(typing, array, index):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = element_address(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(at, "seq_cst", 8)

    return types.int64(array, types.intp), generate


@intrinsic
def store_atomically(typing, array, index, number):  # type: ignore[no-untyped-def]
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = element_address(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], at, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), generate


@intrinsic
def yield_core(typing):  # type: ignore[no-untyped-def]
    """Yield the core to another runnable thread, if there is one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(function(builder, "SwitchToThread" if sys.platform == "win32" else "sched_yield", INT), [])
        return context.get_dummy_value()

    return types.void(), generate
