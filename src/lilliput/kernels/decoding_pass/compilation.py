"""Machine code of a whole pass, as one object file that needs neither numba nor Python to run.

Owns: the one function that is called from outside, and what it makes of the addresses that it is given. Does
not own: the pass (`loops`), or keeping and loading what was compiled (`function`).
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from lilliput.kernels.calling_convention import NUMBERS, numbers_as
from lilliput.kernels.code_cache import to_object
from lilliput.kernels.decoding_pass.layout import ANNOUNCE, Arrays, Plan, Room, kind_of
from lilliput.kernels.decoding_pass.loops import compute
from lilliput.kernels.decoding_pass.thread_barrier import announce

SIGNATURE = types.int64(NUMBERS, types.int64, types.int64, types.int64)


def told(context: Any, builder: Any, numbers: Any, place: int) -> Any:
    return builder.load(builder.gep(numbers, [context.get_constant(types.intp, place)]))


def array_tuple(first: int) -> Any:
    """The arrays whose addresses and shapes stand from `first` on."""
    kinds = [types.Array(numba.from_dtype(dtype), dims, "C") for dtype, dims in map(kind_of, Arrays._fields)]
    found = types.NamedTuple(kinds, Arrays)

    @intrinsic
    def read(typing, numbers):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place, arrays = first, []
            for kind in kinds:
                element = context.get_data_type(kind.dtype)
                size = context.get_constant(types.intp, context.get_abi_sizeof(element))
                data = builder.inttoptr(told(context, builder, arguments[0], place), element.as_pointer())
                shape = [told(context, builder, arguments[0], place + 1 + axis) for axis in range(kind.ndim)]
                strides = [builder.mul(size, shape[1]), size] if kind.ndim == 2 else [size]
                array = make_array(kind)(context, builder)
                populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
                arrays.append(array._getvalue())
                place += 1 + kind.ndim
            return context.make_tuple(builder, found, arrays)

        return found(numbers), generate

    return read


ROOM = len(Plan._fields)  # where the room's numbers begin
read_plan, read_room, read_arrays = numbers_as(Plan), numbers_as(Room), array_tuple(ROOM + len(Room._fields))


def enter(numbers, seen, part, parts):
    """`compute` by what stands at the addresses; as part ANNOUNCE it tells the others that a round begins, and nothing else."""
    arrays = read_arrays(numbers)
    if part == ANNOUNCE:
        return announce(arrays.control)
    return compute(seen, part, parts, read_plan(numbers, 0), read_room(numbers, ROOM), arrays)


def compile_pass() -> tuple[str, bytes]:
    """The function's name in an object file, and the file.

    It is called as numba's functions call each other: with places for its outcome and for an exception, which there is none of,
    and then its arguments.
    """
    options = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    build: Any = numba.njit  # whose types know less than it takes
    made = build(SIGNATURE, **options)(enter)
    return made.overloads[SIGNATURE.args].fndesc.mangled_name, to_object(made.inspect_llvm(SIGNATURE.args))
