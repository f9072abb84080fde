"""How machine code is told things: by the address of whole numbers, which are sizes and places, and addresses of
arrays.


Owns: reading them as named tuples and as arrays, and functions that are told so. Does not own: what they mean
(each kernel's own).
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


def numbers_as(kind: Any) -> Any:
    """A named tuple of the numbers from `first` on."""
    found, count = types.NamedUniTuple(types.int64, len(kind._fields), kind), len(kind._fields)

    @intrinsic
    def read(typing, numbers, first):
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places = [builder.add(arguments[1], long(place)) for place in range(count)]
            values = [builder.load(builder.gep(arguments[0], [place])) for place in places]
            return context.make_tuple(builder, found, values)

        return found(numbers, types.intp), generate

    return read


def array_of(number: Any, element: Any) -> Any:
    """The array that begins at an address; its end is not known."""
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


def c_function(name: str, enter: Callable[..., None]) -> tuple[str, bytes]:
    """A function of C, of the numbers' address and without an outcome: its name and its object file.

    Numba's own way to make one handles exceptions, of which there are none, and needs Python and numba for it.
    """
    build: Any = numba.njit  # whose types know less than it takes
    made = build(types.void(NUMBERS), error_model="numpy", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        enter
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
