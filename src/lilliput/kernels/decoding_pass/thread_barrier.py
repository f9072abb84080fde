"""How threads that compute one pass wait for each other, in machine code.

Owns: the barrier, rounds and sleep, and how work is divided. Does not own: the threads (`thread_team`) or
their work (`loops`).
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="call-arg, var-annotated"

from __future__ import annotations

from lilliput.kernels.decoding_pass.layout import ARRIVED, ASLEEP, CLOSED, LEAVE, PHASE, ROUND
from lilliput.kernels.tiles import (
    add_atomically,
    compiled,
    let_others_run,
    load_atomically,
    store_atomically,
)

PATIENCE = 2000  # looks at a counter before another thread may have the core: some microseconds
WAKEFUL = 5 * PATIENCE  # looks before a helper goes to sleep: some milliseconds


@compiled()
def share(items, unit, part, parts):
    """First and last of this part's items, which come in units."""
    units = (items + unit - 1) // unit
    return units * part // parts * unit, min(items, units * (part + 1) // parts * unit)


@compiled()
def wait_for_all(control, parts):
    """Nobody goes on before everybody is here. False: the team has ended, in the middle of a pass."""
    if parts == 1:
        return True
    phase = load_atomically(control, PHASE)
    if add_atomically(control, ARRIVED, 1) == parts - 1:
        store_atomically(control, ARRIVED, 0)
        add_atomically(control, PHASE, 1)
        return True
    looks = 0
    while load_atomically(control, PHASE) == phase:
        looks += 1
        if looks > PATIENCE:
            let_others_run()
            if load_atomically(control, CLOSED) == 1:
                return False
    return True


@compiled()
def announce(control):
    """A new round begins. How many helpers are asleep: they have to be woken."""
    add_atomically(control, ROUND, 1)
    return load_atomically(control, ASLEEP)


@compiled()
def take_part(control):
    """A helper is awake."""
    add_atomically(control, ASLEEP, -1)


@compiled()
def await_round(control, seen):
    """Whether a round after `seen` has begun. If there is none for a while, the helper goes to sleep."""
    looks = 0
    while load_atomically(control, ROUND) == seen:
        looks += 1
        if looks > PATIENCE:
            let_others_run()
        if looks > WAKEFUL or load_atomically(control, LEAVE) == 1:
            add_atomically(control, ASLEEP, 1)
            # Whoever announces a round looks at ASLEEP after that, so that one of the two sees the other.
            if load_atomically(control, ROUND) == seen:
                return False
            add_atomically(control, ASLEEP, -1)
    return True
