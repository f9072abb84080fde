"""Causal attention and its gradients as compiled loops: softmax(q k^T / sqrt(D)) v, head by head.

Owns: the arithmetic, and how it is divided among threads. Does not own: tensors and arguments
(`training_attention`).

The visible keys of a query are those from its first visible key to itself; this covers windows, documents packed in a row
and padding (if the first key is after the query, no key is visible and the output is zero). Scores are computed for a few
queries and whole panels of keys at a time, so that they stay in the L1 or L2 cache; panels without visible keys are
skipped. The backward pass recomputes the weights from the scores, their maximum and the sum of exponentials (Dao et al.
2022, section 3.1), for BLOCK queries at a time.

One thread computes all of a head of a row, so results do not depend on the number of threads.

B rows, H heads, G key-value heads, T tokens, D head dimension.
"""

# Numba infers the types of compiled functions from their calls: flat arrays, and integers for offsets and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from lilliput.kernels.arithmetic import ANY_ORDER, FUSED, ONE, ZERO
from lilliput.kernels.attention_score_rows import exponentiate_row, softmax_gradient_row
from lilliput.kernels.calling_convention import array_reader, c_function, tuple_reader
from lilliput.kernels.dropout_loops import drop_line, keep_scale, line_key
from lilliput.kernels.registers import PANEL
from lilliput.kernels.tiles import LONG, add_atomically, compiled, float_tile
from lilliput.kernels.training_attention import BLOCK, TILE, AttentionArguments, TensorAddress

NAME = "lilliput_attention"
# Index of each tensor's TensorAddress among the numbers.
Q, K, V, OUT, D_OUT, D_Q, D_K, D_V = (
    len(AttentionArguments._fields) + tensor * len(TensorAddress._fields) for tensor in range(8)
)


read_arguments, read_tensor = tuple_reader(AttentionArguments), tuple_reader(TensorAddress)
floats_at, longs_at = array_reader(types.float32, ir.FloatType()), array_reader(types.int64, LONG)


def tile_over_panels(tile: Any) -> Any:
    """Return a product of a tile's rows with any number of panels."""

    @compiled()
    def multiply(rows, panels, x, x_at, x_row, x_step, w, w_at, w_panel, w_step, depth, out, out_at, out_row):
        for panel in range(panels):
            here, to = w_at + panel * w_panel, out_at + panel * PANEL
            tile(rows, x, x_at, x_row, x_step, w, here, w_panel, w_step, depth, out, to, out_row)

    return multiply


multiply_panels, add_product = tile_over_panels(float_tile(TILE, 1)), tile_over_panels(float_tile(TILE, 1, adds=True))


@compiled()
def gather_head(args, tensor, row, head, scratch, to):
    """Copy the tokens (T, D) of a head to contiguous memory: in the tensor each token may be on another memory page."""
    x, at, size = floats_at(tensor.at), row * tensor.row + head * tensor.head, args.size
    for token in range(args.tokens):
        numbers, target = x[at + token * tensor.token :][:size], scratch[to + token * size :][:size]
        for k in range(size):
            target[k] = numbers[k]


@compiled()
def scatter_head(args, tensor, row, head, scratch, at):
    """Copy contiguous tokens (T, D) to a head of a tensor."""
    out, to, size = floats_at(tensor.at), row * tensor.row + head * tensor.head, args.size
    for token in range(args.tokens):
        numbers, target = scratch[at + token * size :][:size], out[to + token * tensor.token :][:size]
        for k in range(size):
            target[k] = numbers[k]


