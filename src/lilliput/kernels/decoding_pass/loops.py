"""One pass of a net over a few tokens, as compiled loops over flat arrays: every member of the family, one compilation.

Owns: the order of the pass, attention, and what each thread does of it. Does not own: the arithmetic of rows
(`products`), where weights stand (`decoding.engines.compiled_weights`), which slot a token's keys and values
have (`key_value_slots`), or the threads (`thread_team`).

All threads run `compute`, each with a `part` of its own. What is cheap each computes for itself (the residual
stream, norms), so that they meet six times a layer and no more. Matrices are divided by panels of outputs,
attention by tokens and heads. The outcome is the same for any number of threads.

N tokens of the pass, C dim.
"""

# Compiled functions have the types that they are called with: flat arrays, and whole numbers for places and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

import math

import numpy as np

from lilliput.kernels.arithmetic import FUSED, ONE
from lilliput.kernels.decoding_pass.attention_tiles import (
    score_keys,
    values_1,
    values_2,
    values_4,
    values_6,
    values_8,
)
from lilliput.kernels.decoding_pass.layout import (
    CAPACITY,
    CHUNK,
    COLUMN,
    DOWN,
    GROUP,
    K_NORM,
    KEYS,
    KEYS_TOGETHER,
    NO_NORM,
    NORM_1,
    NORM_2,
    OUT,
    Q_NORM,
    QKV,
    RMS_NORM,
    SPAN,
    SWIGLU,
    TOKENS,
    UP,
    VALUE_SHARES,
    VALUES,
    WANTED,
    WINDOW,
)
from lilliput.kernels.decoding_pass.products import activate, bound, multiply, normalise
from lilliput.kernels.decoding_pass.thread_barrier import await_round, share, take_part, wait_for_all
from lilliput.kernels.registers import LANES, PANEL
from lilliput.kernels.score_rows import share_row
from lilliput.kernels.tiles import compiled


@compiled(FUSED)
def begin(plan, arrays, tokens, to):
    """Embeddings and positions (N, C)."""
    scratch, floats, dim = arrays.scratch, arrays.floats, plan.dim
    for token in range(tokens):
        at = plan.embedding + arrays.ids[token] * dim
        x, embedding = scratch[to + token * dim : to + (token + 1) * dim], floats[at : at + dim]
        for k in range(dim):
            x[k] = embedding[k]
        if plan.positions >= 0:
            at = plan.positions + arrays.pos[token] * dim
            position = floats[at : at + dim]
            for k in range(dim):
                x[k] += position[k]


@compiled(FUSED)
def add_stream(plan, room, arrays, stream, tokens, panels):
    """The residual sum, for the panels from the first to the last."""
    first, last = panels[0] * PANEL, min(plan.dim, panels[1] * PANEL)
    for token in range(tokens):
        at, to = stream + token * plan.dim, room.x + token * room.x_step
        x, own = arrays.scratch[to + first : to + last], arrays.scratch[at + first : at + last]
        for k in range(last - first):
            x[k] += own[k]


@compiled(FUSED)
def turn_and_keep(plan, room, arrays, layer, group, slots, items):
    """Norm and rotation of queries and keys; keys and values into the memory. Items are heads of tokens."""
    floats, scratch = arrays.floats, arrays.scratch
    size, heads, kv_heads, half = plan.head_dim, plan.heads, plan.kv_heads, plan.head_dim // 2
    every = heads + 2 * kv_heads
    for item in range(items[0], items[1]):
        token, head = item // every, item % every
        at = room.qkv + token * room.qkv_step + head * size
        numbers = scratch[at : at + size]
        if head < heads + kv_heads:
            weight = layer[Q_NORM] if head < heads else layer[K_NORM]
            if weight >= 0:
                normalise(RMS_NORM, floats, weight, scratch, at, size, at)
            if plan.cosines >= 0:
                turn = arrays.pos[token] * half
                cosines = floats[plan.cosines + turn : plan.cosines + turn + half]
                sines = floats[plan.sines + turn : plan.sines + turn + half]
                left, right = scratch[at : at + half], scratch[at + half : at + size]
                for k in range(half):
                    one, two = left[k], right[k]
                    left[k] = one * cosines[k] - two * sines[k]
                    right[k] = two * cosines[k] + one * sines[k]
        elif layer[VALUES] >= 0:
            table = layer[VALUES] + (arrays.ids[token] * kv_heads + head - heads - kv_heads) * size
            one, two = floats[layer[VALUE_SHARES]], floats[layer[VALUE_SHARES] + 1]
            embedded = floats[table : table + size]
            for k in range(size):
                numbers[k] = one * numbers[k] + two * embedded[k]
        if head >= heads:
            to = layer[KEYS] + ((head - heads) * group[CAPACITY] + slots[token]) * plan.head_step
            kept = arrays.memory[to : to + size]
            for k in range(size):
                kept[k] = numbers[k]


