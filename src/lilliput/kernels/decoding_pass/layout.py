"""Where everything stands in the flat arrays of the compiled engine.

Owns: the names of columns and places, the facts of a net that all layers share, the room for intermediate
numbers, and the addresses by which machine code is told of all of them. Does not own: what is put there
(`decoding.engines.compiled_weights`, `key_value_slots`) or computed (`loops`). Needs no numba, so that code
which was compiled before is run without it.

N tokens of a pass, C dim, H heads, G heads of keys and values, D dim of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lilliput.kernels.registers import LINE, PAIR, PANEL, padded

Number = TypeVar("Number", np.float32, np.int8)
Floats = NDArray[np.float32]
Bytes = NDArray[np.int8]
Shorts = NDArray[np.int16]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

CHUNK = 32  # most tokens of one pass
KEYS_TOGETHER = 8  # keys that attention takes at a time
NORM_EPSILON = 1e-5  # of every norm, in training too (`model.norms`): the value is compiled into the pass
KEYS_AHEAD = 16  # how far ahead of the scores keys are fetched; a multiple of KEYS_TOGETHER

# Columns of the table of layers: where each thing begins in the floats, -1 if there is none. A matrix has three: where it begins
# (whole numbers: in the bytes), its scales, its biases.
SCALE, BIAS = 1, 2
QKV, OUT, UP, DOWN = 0, 3, 6, 9
NORM_1, NORM_2, Q_NORM, K_NORM, VALUES, VALUE_SHARES = range(12, 18)
GROUP, KEYS = 18, 19  # the group of layers of one window; where the layer's keys, then its values, begin in the memory
LAYER_FIELDS = 20
# Columns of the table of groups: the window, which columns of the table of slots are the group's, and how many slots it has.
WINDOW, COLUMN, SPAN, CAPACITY, GROUP_FIELDS = range(5)
# Places of the control array, a cache line apart: what one thread counts must not slow down who looks at another.
ANNOUNCE = -1  # in place of a part: tells the others that a round begins
ARRIVED, PHASE, ROUND, ASLEEP, LEAVE, CLOSED, TOKENS, WANTED, CONTROL = range(0, 72, 8)

NO_NORM, LAYER_NORM, RMS_NORM = range(3)
RELU, GELU, RELU2, SWIGLU = range(4)


class Plan(NamedTuple):
    """The facts of a net that all layers share, and where other things begin in the floats (-1 if there is none)."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    head_step: int  # as it stands in the memory: filled up with zeros to whole vectors
    inside: int  # width of the feed-forward after its activation
    layers: int
    vocab_size: int
    context: int
    norm: int
    post: int  # norms stand after the residual sum
    activation: int
    quantised: int  # matrices are of whole numbers
    embedding: int
    positions: int
    cosines: int
    sines: int
    final_norm: int
    soft_cap: int


class Room(NamedTuple):
    """Where rows of intermediate numbers begin in the scratch, and how far they are apart."""

    x: int  # (N, C) the residual stream
    x_step: int
    qkv: int  # (N, (H + 2G) D)
    qkv_step: int
    mixed: int  # (N, C) what attention gives
    up: int  # (N, inside), twice that if it is gated
    up_step: int
    inner: int  # (N, inside) after the activation
    inner_step: int
    logits: int  # (N, V)
    logits_step: int
    # From here on each part has its own: stream (N, C), input (N, C), scales (N), and of one head its query, its outcome,
    # the largest and the sum of its scores, and those (context, and some beyond).
    own: int
    own_step: int
    short_step: int  # a row of whole numbers


class Arrays(NamedTuple):
    """All that a pass reads and writes. What grows is replaced between passes."""

    control: Longs
    layers: Longs  # (layers, LAYER_FIELDS)
    head: Longs  # the three columns of its matrix
    groups: Longs  # (groups, GROUP_FIELDS)
    floats: Floats
    bytes: Bytes
    scratch: Floats
    shorts: Shorts
    memory: Floats
    table: Ints  # (rows, columns): slots
    ids: Longs  # (N)
    pos: Longs  # (N)
    handles: Longs  # (N): lines of the table
    slots: Longs  # (groups, N): where the new keys and values go
    begins: Longs  # (groups, N): where the tokens' lists of places begin
    places: Longs  # (groups, so many for all tokens, and some beyond): where the keys stand that each token sees
    wanted: Longs  # tokens whose logits are wanted


# Machine code is told where an array begins, and takes on trust what stands there.
KINDS = {
    "floats": np.float32,
    "bytes": np.int8,
    "scratch": np.float32,
    "shorts": np.int16,
    "memory": np.float32,
    "table": np.int32,
}  # of numbers; all others are of int64
TABLES = ("layers", "groups", "table", "slots", "begins", "places")  # arrays of two dimensions


@dataclass
class PackedWeights:
    """A model's weights in the order in which the pass reads them; made by `decoding.engines.compiled_weights`."""

    plan: Plan
    layers: Longs  # (layers, LAYER_FIELDS)
    head: Longs  # where its matrix, scales and biases begin
    windows: list[int]  # of each group of layers
    floats: Floats
    bytes: Bytes


def kind_of(name: str) -> tuple[np.dtype[Any], int]:
    """The numbers and the dimensions of an array of a pass."""
    return np.dtype(KINDS.get(name, np.int64)), 2 if name in TABLES else 1


def zeros_on_lines(count: int, dtype: type[Number]) -> NDArray[Number]:
    """An array that begins with a cache line: a vector that spans two lines costs two reads."""
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE, dtype=np.uint8)
    return raw[-raw.ctypes.data % LINE :][:size].view(dtype)


def build_room(plan: Plan, parts: int) -> tuple[Room, int, int]:
    """The room, the size of the scratch, and that of the whole numbers."""
    x_step, inner_step, logits_step = (padded(width, PANEL) for width in (plan.dim, plan.inside, plan.vocab_size))
    qkv_step = padded((plan.heads + 2 * plan.kv_heads) * plan.head_dim, PANEL)
    up_step = inner_step * (2 if plan.activation == SWIGLU else 1)
    steps = (x_step, qkv_step, plan.dim, up_step, inner_step, logits_step)
    x, qkv, mixed, up, inner, logits, own = (sum(steps[:before]) * CHUNK for before in range(7))
    head_step = 2 * plan.head_step + PANEL + padded(plan.context, PANEL)
    own_step = padded(CHUNK * (2 * plan.dim + 1), PANEL) + padded(head_step, 2 * PANEL)
    short_step = padded(max(plan.dim, plan.inside), PAIR)
    room = Room(
        x, x_step, qkv, qkv_step, mixed, up, up_step, inner, inner_step, logits, logits_step, own, own_step, short_step
    )
    return room, own + parts * own_step, parts * CHUNK * short_step


def addresses(plan: Plan, room: Room, arrays: Arrays) -> Longs:
    """All that machine code is told of a pass: the numbers of plan and room, then of each array where it begins and its shape.

    Addresses are good for as long as the arrays are: whoever has these keeps those.
    """
    told = [*plan, *room]
    for name in Arrays._fields:
        array: NDArray[Any] = getattr(arrays, name)
        assert array.flags.c_contiguous and (array.dtype, array.ndim) == kind_of(name), name
        told += [array.ctypes.data, *array.shape]
    return np.array(told, dtype=np.int64)
