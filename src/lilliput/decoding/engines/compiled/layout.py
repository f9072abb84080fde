"""Where everything stands in the flat arrays of the compiled engine, and how its loops are compiled.

Owns: the names of columns and places, the facts of a net that all layers share, the room for intermediate numbers, and
`compiled`. Does not own: what is put there (`packing`, `slots`) or computed (`kernels`).

N tokens of a pass, C dim, H heads, G heads of keys and values, D dim of a head.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from lilliput.decoding.engines.compiled.tiles import KEYS_TOGETHER, PANEL, STRIDE
from lilliput.devices import cache_folder
from lilliput.model import norms

Function = TypeVar("Function", bound=Callable[..., Any])
Floats = NDArray[np.float32]
Bytes = NDArray[np.int8]
Shorts = NDArray[np.int16]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

CHUNK = 32  # most tokens of one pass

# Columns of the table of layers: where each thing begins in the floats, -1 if there is none. A matrix has three: where it begins
# (whole numbers: in the bytes), its scales, its biases.
SCALE, BIAS = 1, 2
QKV, OUT, UP, DOWN = 0, 3, 6, 9
NORM_1, NORM_2, Q_NORM, K_NORM, MIX, VALUES, VALUE_SHARES = range(12, 19)
GROUP, KEYS = 19, 20  # the group of layers of one window; where the layer's keys, then its values, begin in the memory
LAYER_FIELDS = 21
# Columns of the table of groups: the window, which columns of the table of slots are the group's, and how many slots it has.
WINDOW, COLUMN, SPAN, CAPACITY, GROUP_FIELDS = range(5)
# Places of the control array, a cache line apart: what one thread counts must not slow down who looks at another.
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
    soft_cap: float  # 0: none


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
    # From here on each part has its own: stream (N, C), input (N, C), embedding (N, C), scales (N), and of one head its query,
    # its outcome and its scores (context, and a few beyond).
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
    places: Longs  # (parts, context and a few beyond): where the keys stand that a token sees
    wanted: Longs  # tokens whose logits are wanted


def padded(width: int, unit: int) -> int:
    return -(-width // unit) * unit


def build_room(plan: Plan, parts: int) -> tuple[Room, int, int]:
    """The room, the size of the scratch, and that of the whole numbers."""
    x_step, inner_step, logits_step = (padded(width, PANEL) for width in (plan.dim, plan.inside, plan.vocab_size))
    qkv_step = padded((plan.heads + 2 * plan.kv_heads) * plan.head_dim, PANEL)
    up_step = inner_step * (2 if plan.activation == SWIGLU else 1)
    steps = (x_step, qkv_step, plan.dim, up_step, inner_step, logits_step)
    x, qkv, mixed, up, inner, logits, own = (sum(steps[:before]) * CHUNK for before in range(7))
    own_step = padded(CHUNK * (3 * plan.dim + 1) + 2 * plan.head_step + plan.context + KEYS_TOGETHER, 2 * PANEL)
    short_step = padded(max(plan.dim, plan.inside), STRIDE)
    room = Room(
        x, x_step, qkv, qkv_step, mixed, up, up_step, inner, inner_step, logits, logits_step, own, own_step, short_step
    )
    return room, own + parts * own_step, parts * CHUNK * short_step


def find_cache() -> Path | None:
    """Machine code is kept for these sources and no others: numba itself looks at one file of them only, and, where the folder
    cannot be written, keeps it beside that file."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(norms.__file__)]  # the norms' epsilon is compiled in
    name = hashlib.sha256(b"".join(map(Path.read_bytes, sources))).hexdigest()[:16]
    folder = cache_folder() / "compiled" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


CACHE = find_cache()


def compiled(fast: set[str] | None = None, inline: bool = False) -> Callable[[Function], Function]:
    """Machine code, made at the first call and kept on disk where there is a place for it.

    `fast` are the liberties that LLVM may take with float32.
    """

    def decorate(function: Function) -> Function:
        before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
        numba.config.CACHE_DIR = str(CACHE or before)  # type: ignore[attr-defined]  # is looked at while a function is decorated
        try:
            build = numba.njit(cache=CACHE is not None, nogil=True, fastmath=fast or False, forceinline=inline)
            return cast("Function", build(function))
        finally:
            numba.config.CACHE_DIR = before  # type: ignore[attr-defined]

    return decorate
