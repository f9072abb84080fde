"""Innermost loops as LLVM instructions: what plain compiled loops cannot say.

Owns: products of a few rows with a few panels whose sums stay in registers, in float32 and in whole numbers;
the atomic counters by which threads share their work and wait for each other; powers of two; and how plain
loops are compiled. Does not own: loops over them (`training_attention_loops`, and the numba engine's).

A panel is PANEL outputs of a matrix, next to each other at every step of the depth. Every output is summed
over the depth one by one, each step a fused multiply-add, whatever else is computed beside it. So a row's
sums have one order and do not depend on how many rows come along. Plain compiled loops were a third as fast:
they keep sums in memory, or sum in an order of their own.
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
Add = Callable[[Any, dict[Any, Any]], dict[Any, Any]]
Function = TypeVar("Function", bound=Callable[..., Any])
FLOATS, WHOLE_PANEL = (ir.VectorType(ir.FloatType(), lanes) for lanes in (LANES, PANEL))
INTS = ir.VectorType(INT, LANES)
BYTES, SHORTS, WIDE = (ir.VectorType(ir.IntType(bits), PAIR * PANEL) for bits in (8, 16, 32))
WHOLE_SUMS = ir.VectorType(INT, PANEL)


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


def load(builder: Any, at: Any, vector: ir.Type, align: int) -> Any:
    return builder.load(builder.bitcast(at, vector.as_pointer()), align=align)


def load_some(builder: Any, at: Any, left: Any, otherwise: ir.Constant) -> Any:
    """A panel of floats, of which only the first `left` are there: the others are not read."""
    lanes, count = ir.VectorType(INT, PANEL), builder.trunc(left, INT)
    there = builder.icmp_signed("<", ir.Constant(lanes, list(range(PANEL))), spread(builder, count, lanes))
    kinds = at.type, INT, there.type, WHOLE_PANEL
    masked = function(builder, f"llvm.masked.load.v{PANEL}f32.p0", WHOLE_PANEL, *kinds)
    return builder.call(masked, [at, ir.Constant(INT, 4), there, otherwise])


def spread(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    """The number in every lane."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(INT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(INT, vector.count), [0] * vector.count))


def function(builder: Any, name: str, result: ir.Type, *arguments: ir.Type) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)  # type: ignore[no-untyped-call]


