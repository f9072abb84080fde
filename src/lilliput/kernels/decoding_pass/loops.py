"""One pass of a model over a few tokens, as compiled loops over flat arrays. One compilation serves all supported models.

Owns: the order of the pass, attention, and the division of work among threads. Does not own: row arithmetic
(`products`), the layout of weights (`decoding.engines.compiled_weights`), the slots of keys and values
(`key_value_slots`), or the threads (`thread_team`).

All threads run `compute`, each with its own number. Every thread computes the cheap parts itself (residual stream, norms),
so that there are only six barriers per layer. Matrices are divided by panels of outputs, attention by tokens and heads.
Results do not depend on the number of threads.

N tokens of the pass, C dim.
"""

# Numba infers the types of compiled functions from their calls: flat arrays, and integers for offsets and sizes.
# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

import math

import numpy as np

from lilliput.kernels.arithmetic import FUSED, ONE
from lilliput.kernels.attention_score_rows import exponentiate_row
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
    KEYS_PER_STEP,
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
from lilliput.kernels.decoding_pass.products import activate, cap_logits, multiply, normalise
from lilliput.kernels.decoding_pass.thread_barrier import divide, mark_awake, wait_for_all, wait_for_round
from lilliput.kernels.registers import LANES, PANEL
from lilliput.kernels.tiles import compiled


@compiled(FUSED)
def embed(plan, arrays, tokens, to):
    """Write embeddings plus positions (N, C)."""
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
def add_stream(plan, layout, arrays, stream, tokens, panels):
    """Add the residual stream to x, for the panels from the first to the last."""
    first, last = panels[0] * PANEL, min(plan.dim, panels[1] * PANEL)
    for token in range(tokens):
        at, to = stream + token * plan.dim, layout.x + token * layout.x_step
        x, residual = arrays.scratch[to + first : to + last], arrays.scratch[at + first : at + last]
        for k in range(last - first):
            x[k] += residual[k]


@compiled(FUSED)
def rotate_and_store(plan, layout, arrays, layer, group, slots, items):
    """Normalise and rotate queries and keys; store keys and values in the memory. Items are heads of tokens."""
    floats, scratch = arrays.floats, arrays.scratch
    size, heads, kv_heads, half = plan.head_dim, plan.heads, plan.kv_heads, plan.head_dim // 2
    heads_per_token = heads + 2 * kv_heads
    for item in range(items[0], items[1]):
        token, head = item // heads_per_token, item % heads_per_token
        at = layout.qkv + token * layout.qkv_step + head * size
        numbers = scratch[at : at + size]
        if head < heads + kv_heads:
            weight = layer[Q_NORM] if head < heads else layer[K_NORM]
            if weight >= 0:
                normalise(RMS_NORM, floats, weight, scratch, at, size, at)
            if plan.cosines >= 0:
                angles = arrays.pos[token] * half
                cosines = floats[plan.cosines + angles : plan.cosines + angles + half]
                sines = floats[plan.sines + angles : plan.sines + angles + half]
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
            stored = arrays.memory[to : to + size]
            for k in range(size):
                stored[k] = numbers[k]


@compiled()
def mix_values(x, weights, memory, values, key_offsets, count, width, to):
    """Set x[to + k] = sum over t of x[weights + t] memory[values + key_offsets[t] + k], up to eight vectors at a time."""
    first, vectors = 0, width // LANES
    while first < vectors:
        left, at, out = vectors - first, values + first * LANES, to + first * LANES
        if left >= 8:
            values_8(x, weights, memory, at, key_offsets, count, out)
            first += 8
        elif left >= 6:
            values_6(x, weights, memory, at, key_offsets, count, out)
            first += 6
        elif left >= 4:
            values_4(x, weights, memory, at, key_offsets, count, out)
            first += 4
        elif left >= 2:
            values_2(x, weights, memory, at, key_offsets, count, out)
            first += 2
        else:
            values_1(x, weights, memory, at, key_offsets, count, out)
            first += 1


