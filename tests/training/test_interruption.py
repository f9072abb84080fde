"""Signals: handlers only in the main thread. What they do is in api/test_train.py and cli/test_process.py."""

from __future__ import annotations

import signal
import threading

from lilliput.training.interruption import INTERRUPT, listening


def test_other_threads_have_no_handlers() -> None:
    seen: list[object] = []

    def work() -> None:
        with listening(lambda number, frame: None, INTERRUPT):
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
