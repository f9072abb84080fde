"""Signals that stop a training.

Owns: calling a handler on Ctrl-C and SIGTERM for a while. Does not own: what the handler does (`api.training_progress`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPT = (signal.SIGINT,)
ALL = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def listening(handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...] = ALL) -> Iterator[None]:
    """Call the handler on these signals. Python allows handlers in the main thread only; in another one, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
