"""Attention of a causal net and its gradients, as compiled loops: softmax(q k^T / sqrt(D)) v, head by head.

Owns: the arithmetic, and how it is divided among threads. Does not own: tensors and what is asked of them
(`training_attention`).

A query sees the keys from its own first one to itself, which says all of windows, documents in a row and
padding (a first key behind the query: it sees none, and gets zeros). Scores are made for a few queries and
whole panels of keys at a time, and never leave the nearest caches; panels that no query of a tile sees are
left out. The backward pass makes the weights again from the scores, their largest and the sum of their shares
(as Dao et al. 2022, section 3.1), for BLOCK queries at a time.

Every head of a row is computed by one thread from its begin to its end, so that outcomes do not depend on the
number of threads.

B rows, H heads, G heads of keys and values, T tokens, D dim of a head.
"""

# Compiled functions have the types that they are called with: flat arrays, and whole numbers for places and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from lilliput.kernels.arithmetic import ANY_ORDER, FUSED, ONE, ZERO
from lilliput.kernels.calling_convention import array_of, c_function, numbers_as
from lilliput.kernels.registers import PANEL
from lilliput.kernels.score_rows import share_row, slope_row
from lilliput.kernels.tiles import LONG, add_atomically, compiled, float_tile
from lilliput.kernels.training_attention import BLOCK, TILE, AttentionArguments, Place

NAME = "lilliput_attention"
# Where the tensors' places stand among the numbers.
Q, K, V, OUT, D_OUT, D_Q, D_K, D_V = (
    len(AttentionArguments._fields) + tensor * len(Place._fields) for tensor in range(8)
)


read_asked, read_place = numbers_as(AttentionArguments), numbers_as(Place)
floats_at, longs_at = array_of(types.float32, ir.FloatType()), array_of(types.int64, LONG)


def over_panels(tile: Any) -> Any:
    """The product of a tile's rows with any number of panels."""

    @compiled()
    def multiply(rows, panels, x, x_at, x_row, x_step, w, w_at, w_panel, w_step, depth, out, out_at, out_row):
        for panel in range(panels):
            here, to = w_at + panel * w_panel, out_at + panel * PANEL
            tile(rows, x, x_at, x_row, x_step, w, here, w_panel, w_step, depth, out, to, out_row)

    return multiply


put, add = over_panels(float_tile(TILE, 1)), over_panels(float_tile(TILE, 1, adds=True))


@compiled()
def take(asked, place, row, head, scratch, to):
    """The tokens (T, D) of a head, next to each other: where they stand, each may be in a page of memory of its own."""
    x, at, size = floats_at(place.at), row * place.row + head * place.head, asked.size
    for token in range(asked.tokens):
        numbers, taken = x[at + token * place.token :][:size], scratch[to + token * size :][:size]
        for k in range(size):
            taken[k] = numbers[k]


@compiled()
def give(asked, place, row, head, scratch, at):
    """Tokens (T, D) to where they are wanted."""
    out, to, size = floats_at(place.at), row * place.row + head * place.head, asked.size
    for token in range(asked.tokens):
        numbers, given = scratch[at + token * size :][:size], out[to + token * place.token :][:size]
        for k in range(size):
            given[k] = numbers[k]


