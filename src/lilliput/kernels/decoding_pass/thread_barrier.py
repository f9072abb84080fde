"""Synchronisation of the threads that compute one pass, in compiled code.

Owns: the barrier, starting a round, when helpers sleep, and the division of work. Does not own: the threads (`thread_team`)
or their work (`loops`).
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

from lilliput.kernels.decoding_pass.layout import ARRIVED, ASLEEP, CLOSED, LEAVE, PHASE, ROUND
from lilliput.kernels.tiles import (
    add_atomically,
    compiled,
    load_atomically,
    store_atomically,
    yield_core,
)

SPINS_BEFORE_YIELD = 2000  # reads of a counter before a thread yields its core: some microseconds
SPINS_BEFORE_SLEEP = 5 * SPINS_BEFORE_YIELD  # reads before a helper goes to sleep: some milliseconds


@compiled()
def divide(items, unit, thread, threads):
    """Return the range of this thread's items, in multiples of `unit`."""
    units = (items + unit - 1) // unit
    return units * thread // threads * unit, min(items, units * (thread + 1) // threads * unit)


@compiled()
def wait_for_all(control, threads):
    """Wait until all threads have arrived. Return False if the team was closed during a pass."""
    if threads == 1:
        return True
    phase = load_atomically(control, PHASE)
    if add_atomically(control, ARRIVED, 1) == threads - 1:
        store_atomically(control, ARRIVED, 0)
        add_atomically(control, PHASE, 1)
        return True
    spins = 0
    while load_atomically(control, PHASE) == phase:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_core()
            if load_atomically(control, CLOSED) == 1:
                return False
    return True


@compiled()
def announce_round(control):
    """Begin a new round; return the number of sleeping helpers, which must be woken."""
    add_atomically(control, ROUND, 1)
    return load_atomically(control, ASLEEP)


@compiled()
def mark_awake(control):
    """Count this helper as awake."""
    add_atomically(control, ASLEEP, -1)


@compiled()
def wait_for_round(control, last_round):
    """Wait for a round after `last_round`; return False if the helper should sleep because none began for a while."""
    spins = 0
    while load_atomically(control, ROUND) == last_round:
        spins += 1
        if spins > SPINS_BEFORE_YIELD:
            yield_core()
        if spins > SPINS_BEFORE_SLEEP or load_atomically(control, LEAVE) == 1:
            add_atomically(control, ASLEEP, 1)
            # announce_round writes ROUND before it reads ASLEEP, so at least one of the two threads notices the other.
            if load_atomically(control, ROUND) == last_round:
                return False
            add_atomically(control, ASLEEP, -1)
    return True
