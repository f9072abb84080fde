"""Attention of a causal net on a CPU in float32, by compiled loops: little more than half the time of torch's own.

Owns: the operation for autograd, when it can be taken, and running machine code on torch's own threads. Does
not own: the loops (`training_attention_loops`, which need numba and are not imported where their code is
kept), or who sees whom (`model.attention`).

B rows, H heads, G heads of keys and values, T tokens, D dim of a head.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lilliput.kernels.code_cache import Kernel
from lilliput.kernels.registers import PANEL, padded

LOG = logging.getLogger("lilliput")
TILE = 6  # most queries of a tile: the sums of more would not fit into the registers of AVX2
BLOCK = 64  # queries whose weights and slopes are held at a time, in the backward pass: they stay in the second cache


class AttentionArguments(NamedTuple):
    """What the compiled loops are told; the tensors' places follow it. Addresses are of int64 and float32 arrays."""

    backward: int
    counter: int  # two numbers: heads that were taken, threads that have come
    scratch: int
    scratch_step: int  # floats of one thread
    levels: int  # (B, H, T, 2): each query's largest score, and one over the sum of its shares
    starts: int  # (B or 1, T): the first key that each query sees
    starts_row: int
    rows: int
    heads: int
    group: int  # heads of queries that share one of keys
    tokens: int
    size: int  # D
    area: int  # floats of the tokens of a head, filled up to whole panels
    width: int  # floats of a line of scores


class Place(NamedTuple):
    """Where a tensor (B, H or G, T, D) begins, and how far apart its rows, heads and tokens are; D is next to each other."""

    at: int
    row: int
    head: int
    token: int


def compile_attention() -> tuple[str, bytes]:
    from lilliput.kernels.training_attention_loops import compile_attention

    return compile_attention()


ATTENTION = Kernel("attention", "attention for training", [], compile_attention)


def load_attention(tell: Callable[[str], None]) -> None:
    """Before the first step, so that a compilation, which takes a while, is told of."""
    if find_threads() is not None:
        ATTENTION.load(tell)


@cache
def find_threads() -> Any:
    """The function by which torch's own threads are given work, in the OpenMP library that came with it; None: not found.

    Threads of our own would wait for torch's, which stay awake for a while after each of its operations.
    """
    for name in ("libgomp*", "libiomp5*", "libomp*"):
        for path in sorted(Path(torch.__file__).parent.joinpath("lib").glob(name)):
            try:
                found = ctypes.CDLL(str(path)).GOMP_parallel
            except (OSError, AttributeError):
                continue
            found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
            return found
    return None


def fits(size: int) -> bool:
    """Whether the loops can take heads of this dim: whole panels."""
    return size % PANEL == 0


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the loops are for these, and there are threads to run them."""
    return (
        q.device.type == "cpu"
        and q.dtype is k.dtype is v.dtype is torch.float32
        and q.shape[-2] == k.shape[-2]
        and fits(q.shape[-1])
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        and not torch.compiler.is_compiling()
        and find_threads() is not None
    )


def attend_compiled(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """(B, H, T, D): each query t sees the keys from `starts` (B or 1, T) to itself."""
    out: Tensor = Attend.apply(q, k, v, starts)  # type: ignore[no-untyped-call]
    return out


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        out, levels = empty_like_projection(q), torch.empty(*q.shape[:3], 2)
        run(False, levels, starts, (q, k, v, out))
        ctx.save_for_backward(q, k, v, starts, out, levels)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, starts, out, levels = ctx.saved_tensors
        (d_out,) = gradients
        d_out = d_out if d_out.stride(-1) == 1 else d_out.contiguous()
        d_q, d_k, d_v = empty_like_projection(q), empty_like_projection(k), empty_like_projection(v)
        run(True, levels, starts, (q, k, v, out, d_out, d_q, d_k, d_v))
        return d_q, d_k, d_v, None


def empty_like_projection(x: Tensor) -> Tensor:
    """(B, H, T, D) with all heads of a token next to each other, as the projections before and after have them."""
    rows, heads, tokens, size = x.shape
    return torch.empty(rows, tokens, heads, size).transpose(1, 2)


def run(backward: bool, levels: Tensor, starts: Tensor, tensors: tuple[Tensor, ...]) -> None:
    q, k = tensors[:2]
    rows, heads, tokens, size = q.shape
    assert starts.dtype is torch.int64 and starts.is_contiguous() and starts.shape[1] == tokens
    threads = torch.get_num_threads()
    # An odd number of panels in a line: lines that are a power of two apart would share few places of the nearest cache.
    area, width = padded(tokens, PANEL) * size, (padded(tokens, PANEL) // PANEL | 1) * PANEL
    own = 9 * area + 2 * BLOCK * width if backward else 4 * area + TILE * width
    scratch, counter = torch.empty(threads * own), np.zeros(2, dtype=np.int64)
    asked = AttentionArguments(
        backward, counter.ctypes.data, scratch.data_ptr(), own, levels.data_ptr(), starts.data_ptr(),
        0 if len(starts) == 1 else tokens, rows, heads, heads // k.shape[1], tokens, size, area, width,
    )  # fmt: skip
    places = [Place(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)) for x in tensors]
    numbers = np.array([*asked, *(number for place in places for number in place)], dtype=np.int64)
    find_threads()(ATTENTION.load(LOG.warning), numbers.ctypes.data, threads, 0)