@compiled()
def turn(asked, scratch, at, to):
    """Tokens (T, D) as panels of PANEL tokens, each (D, PANEL), filled up with zeros."""
    for token in range((asked.tokens + PANEL - 1) // PANEL * PANEL):
        first = to + token // PANEL * PANEL * asked.size + token % PANEL
        numbers = scratch[at + token * asked.size :][: asked.size]
        for k in range(asked.size):
            scratch[first + k * PANEL] = numbers[k] if token < asked.tokens else ZERO


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
    """The panels of keys, from the first to the last, that the queries from the first to the last see; at least one."""
    oldest = last - 1
    for token in range(first, last):
        oldest = min(oldest, starts[token])
    return oldest // PANEL, (last + PANEL - 1) // PANEL


@compiled()
def score(asked, x, rows, panels, at, turned, to):
    """Products of tokens, which begin at `at`, with the tokens of turned panels: lines of scores."""
    size = asked.size
    put(rows, panels, x, at, size, 1, x, turned, PANEL * size, PANEL, size, x, to, asked.width)


@compiled()
def mix(asked, x, rows, at, depth, tokens, to):
    """Lines of weights times tokens: tokens."""
    put(rows, asked.size // PANEL, x, at, asked.width, 1, x, tokens, PANEL, asked.size, depth, x, to, asked.size)


@compiled()
def add_columns(asked, x, block, furthest, ends, lines, tokens, to):
    """Columns of the lines of a block's queries, times tokens of its queries, added to tokens of keys."""
    size, width = asked.size, asked.width
    for key in range(furthest, ends, TILE):
        rows, token = min(TILE, ends - key), max(block, key)  # queries before a key do not see it
        at, seen, depth = lines + (token - block) * width + key, tokens + token * size, ends - token
        add(rows, size // PANEL, x, at, 1, width, x, seen, PANEL, size, depth, x, to + key * size, size)


@compiled(FUSED)
def forward(asked, own, q, k, v, out):
    """One head of one row after the other, as long as there are any."""
    x, levels, counter = floats_at(asked.scratch), floats_at(asked.levels), longs_at(asked.counter)
    size, width, area, scale = asked.size, asked.width, asked.area, np.float32(1.0 / math.sqrt(asked.size))
    queries, keys, values, turned, scores = own, own + area, own + 2 * area, own + 3 * area, own + 4 * area
    mixed = queries  # a query is not needed once it has its outcome
    while True:
        item = add_atomically(counter, 0, 1)
        if item >= asked.rows * asked.heads:
            break
        row, head, level = item // asked.heads, item % asked.heads, 2 * item * asked.tokens
        starts = longs_at(asked.starts + 8 * row * asked.starts_row)
        take(asked, q, row, head, x, queries)
        take(asked, k, row, head // asked.group, x, keys)
        take(asked, v, row, head // asked.group, x, values)
        turn(asked, x, keys, turned)
        for first in range(0, asked.tokens, TILE):
            last = min(first + TILE, asked.tokens)
            begin, end = find_panels(starts, first, last)
            oldest = begin * PANEL
            score(asked, x, last - first, end - begin, queries + first * size, turned + oldest * size, scores + oldest)
            for token in range(first, last):
                line, start, told = scores + (token - first) * width, starts[token], level + 2 * token
                if start > token:
                    clear(x, line + oldest, line + last)
                    levels[told], levels[told + 1] = ZERO, ONE
                    continue
                panel, after = start // PANEL, token // PANEL + 1
                share_row(x, line, panel, after, start, token, scale, levels, told)
                levels[told + 1] = ONE / levels[told + 1]
                clear(x, line + oldest, line + panel * PANEL)
                clear(x, line + after * PANEL, line + last)
            mix(asked, x, last - first, scores + oldest, last - oldest, values + oldest * size, mixed + first * size)
            for token in range(first, last):
                scale_row(x, mixed + token * size, size, levels[level + 2 * token + 1])
        give(asked, out, row, head, x, mixed)


@compiled(FUSED)
def backward(asked, own, q, k, v, out, d_out, d_q, d_k, d_v):
    """One head of keys and values of one row after the other, with all heads of queries that share it."""
    x, levels, counter = floats_at(asked.scratch), floats_at(asked.levels), longs_at(asked.counter)
    size, width, area, scale = asked.size, asked.width, asked.area, np.float32(1.0 / math.sqrt(asked.size))
    queries, keys, values, mixed, given = own, own + area, own + 2 * area, own + 3 * area, own + 4 * area
    turned_keys, turned_values, to_keys, to_values = own + 5 * area, own + 6 * area, own + 7 * area, own + 8 * area
    weights, slopes = own + 9 * area, own + 9 * area + BLOCK * width
    to_queries = mixed  # an outcome is not needed once its query has its slopes
    kv_heads = asked.heads // asked.group
    while True:
        item = add_atomically(counter, 0, 1)
        if item >= asked.rows * kv_heads:
            break
        row, shared = item // kv_heads, item % kv_heads
        starts = longs_at(asked.starts + 8 * row * asked.starts_row)
        take(asked, k, row, shared, x, keys)
        take(asked, v, row, shared, x, values)
        turn(asked, x, keys, turned_keys)
        turn(asked, x, values, turned_values)
        clear(x, to_keys, to_values + area)
        for head in range(shared * asked.group, (shared + 1) * asked.group):
            level = 2 * (row * asked.heads + head) * asked.tokens
            take(asked, q, row, head, x, queries)
            take(asked, out, row, head, x, mixed)
            take(asked, d_out, row, head, x, given)
            for block in range(0, asked.tokens, BLOCK):
                ends = min(block + BLOCK, asked.tokens)
                furthest = find_panels(starts, block, ends)[0] * PANEL
                for first in range(block, ends, TILE):
                    last = min(first + TILE, ends)
                    begin, end = find_panels(starts, first, last)
                    oldest, line, at = begin * PANEL, (first - block) * width, first * size
                    seen, panels = oldest * size, end - begin
                    score(asked, x, last - first, panels, queries + at, turned_keys + seen, weights + line + oldest)
                    score(asked, x, last - first, panels, given + at, turned_values + seen, slopes + line + oldest)
                    for token in range(first, last):
                        start, told, line = starts[token], level + 2 * token, (token - block) * width
                        weight, slope = weights + line, slopes + line
                        panel, after = min(start, ends) // PANEL, token // PANEL + 1
                        if start <= token:
                            mean = multiply_rows(x, given + token * size, mixed + token * size, size)
                            peak, share = levels[told], levels[told + 1]
                            slope_row(x, weight, slope, panel, after, start, token, scale, peak, share, mean)
                        else:
                            after = panel
                        for here in (weight, slope):
                            clear(x, here + furthest, here + panel * PANEL)
                            clear(x, here + after * PANEL, here + ends)
                    line = slopes + (first - block) * width + oldest
                    mix(asked, x, last - first, line, last - oldest, keys + seen, to_queries + at)
                add_columns(asked, x, block, furthest, ends, weights, given, to_values)
                add_columns(asked, x, block, furthest, ends, slopes, queries, to_keys)
            give(asked, d_q, row, head, x, to_queries)
        give(asked, d_k, row, shared, x, to_keys)
        give(asked, d_v, row, shared, x, to_values)


def enter(numbers):
    """What `attention` asks for, by as many threads as call this at once."""
    asked = read_asked(numbers, 0)
    own = add_atomically(longs_at(asked.counter), 1, 1) * asked.scratch_step
    q, k, v, out = read_place(numbers, Q), read_place(numbers, K), read_place(numbers, V), read_place(numbers, OUT)
    if asked.backward:
        d_out, d_q = read_place(numbers, D_OUT), read_place(numbers, D_Q)
        d_k, d_v = read_place(numbers, D_K), read_place(numbers, D_V)
        backward(asked, own, q, k, v, out, d_out, d_q, d_k, d_v)
    else:
        forward(asked, own, q, k, v, out)


def compile_attention() -> tuple[str, bytes]:
    return c_function(NAME, enter)
