"""Calling convention of compiled functions: the address of one int64 array of sizes, offsets and addresses of arrays.

Owns: reading these numbers as named tuples and as arrays, and building C functions that take them. Does not own: the
meaning of the numbers (each kernel defines its own).
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from lilliput.kernels.code_cache import to_object
from lilliput.kernels.tiles import long

NUMBERS = types.CPointer(types.int64)


def tuple_reader(kind: Any) -> Any:
    """Return a compiled function (numbers, first) that reads the named tuple `kind` from index `first` on."""
    tuple_type, count = types.NamedUniTuple(types.int64, len(kind._fields), kind), len(kind._fields)

    @intrinsic
    def read(typing, numbers, first):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            offsets = [builder.add(arguments[1], long(offset)) for offset in range(count)]
            values = [builder.load(builder.gep(arguments[0], [offset])) for offset in offsets]
            return context.make_tuple(builder, tuple_type, values)

        return tuple_type(numbers, types.intp), generate

    return read


def array_reader(number: Any, element: Any) -> Any:
    """Return a compiled function that makes an array from an address. Its length is unknown: 2**40 is a placeholder."""
    kind, size = types.Array(number, 1, "C"), number.bitwidth // 8

    @intrinsic
    def find(typing, address):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, step = make_array(kind)(context, builder), context.get_constant(types.intp, size)
            data = builder.inttoptr(arguments[0], element.as_pointer())
            populate_array(array, data=data, shape=[long(1 << 40)], strides=[step], itemsize=step, meminfo=None)
            return array._getvalue()

        return kind(types.int64), generate

    return find


def c_function(name: str, function: Callable[..., None]) -> tuple[str, bytes]:
    """Compile `function` to a C function `void name(int64_t *numbers)`; return its name and its object file.

    Numba's own C wrapper handles exceptions, which these functions never raise, and needs Python and numba at run time.
    """
    build: Any = numba.njit  # its type stubs do not list all options
    made = build(types.void(NUMBERS), error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    inner = made.overloads[(NUMBERS,)].fndesc.mangled_name
    outer = f"""
define void @{name}(ptr %numbers) {{
  %outcome = alloca ptr
  %exception = alloca ptr
  %status = call i32 @{inner}(ptr %outcome, ptr %exception, ptr %numbers)
  ret void
}}
"""
    return name, to_object(made.inspect_llvm((NUMBERS,)) + outer)