@compiled()
def mix_values(x, weights, memory, values, places, count, width, to):
    """x[to + k] = sum over t of x[weights + t] memory[values + places[t] + k]: as many vectors of k at a time as there are."""
    first, vectors = 0, width // LANES
    while first < vectors:
        left, at, out = vectors - first, values + first * LANES, to + first * LANES
        if left >= 8:
            values_8(x, weights, memory, at, places, count, out)
            first += 8
        elif left >= 6:
            values_6(x, weights, memory, at, places, count, out)
            first += 6
        elif left >= 4:
            values_4(x, weights, memory, at, places, count, out)
            first += 4
        elif left >= 2:
            values_2(x, weights, memory, at, places, count, out)
            first += 2
        else:
            values_1(x, weights, memory, at, places, count, out)
            first += 1


@compiled()
def list_places(plan, arrays, tokens, part, parts):
    """Where the keys stand that each token sees, token after token: the same for all layers of a group, and for all heads.

    Keys are taken several at a time: where fewer are left, the last one is taken again, with weight 0. Every part writes where
    the tokens' lists begin, all the same, and some of the lists.
    """
    for number in range(len(arrays.groups)):
        group, begins, places = arrays.groups[number], arrays.begins[number], arrays.places[number]
        at, span = 0, group[SPAN]
        for token in range(tokens):
            pos = arrays.pos[token]
            count = min(pos + 1, group[WINDOW])
            whole = (count + KEYS_TOGETHER - 1) // KEYS_TOGETHER * KEYS_TOGETHER
            begins[token] = at
            if token % parts == part:
                slots, own = arrays.table[arrays.handles[token], group[COLUMN] : group[COLUMN] + span], places[at:]
                column = (pos + 1 - count) % span
                for t in range(count):
                    own[t] = slots[column] * plan.head_step
                    column = column + 1 if column + 1 < span else 0
                for t in range(count, whole):
                    own[t] = own[count - 1]
            at += whole