@compiled()
def pack_panels(args, scratch, at, to):
    """Write tokens (T, D) as panels of PANEL tokens, each (D, PANEL), padded with zeros."""
    for token in range((args.tokens + PANEL - 1) // PANEL * PANEL):
        first = to + token // PANEL * PANEL * args.size + token % PANEL
        numbers = scratch[at + token * args.size :][: args.size]
        for k in range(args.size):
            scratch[first + k * PANEL] = numbers[k] if token < args.tokens else ZERO


@compiled()
def clear(x, first, last):
    numbers = x[first:last]
    for k in range(len(numbers)):
        numbers[k] = ZERO


@compiled()
def scale_row(x, at, size, factor):
    numbers = x[at : at + size]
    for k in range(size):
        numbers[k] *= factor


@compiled(ANY_ORDER)
def multiply_rows(x, one, two, size):
    left, right, total = x[one : one + size], x[two : two + size], ZERO
    for k in range(size):
        total += left[k] * right[k]
    return total


@compiled()
def find_panels(starts, first, last):
    """Return the range of key panels visible to the queries from `first` to `last` (exclusive); at least one panel."""
    oldest = last - 1
    for token in range(first, last):
        oldest = min(oldest, starts[token])
    return oldest // PANEL, (last + PANEL - 1) // PANEL


@compiled()
def score(args, x, rows, panels, at, packed, to):
    """Write lines of scores: products of the tokens at `at` with the tokens of packed panels."""
    size = args.size
    multiply_panels(rows, panels, x, at, size, 1, x, packed, PANEL * size, PANEL, size, x, to, args.width)


@compiled()
def weighted_sum(args, x, rows, at, depth, tokens, to):
    """Write lines of weights times tokens."""
    multiply_panels(
        rows, args.size // PANEL, x, at, args.width, 1, x, tokens, PANEL, args.size, depth, x, to, args.size
    )


@compiled()
def add_transposed_product(args, x, block, block_begin, ends, lines, tokens, to):
    """Add, for each key, the tokens of a block's queries weighted by the key's column of the block's lines."""
    size, width = args.size, args.width
    for key in range(block_begin, ends, TILE):
        rows, token = min(TILE, ends - key), max(block, key)  # a key is not visible to earlier queries
        at, seen, depth = lines + (token - block) * width + key, tokens + token * size, ends - token
        add_product(rows, size // PANEL, x, at, 1, width, x, seen, PANEL, size, depth, x, to + key * size, size)


@compiled()
def drop_weights(args, x, at, panel, after, query):
    """Apply dropout to a line of weights, or of their gradients; `query` counts all queries of all heads and rows."""
    if args.mask_threshold:
        key, scale = line_key(args.mask_seed, query), keep_scale(args.mask_threshold)
        drop_line(x, at, x, at, panel, after, key, args.mask_threshold, scale)


@compiled(FUSED)
def forward(args, thread_area, q, k, v, out):
    """Compute heads of rows until none is left; the threads share a counter."""
    x, softmax_stats, counter = floats_at(args.scratch), floats_at(args.softmax_stats), longs_at(args.counter)
    size, width, area, scale = args.size, args.width, args.area, np.float32(1.0 / math.sqrt(args.size))
    queries, keys, values, packed, scores = (
        thread_area,
        thread_area + area,
        thread_area + 2 * area,
        thread_area + 3 * area,
        thread_area + 4 * area,
    )
    outputs = queries  # a query is no longer needed once its output is known
    while True:
        item = add_atomically(counter, 0, 1)
        if item >= args.rows * args.heads:
            break
        row, head, stats_at = item // args.heads, item % args.heads, 2 * item * args.tokens
        starts = longs_at(args.starts + 8 * row * args.starts_row)
        gather_head(args, q, row, head, x, queries)
        gather_head(args, k, row, head // args.group, x, keys)
        gather_head(args, v, row, head // args.group, x, values)
        pack_panels(args, x, keys, packed)
        for first in range(0, args.tokens, TILE):
            last = min(first + TILE, args.tokens)
            begin, end = find_panels(starts, first, last)
            oldest = begin * PANEL
            score(args, x, last - first, end - begin, queries + first * size, packed + oldest * size, scores + oldest)
            for token in range(first, last):
                line, start, query_stats = scores + (token - first) * width, starts[token], stats_at + 2 * token
                if start > token:
                    clear(x, line + oldest, line + last)
                    softmax_stats[query_stats], softmax_stats[query_stats + 1] = ZERO, ONE
                    continue
                panel, after = start // PANEL, token // PANEL + 1
                exponentiate_row(x, line, panel, after, start, token, scale, softmax_stats, query_stats)
                softmax_stats[query_stats + 1] = ONE / softmax_stats[query_stats + 1]
                drop_weights(args, x, line, panel, after, query_stats // 2)
                clear(x, line + oldest, line + panel * PANEL)
                clear(x, line + after * PANEL, line + last)
            weighted_sum(
                args, x, last - first, scores + oldest, last - oldest, values + oldest * size, outputs + first * size
            )
            for token in range(first, last):
                scale_row(x, outputs + token * size, size, softmax_stats[stats_at + 2 * token + 1])
        scatter_head(args, out, row, head, x, outputs)


@compiled(FUSED)
def backward(args, thread_area, q, k, v, out, d_out, d_q, d_k, d_v):
    """Compute gradients, one key-value head of a row with all query heads that share it at a time."""
    x, softmax_stats, counter = floats_at(args.scratch), floats_at(args.softmax_stats), longs_at(args.counter)
    size, width, area, scale = args.size, args.width, args.area, np.float32(1.0 / math.sqrt(args.size))
    queries, keys, values, outputs, d_outputs = (
        thread_area,
        thread_area + area,
        thread_area + 2 * area,
        thread_area + 3 * area,
        thread_area + 4 * area,
    )
    packed_keys, packed_values, d_keys, d_values = (
        thread_area + 5 * area,
        thread_area + 6 * area,
        thread_area + 7 * area,
        thread_area + 8 * area,
    )
    weights, gradients = thread_area + 9 * area, thread_area + 9 * area + BLOCK * width
    d_queries = outputs  # an output is no longer needed once the gradients of its scores are known
    kv_heads = args.heads // args.group
    while True:
        item = add_atomically(counter, 0, 1)
        if item >= args.rows * kv_heads:
            break
        row, shared = item // kv_heads, item % kv_heads
        starts = longs_at(args.starts + 8 * row * args.starts_row)
        gather_head(args, k, row, shared, x, keys)
        gather_head(args, v, row, shared, x, values)
        pack_panels(args, x, keys, packed_keys)
        pack_panels(args, x, values, packed_values)
        clear(x, d_keys, d_values + area)
        for head in range(shared * args.group, (shared + 1) * args.group):
            stats_at = 2 * (row * args.heads + head) * args.tokens
            gather_head(args, q, row, head, x, queries)
            gather_head(args, out, row, head, x, outputs)
            gather_head(args, d_out, row, head, x, d_outputs)
            for block in range(0, args.tokens, BLOCK):
                ends = min(block + BLOCK, args.tokens)
                block_begin = find_panels(starts, block, ends)[0] * PANEL
                for first in range(block, ends, TILE):
                    last = min(first + TILE, ends)
                    begin, end = find_panels(starts, first, last)
                    oldest, line, at = begin * PANEL, (first - block) * width, first * size
                    seen, panels = oldest * size, end - begin
                    score(args, x, last - first, panels, queries + at, packed_keys + seen, weights + line + oldest)
                    score(
                        args, x, last - first, panels, d_outputs + at, packed_values + seen, gradients + line + oldest
                    )
                    for token in range(first, last):
                        start, query_stats, line = starts[token], stats_at + 2 * token, (token - block) * width
                        weight_row, gradient_row = weights + line, gradients + line
                        panel, after = min(start, ends) // PANEL, token // PANEL + 1
                        if start <= token:
                            mean = multiply_rows(x, d_outputs + token * size, outputs + token * size, size)
                            drop_weights(args, x, gradient_row, panel, after, query_stats // 2)
                            peak, inverse_sum = softmax_stats[query_stats], softmax_stats[query_stats + 1]
                            softmax_gradient_row(
                                x, weight_row, gradient_row, panel, after, start, token, scale, peak, inverse_sum, mean
                            )
                            drop_weights(args, x, weight_row, panel, after, query_stats // 2)
                        else:
                            after = panel
                        for here in (weight_row, gradient_row):
                            clear(x, here + block_begin, here + panel * PANEL)
                            clear(x, here + after * PANEL, here + ends)
                    line = gradients + (first - block) * width + oldest
                    weighted_sum(args, x, last - first, line, last - oldest, keys + seen, d_queries + at)
                add_transposed_product(args, x, block, block_begin, ends, weights, d_outputs, d_values)
                add_transposed_product(args, x, block, block_begin, ends, gradients, queries, d_keys)
            scatter_head(args, d_q, row, head, x, d_queries)
        scatter_head(args, d_k, row, shared, x, d_keys)
        scatter_head(args, d_v, row, shared, x, d_values)


def run_attention(numbers):
    """Compute one forward or backward pass; every OpenMP thread calls this with the same numbers."""
    args = read_arguments(numbers, 0)
    thread_area = add_atomically(longs_at(args.counter), 1, 1) * args.scratch_step
    q, k, v, out = read_tensor(numbers, Q), read_tensor(numbers, K), read_tensor(numbers, V), read_tensor(numbers, OUT)
    if args.backward:
        d_out, d_q = read_tensor(numbers, D_OUT), read_tensor(numbers, D_Q)
        d_k, d_v = read_tensor(numbers, D_K), read_tensor(numbers, D_V)
        backward(args, thread_area, q, k, v, out, d_out, d_q, d_k, d_v)
    else:
        forward(args, thread_area, q, k, v, out)


def compile_attention() -> tuple[str, bytes]:
    return c_function(NAME, run_attention)
