"""Layout of the flat arrays of the compiled engine.

Owns: names of columns and indices, the properties of a model that all layers share, the layout of the scratch memory, and
the array of numbers that passes all of it to compiled code. Does not own: the contents
(`decoding.engines.compiled_weights`, `key_value_slots`) or the computation (`loops`). Imports no numba, so that cached code
runs without it.

N tokens of a pass, C dim, H heads, G key-value heads, D head dimension.
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
KEYS_PER_STEP = 8  # keys that attention scores at a time
NORM_EPSILON = 1e-5  # of LayerNorm and RMSNorm, also in training (`model.norms`): the value is compiled into the pass
UNBIASED_EPSILON = 1e-6  # of the LayerNorm with the unbiased standard deviation; added to the deviation
KEYS_AHEAD = 16  # prefetch distance of keys; a multiple of KEYS_PER_STEP

# Columns of the table of layers: offsets in the floats, -1 if absent. A matrix has three: its weights (int8: offset
# in the bytes), its scales, its biases.
SCALE, BIAS = 1, 2
QKV, OUT, UP, DOWN = 0, 3, 6, 9
NORM_1, NORM_2, Q_NORM, K_NORM, VALUES, VALUE_SHARES = range(12, 18)
GROUP, KEYS = 18, 19  # the group of layers with the same window; offset of keys, then values, in the memory
LAYER_FIELDS = 20
# Columns of the table of groups: window, first column and number of columns in the table of slots, number of slots.
WINDOW, COLUMN, SPAN, CAPACITY, GROUP_FIELDS = range(5)
# Indices of the control array, a cache line apart to avoid false sharing.
ANNOUNCE = -1  # instead of a thread number: begin a round
ARRIVED, PHASE, ROUND, ASLEEP, LEAVE, CLOSED, TOKENS, WANTED, CONTROL = range(0, 72, 8)

NO_NORM, LAYER_NORM, UNBIASED_LAYER_NORM, RMS_NORM = range(4)
RELU, GELU, RELU2, SWIGLU = range(4)


class Plan(NamedTuple):
    """The properties of a model that all layers share, and offsets in the floats (-1 if absent)."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    head_step: int  # stride in the memory: head_dim padded with zeros to whole vectors
    inside: int  # width of the feed-forward after its activation
    layers: int
    vocab_size: int
    context: int
    norm: int
    post: int  # 1: norms after the residual sum
    activation: int
    quantised: int  # 1: matrices are int8
    embedding: int
    positions: int
    cosines: int
    sines: int
    final_norm: int
    soft_cap: int


class ScratchLayout(NamedTuple):
    """Offsets of intermediate results in the scratch memory, and the strides of their rows (`_step`)."""

    x: int  # (N, C) the residual stream
    x_step: int
    qkv: int  # (N, (H + 2G) D)
    qkv_step: int
    mixed: int  # (N, H D) the output of attention
    up: int  # (N, inside), twice as wide if gated
    up_step: int
    inner: int  # (N, inside) after the activation
    inner_step: int
    logits: int  # (N, V)
    logits_step: int
    # Each thread has its own area: stream (N, C), normed input (N, C), scales (N), and for one head its query, its output,
    # the maximum and the sum of its softmax, and its scores (context, padded).
    thread_area: int
    thread_step: int
    int16_step: int  # stride of a row of int16


class Arrays(NamedTuple):
    """All arrays that a pass reads and writes. Arrays that grow are replaced between passes."""

    control: Longs
    layers: Longs  # (layers, LAYER_FIELDS)
    head: Longs  # the three columns of the output matrix
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
    slots: Longs  # (groups, N): slots of the new keys and values
    list_begins: Longs  # (groups, N): where each token's list begins in key_offsets
    key_offsets: Longs  # (groups, N context, padded): offsets of the keys visible to each token
    wanted: Longs  # tokens whose logits are returned


# Compiled code gets addresses only and cannot check types: `addresses` compares each array with these tables.
DTYPES = {
    "floats": np.float32,
    "bytes": np.int8,
    "scratch": np.float32,
    "shorts": np.int16,
    "memory": np.float32,
    "table": np.int32,
}  # all others are int64
TABLES = ("layers", "groups", "table", "slots", "list_begins", "key_offsets")  # arrays of two dimensions


@dataclass
class PackedWeights:
    """A model's weights in the order in which the pass reads them; built by `decoding.engines.compiled_weights`."""

    plan: Plan
    layers: Longs  # (layers, LAYER_FIELDS)
    head: Longs  # offsets of its matrix, scales and biases
    windows: list[int]  # of each group of layers
    floats: Floats
    bytes: Bytes


def array_type(name: str) -> tuple[np.dtype[Any], int]:
    """Return the dtype and the number of dimensions of an array of a pass."""
    return np.dtype(DTYPES.get(name, np.int64)), 2 if name in TABLES else 1


def zeros_on_lines(count: int, dtype: type[Number]) -> NDArray[Number]:
    """Return zeros that begin at a cache line: a vector that spans two lines costs two reads."""
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + LINE, dtype=np.uint8)
    return raw[-raw.ctypes.data % LINE :][:size].view(dtype)


def build_scratch_layout(plan: Plan, threads: int) -> tuple[ScratchLayout, int, int]:
    """Return the layout, the floats of the scratch memory, and the number of int16 values."""
    x_step, inner_step, logits_step = (padded(width, PANEL) for width in (plan.dim, plan.inside, plan.vocab_size))
    qkv_step = padded((plan.heads + 2 * plan.kv_heads) * plan.head_dim, PANEL)
    up_step = inner_step * (2 if plan.activation == SWIGLU else 1)
    mixed_step = plan.heads * plan.head_dim
    steps = (x_step, qkv_step, mixed_step, up_step, inner_step, logits_step)
    x, qkv, mixed, up, inner, logits, thread_area = (sum(steps[:before]) * CHUNK for before in range(7))
    head_step = 2 * plan.head_step + PANEL + padded(plan.context, PANEL)
    thread_step = padded(CHUNK * (2 * plan.dim + 1), PANEL) + padded(head_step, 2 * PANEL)
    int16_step = padded(max(plan.dim, mixed_step, plan.inside), PAIR)
    layout = ScratchLayout(
        x,
        x_step,
        qkv,
        qkv_step,
        mixed,
        up,
        up_step,
        inner,
        inner_step,
        logits,
        logits_step,
        thread_area,
        thread_step,
        int16_step,
    )
    return layout, thread_area + threads * thread_step, threads * CHUNK * int16_step


def addresses(plan: Plan, layout: ScratchLayout, arrays: Arrays) -> Longs:
    """Return the arguments of compiled code: plan, layout, then the address and the shape of each array.

    The addresses are valid only while the arrays exist: the caller must keep the arrays.
    """
    numbers = [*plan, *layout]
    for name in Arrays._fields:
        array: NDArray[Any] = getattr(arrays, name)
        assert array.flags.c_contiguous and (array.dtype, array.ndim) == array_type(name), name
        numbers += [array.ctypes.data, *array.shape]
    return np.array(numbers, dtype=np.int64)