def add_over(
    builder: Any, count: Any, stride: int, kind: ir.VectorType, keys: list[Any], add: Add, begin: float = 0
) -> dict[Any, Any]:
    """Sums in registers, one for each key, from `begin`: `add(step, sums)` gives the next ones, for 0, stride, ... below `count`.

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
        total.add_incoming(ir.Constant(kind, [begin] * kind.count), before)
        total.add_incoming(new[key], end)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return new


def tile(most_rows: int, generate: Callable[..., None]) -> Any:
    """A product of 1 to `most_rows` rows with some panels: `generate(rows, ...)` makes the code of each number of rows.

    x and w are told by where they begin, and how far apart rows (of w: panels) and steps of the depth are; out, whose panels are
    next to each other, by its rows.
    """

    @intrinsic
    def multiply(typing, rows, x, x_at, x_row, x_step, w, w_at, w_panel, w_step, depth, out, out_at, out_row):  # type: ignore[no-untyped-def]
        index = types.intp

        def choose(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            after = builder.append_basic_block("chosen")
            choice = builder.switch(arguments[0], after)
            for rows in range(1, most_rows + 1):
                own = builder.append_basic_block(f"rows_{rows}")
                choice.add_case(long(rows), own)
                builder.position_at_end(own)
                generate(rows, context, builder, signature.args[1:], arguments[1:])
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        of_x, of_w, of_out = (x, index, index, index), (w, index, index, index), (out, index, index)
        return types.void(index, *of_x, *of_w, index, *of_out), choose

    return multiply


class Numbers(NamedTuple):
    """What a tile multiplies: how it reads a panel's weights and a row's number, spread over them, for `steps` of the depth at
    once; how it adds their product to sums; and how it makes floats of those."""

    steps: int
    sums: ir.VectorType
    read_weights: Callable[[Any, Any], Any]
    read_number: Callable[[Any, Any], Any]
    multiply_add: Callable[[Any, Any, Any, Any], Any]
    to_floats: Callable[[Any, Any], Any]


def product_tile(numbers: Numbers, most_rows: int, panels: int, adds: bool, fetches: bool) -> Any:
    """out[r, p, j] = sum over k of x[r, k] w[p, k, j], or that added to it.

    `fetches`: the panels that stand behind these in memory are wanted next, and the machine is told so.
    """

    def generate(rows: int, context: Any, builder: Any, kinds: Any, arguments: Any) -> None:
        x_value, x_first, x_row, x_step, w_value, w_first, w_panel, w_step, steps, out_value, out_first, out_row = (
            arguments
        )
        x_kind, w_kind, out_kind = kinds[0], kinds[4], kinds[9]
        x_rows = places(context, builder, x_kind, x_value, x_first, x_row, rows)
        w_panels = places(context, builder, w_kind, w_value, w_first, w_panel, panels)

        def add(step: Any, sums: dict[Any, Any]) -> dict[Any, Any]:
            x_at, w_at = builder.mul(step, x_step), builder.mul(step, w_step)
            if fetches:
                ahead = builder.add(w_at, builder.mul(steps, builder.mul(w_step, long(panels))))
                for panel in w_panels:
                    fetch(builder, builder.gep(panel, [ahead]))
            weights = [numbers.read_weights(builder, builder.gep(panel, [w_at])) for panel in w_panels]
            spreads = [numbers.read_number(builder, builder.gep(row, [x_at])) for row in x_rows]
            return {
                (row, panel): numbers.multiply_add(builder, spreads[row], weights[panel], total)
                for (row, panel), total in sums.items()
            }

        parts = list(itertools.product(range(rows), range(panels)))
        for (row, panel), total in add_over(builder, steps, numbers.steps, numbers.sums, parts, add).items():
            offset = builder.add(builder.mul(out_row, long(row)), long(panel * PANEL))
            at = place(context, builder, out_kind, out_value, out_first, offset)
            new = numbers.to_floats(builder, total)
            if adds:
                new = builder.fadd(load(builder, at, WHOLE_PANEL, align=4), new)
            builder.store(new, builder.bitcast(at, WHOLE_PANEL.as_pointer()), align=4)

    return tile(most_rows, generate)


def float_tile(most_rows: int, panels: int, adds: bool = False, fetches: bool = False) -> Any:
    """A product in float32: see `product_tile`."""

    def multiply_add(builder: Any, number: Any, weights: Any, total: Any) -> Any:
        fma = function(builder, f"llvm.fma.v{PANEL}f32", WHOLE_PANEL, WHOLE_PANEL, WHOLE_PANEL, WHOLE_PANEL)
        return builder.call(fma, [number, weights, total])

    floats = Numbers(
        1,
        WHOLE_PANEL,
        lambda builder, at: load(builder, at, WHOLE_PANEL, align=4),
        lambda builder, at: spread(builder, builder.load(at), WHOLE_PANEL),
        multiply_add,
        lambda builder, total: total,
    )
    return product_tile(floats, most_rows, panels, adds, fetches)


def fetch(builder: Any, at: Any) -> None:
    """Tell the machine that this will be read soon."""
    pointer = ir.IntType(8).as_pointer()
    prefetch = function(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, INT, INT, INT)
    read, second_level, data = (ir.Constant(INT, value) for value in (0, 2, 1))
    builder.call(prefetch, [builder.bitcast(at, pointer), read, second_level, data])


def whole_tile(most_rows: int, panels: int, fetches: bool = False) -> Any:
    """A product of whole numbers, as float32: x of 16 bits, w of 8, sums of 32; see `product_tile`.

    A panel has its outputs next to each other at every PAIR of steps, the two numbers of an output together: one instruction
    multiplies and adds the pairs of all its outputs. The depth is a multiple of PAIR.
    """
    even, odd = ([lane for lane in range(PAIR * PANEL) if lane % PAIR == side] for side in range(PAIR))

    def multiply_add(builder: Any, pair: Any, weights: Any, total: Any) -> Any:
        products = builder.mul(builder.sext(pair, WIDE), builder.sext(weights, WIDE))
        # The shape in which LLVM knows the instruction that multiplies and adds pairs of 16 bits.
        sides = [
            builder.shuffle_vector(products, ir.Constant(WIDE, ir.Undefined), ir.Constant(WHOLE_SUMS, side))
            for side in (even, odd)
        ]
        return builder.add(total, builder.add(*sides))

    wholes = Numbers(
        PAIR,
        WHOLE_SUMS,
        lambda builder, at: load(builder, at, BYTES, align=1),
        lambda builder, at: builder.bitcast(spread(builder, load(builder, at, INT, align=2), WHOLE_SUMS), SHORTS),
        multiply_add,
        lambda builder, total: builder.sitofp(total, WHOLE_PANEL),
    )
    return product_tile(wholes, most_rows, panels, False, fetches)


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