@compiled()
def list_key_offsets(plan, arrays, tokens, thread, threads):
    """List the offsets of the keys visible to each token: the same for all layers of a group and for all heads.

    Keys are read KEYS_PER_STEP at a time: a list is padded with its last key, with weight 0. Every thread writes all of
    `list_begins` (the same values) and some of the lists.
    """
    for number in range(len(arrays.groups)):
        group, list_begins, key_offsets = arrays.groups[number], arrays.list_begins[number], arrays.key_offsets[number]
        at, span = 0, group[SPAN]
        for token in range(tokens):
            pos = arrays.pos[token]
            count = min(pos + 1, group[WINDOW])
            whole = (count + KEYS_PER_STEP - 1) // KEYS_PER_STEP * KEYS_PER_STEP
            list_begins[token] = at
            if token % threads == thread:
                slots, offsets = (
                    arrays.table[arrays.handles[token], group[COLUMN] : group[COLUMN] + span],
                    key_offsets[at:],
                )
                column = (pos + 1 - count) % span
                for t in range(count):
                    offsets[t] = slots[column] * plan.head_step
                    column = column + 1 if column + 1 < span else 0
                for t in range(count, whole):
                    offsets[t] = offsets[count - 1]
            at += whole


@compiled(FUSED)
def attend(plan, layout, arrays, layer, group, area, items):
    """Compute attention of each head of each token.

    Items are ordered by head, then token, so that rows that share keys and values (beams) find those of a head in the
    nearest caches.
    """
    scratch, memory, size, step = arrays.scratch, arrays.memory, plan.head_dim, plan.head_step
    side, kv_heads, tokens = group[CAPACITY] * step, plan.kv_heads, arrays.control[TOKENS]
    list_begins, key_offsets = arrays.list_begins[layer[GROUP]], arrays.key_offsets[layer[GROUP]]
    query, mixed, softmax_stats, scores = area, area + step, area + 2 * step, area + 2 * step + PANEL
    scale = np.float32(1.0 / math.sqrt(size))
    for item in range(items[0], items[1]):
        head, token = item // tokens, item % tokens
        count, offsets = min(arrays.pos[token] + 1, group[WINDOW]), key_offsets[list_begins[token] :]
        keys = layer[KEYS] + head // (plan.heads // kv_heads) * side
        values = keys + kv_heads * side
        query_at = layout.qkv + token * layout.qkv_step + head * size
        if size < step:
            numbers, filled = scratch[query_at : query_at + size], scratch[query : query + size]
            for k in range(size):
                filled[k] = numbers[k]  # the padding after them is always 0
            query_at = query
        score_keys(scratch, query_at, memory, keys, values, offsets, count, step, scores)
        exponentiate_row(scratch, scores, 0, (count + PANEL - 1) // PANEL, 0, count - 1, scale, scratch, softmax_stats)
        mix_values(scratch, scores, memory, values, offsets, count, step, mixed)
        to, inverse_sum = layout.mixed + (token * plan.heads + head) * size, ONE / scratch[softmax_stats + 1]
        outputs, sums = scratch[to : to + size], scratch[mixed : mixed + size]
        for k in range(size):
            outputs[k] = sums[k] * inverse_sum


@compiled(FUSED)
def compute(last_round, thread, threads, plan, layout, arrays):
    """Compute logits of the `wanted` tokens, given the tokens `ids` at positions `pos` of rows `handles`.

    Thread 0 computes one round. The other threads are helpers: they compute every round after `last_round` until none
    begins for a while. Return the number of the last round.
    """
    control, scratch, floats, dim = arrays.control, arrays.scratch, arrays.floats, plan.dim
    stream = layout.thread_area + thread * layout.thread_step
    normed = stream + CHUNK * dim
    head_area = stream + 2 * CHUNK * dim + CHUNK
    mixed = plan.heads * plan.head_dim  # width of the output of attention
    before = NO_NORM if plan.post else plan.norm  # norm of the input of a sublayer
    after = plan.norm if plan.post else NO_NORM  # norm of the residual sum after a sublayer
    x_panels = divide(layout.x_step // PANEL, 1, thread, threads)
    qkv_panels = divide(layout.qkv_step // PANEL, 1, thread, threads)
    up_panels = divide(layout.up_step // PANEL, 2 if plan.activation == SWIGLU else 1, thread, threads)
    head_panels = divide(layout.logits_step // PANEL, 1, thread, threads)
    if thread > 0:
        mark_awake(control)
    while thread == 0 or wait_for_round(control, last_round):
        tokens, wanted = control[TOKENS], control[WANTED]
        embed(plan, arrays, tokens, stream)
        list_key_offsets(plan, arrays, tokens, thread, threads)
        pending = -1  # the norm to apply to the residual sum of the last sublayer
        for number in range(plan.layers):
            layer = arrays.layers[number]
            group = arrays.groups[layer[GROUP]]
            for token in range(tokens):
                at = stream + token * dim
                if number > 0:
                    normalise(after, floats, pending, scratch, layout.x + token * layout.x_step, dim, at)
                normalise(before, floats, layer[NORM_1], scratch, at, dim, normed + token * dim)
            multiply(
                plan,
                layout,
                arrays,
                thread,
                tokens,
                (normed, dim),
                dim,
                layer,
                QKV,
                (layout.qkv, layout.qkv_step),
                qkv_panels,
            )
            if not wait_for_all(control, threads):
                return last_round
            items = divide(tokens * (plan.heads + 2 * plan.kv_heads), 1, thread, threads)
            rotate_and_store(plan, layout, arrays, layer, group, arrays.slots[layer[GROUP]], items)
            if not wait_for_all(control, threads):
                return last_round
            attend(plan, layout, arrays, layer, group, head_area, divide(tokens * plan.heads, 1, thread, threads))
            if not wait_for_all(control, threads):
                return last_round
            multiply(
                plan,
                layout,
                arrays,
                thread,
                tokens,
                (layout.mixed, mixed),
                mixed,
                layer,
                OUT,
                (layout.x, layout.x_step),
                x_panels,
            )
            add_stream(plan, layout, arrays, stream, tokens, x_panels)
            if not wait_for_all(control, threads):
                return last_round
            for token in range(tokens):
                at = stream + token * dim
                normalise(after, floats, layer[NORM_1], scratch, layout.x + token * layout.x_step, dim, at)
                normalise(before, floats, layer[NORM_2], scratch, at, dim, normed + token * dim)
            multiply(
                plan,
                layout,
                arrays,
                thread,
                tokens,
                (normed, dim),
                dim,
                layer,
                UP,
                (layout.up, layout.up_step),
                up_panels,
            )
            for token in range(tokens):
                up, to = layout.up + token * layout.up_step, layout.inner + token * layout.inner_step
                activate(plan.activation, scratch, up, to, up_panels)
            if not wait_for_all(control, threads):
                return last_round
            inner = (layout.inner, layout.inner_step)
            multiply(
                plan,
                layout,
                arrays,
                thread,
                tokens,
                inner,
                plan.inside,
                layer,
                DOWN,
                (layout.x, layout.x_step),
                x_panels,
            )
            add_stream(plan, layout, arrays, stream, tokens, x_panels)
            if not wait_for_all(control, threads):
                return last_round
            pending = layer[NORM_2]
        for row in range(wanted):
            at = stream + row * dim
            normalise(after, floats, pending, scratch, layout.x + arrays.wanted[row] * layout.x_step, dim, at)
            normalise(plan.norm, floats, plan.final_norm, scratch, at, dim, normed + row * dim)
        if wanted > 0:
            to = (layout.logits, layout.logits_step)
            multiply(plan, layout, arrays, thread, wanted, (normed, dim), dim, arrays.head, 0, to, head_panels)
        if plan.soft_cap >= 0:
            for row in range(wanted):
                at = layout.logits + row * layout.logits_step
                cap_logits(floats[plan.soft_cap], scratch, at + head_panels[0] * PANEL, at + head_panels[1] * PANEL)
        if not wait_for_all(control, threads):
            return last_round
        last_round += 1
        if thread == 0:
            break
    return last_round
