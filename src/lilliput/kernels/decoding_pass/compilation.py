"""Compilation of the pass to one object file that needs neither numba nor Python to run.

Owns: the exported function, and reading its arguments from their address. Does not own: the pass (`loops`), or
caching and loading the code (`compiled_function`).
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from lilliput.kernels.calling_convention import NUMBERS, tuple_reader
from lilliput.kernels.code_cache import to_object
from lilliput.kernels.decoding_pass.layout import ANNOUNCE, Arrays, Plan, ScratchLayout, array_type
from lilliput.kernels.decoding_pass.loops import compute
from lilliput.kernels.decoding_pass.thread_barrier import announce_round

SIGNATURE = types.int64(NUMBERS, types.int64, types.int64, types.int64)


def load_number(context: Any, builder: Any, numbers: Any, offset: int) -> Any:
    """Emit a load of numbers[offset]."""
    return builder.load(builder.gep(numbers, [context.get_constant(types.intp, offset)]))


def array_tuple_reader(first: int) -> Any:
    """Return a compiled function that reads Arrays from the addresses and shapes from index `first` on."""
    kinds = [types.Array(numba.from_dtype(dtype), dims, "C") for dtype, dims in map(array_type, Arrays._fields)]
    tuple_type = types.NamedTuple(kinds, Arrays)

    @intrinsic
    def read(typing, numbers):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            offset, arrays = first, []
            for kind in kinds:
                element = context.get_data_type(kind.dtype)
                size = context.get_constant(types.intp, context.get_abi_sizeof(element))
                data = builder.inttoptr(load_number(context, builder, arguments[0], offset), element.as_pointer())
                shape = [load_number(context, builder, arguments[0], offset + 1 + axis) for axis in range(kind.ndim)]
                strides = [builder.mul(size, shape[1]), size] if kind.ndim == 2 else [size]
                array = make_array(kind)(context, builder)
                populate_array(array, data=data, shape=shape, strides=strides, itemsize=size, meminfo=None)
                arrays.append(array._getvalue())
                offset += 1 + kind.ndim
            return context.make_tuple(builder, tuple_type, arrays)

        return tuple_type(numbers), generate

    return read


LAYOUT = len(Plan._fields)  # index of the numbers of ScratchLayout
read_plan, read_layout = tuple_reader(Plan), tuple_reader(ScratchLayout)
read_arrays = array_tuple_reader(LAYOUT + len(ScratchLayout._fields))


def run_pass(numbers, last_round, thread, threads):
    """Run `compute` as thread `thread`; if `thread` is ANNOUNCE, only begin a new round."""
    arrays = read_arrays(numbers)
    if thread == ANNOUNCE:
        return announce_round(arrays.control)
    return compute(last_round, thread, threads, read_plan(numbers, 0), read_layout(numbers, LAYOUT), arrays)


def compile_pass() -> tuple[str, bytes]:
    """Return the function's name and its object file.

    It has the calling convention of numba's internal functions: pointers to the result and to an exception (never
    set), then the arguments.
    """
    options = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    build: Any = numba.njit  # its type stubs do not list all options
    made = build(SIGNATURE, **options)(run_pass)
    return made.overloads[SIGNATURE.args].fndesc.mangled_name, to_object(made.inspect_llvm(SIGNATURE.args))
