"""Causal attention for training on a CPU in float32, by compiled loops: slightly more than half the time of torch's.

Owns: the autograd operation, when it can be used, and running compiled code on torch's own threads: other threads would
compete with those, which keep spinning for a while after each operation. Does not own: the loops
(`training_attention_loops`; they need numba and are not imported if their code is cached), or the mask
(`model.attention_mask`).

B rows, H heads, G key-value heads, T tokens, D head dimension.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lilliput.kernels.code_cache import Kernel
from lilliput.kernels.openmp_waiting import find_openmp_parallel
from lilliput.kernels.registers import PANEL, padded

LOG = logging.getLogger("lilliput")
TILE = 6  # most queries of a tile: sums of more do not fit into the registers of AVX2
BLOCK = 64  # queries per block of the backward pass: their weights and gradients fit into the second-level cache


class AttentionArguments(NamedTuple):
    """Arguments of the compiled loops; a TensorAddress per tensor follows.

    Addresses are of int64 and float32 arrays.
    """

    backward: int
    counter: int  # two counters: the next head, the next thread number
    scratch: int
    scratch_step: int  # floats of one thread
    softmax_stats: int  # (B, H, T, 2): each query's largest score, and 1 / sum of its exponentials
    starts: int  # (B or 1, T): the first key visible to each query
    starts_row: int
    rows: int
    heads: int
    group: int  # query heads per key-value head
    tokens: int
    size: int  # D
    area: int  # floats of the tokens of a head, padded to whole panels
    width: int  # floats of a line of scores


class TensorAddress(NamedTuple):
    """Address of a tensor (B, H or G, T, D) and the strides of its rows, heads and tokens; the stride of D is 1."""

    at: int
    row: int
    head: int
    token: int


def compile_attention() -> tuple[str, bytes]:
    from lilliput.kernels.training_attention_loops import compile_attention

    return compile_attention()


ATTENTION = Kernel("attention", "attention for training", [], compile_attention)


def load_attention(report: Callable[[str], None]) -> None:
    """Load or compile the kernel before the first step; `report` gets messages about a compilation."""
    if find_openmp_parallel() is not None:
        ATTENTION.load(report)


def fits(size: int) -> bool:
    """Return whether the loops support this head dimension: a multiple of PANEL."""
    return size % PANEL == 0


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether the loops support these tensors and torch's threads can be used."""
    return (
        q.device.type == "cpu"
        and q.dtype is k.dtype is v.dtype is torch.float32
        and q.shape[-2] == k.shape[-2]
        and fits(q.shape[-1])
        and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        and not torch.compiler.is_compiling()
        and find_openmp_parallel() is not None
    )


def attend_compiled(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    """Return (B, H, T, D): attention in which the keys from starts[t] (B or 1, T) to t are visible to query t."""
    out: Tensor = Attend.apply(q, k, v, starts)  # type: ignore[no-untyped-call]
    return out


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        out, softmax_stats = empty_like_projection(q), torch.empty(*q.shape[:3], 2)
        run(False, softmax_stats, starts, (q, k, v, out))
        ctx.save_for_backward(q, k, v, starts, out, softmax_stats)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, starts, out, softmax_stats = ctx.saved_tensors
        (d_out,) = gradients
        d_out = d_out if d_out.stride(-1) == 1 else d_out.contiguous()
        d_q, d_k, d_v = empty_like_projection(q), empty_like_projection(k), empty_like_projection(v)
        run(True, softmax_stats, starts, (q, k, v, out, d_out, d_q, d_k, d_v))
        return d_q, d_k, d_v, None


def empty_like_projection(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, D) in which the heads of a token are adjacent, as in the projections."""
    rows, heads, tokens, size = x.shape
    return torch.empty(rows, tokens, heads, size).transpose(1, 2)


def run(backward: bool, softmax_stats: Tensor, starts: Tensor, tensors: tuple[Tensor, ...]) -> None:
    q, k = tensors[:2]
    rows, heads, tokens, size = q.shape
    assert starts.dtype is torch.int64 and starts.is_contiguous() and starts.shape[1] == tokens
    threads = torch.get_num_threads()
    # An odd number of panels per line: lines a power of two apart would map to few sets of the first-level cache.
    area, width = padded(tokens, PANEL) * size, (padded(tokens, PANEL) // PANEL | 1) * PANEL
    thread_floats = 9 * area + 2 * BLOCK * width if backward else 4 * area + TILE * width
    scratch, counter = torch.empty(threads * thread_floats), np.zeros(2, dtype=np.int64)
    args = AttentionArguments(
        backward, counter.ctypes.data, scratch.data_ptr(), thread_floats, softmax_stats.data_ptr(), starts.data_ptr(),
        0 if len(starts) == 1 else tokens, rows, heads, heads // k.shape[1], tokens, size, area, width,
    )  # fmt: skip
    addresses = [TensorAddress(x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)) for x in tensors]
    numbers = np.array([*args, *(number for address in addresses for number in address)], dtype=np.int64)
    find_openmp_parallel()(ATTENTION.load(LOG.warning), numbers.ctypes.data, threads, 0)
