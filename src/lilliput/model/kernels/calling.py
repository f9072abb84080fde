"""How machine code is told things: by the address of whole numbers, which are sizes and places, and addresses of arrays.

Owns: reading them as named tuples and as arrays. Does not own: what they mean (each kernel's own).
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from lilliput.model.kernels.tiles import long

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
