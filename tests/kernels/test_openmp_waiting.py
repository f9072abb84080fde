"""Waiting of torch's OpenMP threads: spinning on a quiet machine, sleeping on a busy one; in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from lilliput.kernels.machine_load import MachineLoad
from lilliput.kernels.openmp import find_openmp_parallel
from lilliput.kernels.openmp_waiting import OpenMPWaiting

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or find_openmp_parallel() is None, reason="torch's libgomp was not found"
)

START = """
import json, time, torch
from lilliput.kernels import openmp_waiting as module
from lilliput.kernels.machine_load import machine_load
torch.set_num_threads(2)
load = machine_load()
load.due, load.cpus = float("inf"), len(__import__("os").sched_getaffinity(0))  # the test sets the load
waiting = module.openmp_waiting()
"""

# The CPU time of the process while its main thread sleeps after an operation is that of a spinning thread.
SPIN = """
numbers = torch.ones(1 << 22)
def spin(tries, enough):
    spent = 0.0
    for _ in range(tries):
        numbers.add_(1.0)
        before = time.process_time()
        time.sleep(0.02)
        spent += time.process_time() - before
        if spent > enough:
            break
    return spent
def under(others):
    load.others = others
    module.adapt_waiting()
    return spin(20, 1.0) if others else spin(500, 0.02)
spins = [under(others) for others in (0.0, load.cpus, 0.0, load.cpus)]
print(json.dumps(spins))
"""

PASS = """
from lilliput.model.transformer import Transformer
from lilliput.settings.loading import load_config
config = load_config(None, {"model.vocab_size": "64", "model.dim": "32", "model.layers": "1", "model.context": "64"})
torch.manual_seed(0)
model, ids = Transformer(config.model, config.vectors), torch.arange(64)[None]
found = []
for others in (0.0, load.cpus, 0.0):
    load.others = others
    logits = model(ids)
    found.append([waiting.released is not None, logits.double().sum().item()])
print(json.dumps(found))
"""


def run(code: str, **variables: str) -> Any:
    ended = subprocess.run(
        [sys.executable, "-c", START + code], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_waiting_threads_spin_on_a_quiet_machine_and_sleep_on_a_busy_one() -> None:
    first, busy, again, busy_again = run(SPIN)
    assert first > 0.02 and again > 0.02, "seconds, of at most 500 operations"
    assert busy < 0.01 and busy_again < 0.01, "seconds, of 20 operations"


def test_a_pass_adapts_and_its_result_does_not_change() -> None:
    (quiet, expected), (busy, result), (quiet_again, last) = run(PASS)
    assert (quiet, busy, quiet_again) == (False, True, False)
    assert result == last == expected


@pytest.mark.parametrize("variable", [{"GOMP_SPINCOUNT": "5000"}, {"OMP_WAIT_POLICY": "active"}])
def test_a_choice_of_the_user_is_kept(variable: dict[str, str]) -> None:
    code = "load.others = 99.0; module.adapt_waiting(); print(json.dumps(waiting is None))"
    assert run(code, **variable) is True
    assert run(code) is False


def test_importing_lilliput_sets_no_variable_and_starts_no_thread() -> None:
    code = "import lilliput.cli, os, threading; print([threading.active_count(), 'GOMP_SPINCOUNT' in os.environ])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[1, False]"


def test_one_thread_holds_the_others_while_the_machine_is_busy() -> None:
    """Threads that compute and threads that are held are together one more than the CPUs."""
    held: list[int] = []
    load = MachineLoad(lambda: None, cpus=8)
    waiting = OpenMPWaiting(load, lambda function, data, many, flags: held.append(many))
    before = threading.active_count()
    for others, threads in ((0.0, 8), (6.0, 8), (6.0, 8), (3.0, 8)):
        load.others = others
        waiting.adapt(threads)
    assert held == [2] and waiting.released is not None
    load.others = 0.0
    waiting.adapt(8)
    assert waiting.released is None
    load.others = 7.0
    waiting.adapt(4)
    assert held == [2, 6] and waiting.released is not None
    waiting.released.set()
    for thread in threading.enumerate():
        if thread.name == "lilliput load":
            thread.join(10.0)
    assert threading.active_count() <= before