@compiled(FUSED)
def attend(plan, room, arrays, layer, group, own, items):
    """What each head of each token takes from the values that it sees. Items are tokens of heads: rows that share keys and
    values, as beams do, then find those of a head in the nearest caches."""
    scratch, memory, size, step = arrays.scratch, arrays.memory, plan.head_dim, plan.head_step
    side, kv_heads, tokens = group[CAPACITY] * step, plan.kv_heads, arrays.control[TOKENS]
    begins, places = arrays.begins[layer[GROUP]], arrays.places[layer[GROUP]]
    query, mixed, levels, scores = own, own + step, own + 2 * step, own + 2 * step + PANEL
    scale = np.float32(1.0 / math.sqrt(size))
    for item in range(items[0], items[1]):
        head, token = item // tokens, item % tokens
        count, listed = min(arrays.pos[token] + 1, group[WINDOW]), places[begins[token] :]
        keys = layer[KEYS] + head // (plan.heads // kv_heads) * side
        values = keys + kv_heads * side
        asked = room.qkv + token * room.qkv_step + head * size
        if size < step:
            numbers, filled = scratch[asked : asked + size], scratch[query : query + size]
            for k in range(size):
                filled[k] = numbers[k]  # what stands behind them is always 0
            asked = query
        score_keys(scratch, asked, memory, keys, values, listed, count, step, scores)
        share_row(scratch, scores, 0, (count + PANEL - 1) // PANEL, 0, count - 1, scale, scratch, levels)
        mix_values(scratch, scores, memory, values, listed, count, step, mixed)
        to, share = room.mixed + token * plan.dim + head * size, ONE / scratch[levels + 1]
        given, sums = scratch[to : to + size], scratch[mixed : mixed + size]
        for k in range(size):
            given[k] = sums[k] * share


@compiled(FUSED)
def compute(seen, part, parts, plan, room, arrays):
    """Logits of the `wanted` tokens, after the tokens `ids` at positions `pos` of rows `handles` were read.

    Part 0 computes one round. The others are helpers: they take part in every round after `seen` until there is none for a
    while. The last round that they took part in is given back.
    """
    control, scratch, floats, dim = arrays.control, arrays.scratch, arrays.floats, plan.dim
    stream = room.own + part * room.own_step
    given = stream + CHUNK * dim
    heads = stream + 2 * CHUNK * dim + CHUNK
    before = NO_NORM if plan.post else plan.norm  # of what a half of a block is given
    after = plan.norm if plan.post else NO_NORM  # of the sum that it leaves
    x_panels = share(room.x_step // PANEL, 1, part, parts)
    qkv_panels = share(room.qkv_step // PANEL, 1, part, parts)
    up_panels = share(room.up_step // PANEL, 2 if plan.activation == SWIGLU else 1, part, parts)
    head_panels = share(room.logits_step // PANEL, 1, part, parts)
    if part > 0:
        take_part(control)
    while part == 0 or await_round(control, seen):
        tokens, answers = control[TOKENS], control[WANTED]
        begin(plan, arrays, tokens, stream)
        list_places(plan, arrays, tokens, part, parts)
        pending = -1  # the norm that the sum of the last half of a block still has to go through
        for number in range(plan.layers):
            layer = arrays.layers[number]
            group = arrays.groups[layer[GROUP]]
            for token in range(tokens):
                at = stream + token * dim
                if number > 0:
                    normalise(after, floats, pending, scratch, room.x + token * room.x_step, dim, at)
                normalise(before, floats, layer[NORM_1], scratch, at, dim, given + token * dim)
            multiply(
                plan, room, arrays, part, tokens, (given, dim), dim, layer, QKV, (room.qkv, room.qkv_step), qkv_panels
            )
            if not wait_for_all(control, parts):
                return seen
            items = share(tokens * (plan.heads + 2 * plan.kv_heads), 1, part, parts)
            turn_and_keep(plan, room, arrays, layer, group, arrays.slots[layer[GROUP]], items)
            if not wait_for_all(control, parts):
                return seen
            attend(plan, room, arrays, layer, group, heads, share(tokens * plan.heads, 1, part, parts))
            if not wait_for_all(control, parts):
                return seen
            multiply(
                plan, room, arrays, part, tokens, (room.mixed, dim), dim, layer, OUT, (room.x, room.x_step), x_panels
            )
            add_stream(plan, room, arrays, stream, tokens, x_panels)
            if not wait_for_all(control, parts):
                return seen
            for token in range(tokens):
                at = stream + token * dim
                normalise(after, floats, layer[NORM_1], scratch, room.x + token * room.x_step, dim, at)
                normalise(before, floats, layer[NORM_2], scratch, at, dim, given + token * dim)
            multiply(plan, room, arrays, part, tokens, (given, dim), dim, layer, UP, (room.up, room.up_step), up_panels)
            for token in range(tokens):
                up, to = room.up + token * room.up_step, room.inner + token * room.inner_step
                activate(plan.activation, scratch, up, to, up_panels)
            if not wait_for_all(control, parts):
                return seen
            inner = (room.inner, room.inner_step)
            multiply(plan, room, arrays, part, tokens, inner, plan.inside, layer, DOWN, (room.x, room.x_step), x_panels)
            add_stream(plan, room, arrays, stream, tokens, x_panels)
            if not wait_for_all(control, parts):
                return seen
            pending = layer[NORM_2]
        for answer in range(answers):
            at = stream + answer * dim
            normalise(after, floats, pending, scratch, room.x + arrays.wanted[answer] * room.x_step, dim, at)
            normalise(plan.norm, floats, plan.final_norm, scratch, at, dim, given + answer * dim)
        if answers > 0:
            to = (room.logits, room.logits_step)
            multiply(plan, room, arrays, part, answers, (given, dim), dim, arrays.head, 0, to, head_panels)
        if plan.soft_cap >= 0:
            for answer in range(answers):
                at = room.logits + answer * room.logits_step
                bound(floats[plan.soft_cap], scratch, at + head_panels[0] * PANEL, at + head_panels[1] * PANEL)
        if not wait_for_all(control, parts):
            return seen
        seen += 1
        if part == 0:
            break
    return seen
