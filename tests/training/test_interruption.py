"""Ctrl-C in a Python program: the step ends, the run is saved, and can be resumed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import lilliput
from helpers.small_runs import small_config, train_small
from lilliput.storage.run_folders import RunFolder
from lilliput.training.events import Event, Stepped
from lilliput.training.interruption import INTERRUPT, listening
from torture import outcome


class Presser:
    """Press Ctrl-C at a step, once or twice."""

    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times = step, times
        self.last = 0

    def __call__(self, event: Event) -> None:
        self.last = event.step
        if isinstance(event, Stepped) and event.step == self.step:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)

    def close(self) -> None:
        pass


def test_an_interrupt_saves_the_step(tmp_path: Path) -> None:
    expected, _ = train_small(small_config(tmp_path, "whole"))
    config, before = small_config(tmp_path), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        lilliput.train(config, observers=[Presser(5)])
    assert signal.getsignal(signal.SIGINT) is before
    run = RunFolder(tmp_path / "runs" / "mine")
    assert run.last is not None and run.last.step == 5  # train.save_every is 2
    assert outcome(lilliput.train(config, resume=True).folder) == outcome(expected.folder)


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        lilliput.train(small_config(tmp_path), observers=[Presser(5, times=2)])
    run = RunFolder(tmp_path / "runs" / "mine")
    assert run.last is not None and run.last.step == 4
    assert not run.is_locked()


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
