"""The environment of process groups, and a single process. Several processes: test_distributed.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

from helpers.user_errors import refused
from lilliput.training.process_group import agree_on_group_name, is_lost_connection, open_world, world_size

MASTER = {"RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_a_single_process_does_not_import_torch() -> None:
    code = (
        "import sys; from lilliput.training.process_group import open_world\n"
        "with open_world() as w: print(w.total([1, 2]), w.first)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.split("\n") == ["[1, 2] True", "False", ""], done.stderr


def test_a_single_process_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with open_world() as world:
        value = {"any": object()}
        assert world.share(value) is value
        assert world.in_turn(lambda: 7) == 7
        assert not torch.distributed.is_initialized()
        assert world.launch is None


@pytest.mark.parametrize("size", ["two", "0", "-1", ""])
def test_an_invalid_world_size_is_an_error(size: str) -> None:
    assert refused(lambda: world_size({"WORLD_SIZE": size})).code == "process.group"


@pytest.mark.parametrize("missing", [("RANK",), ("MASTER_ADDR",), ("MASTER_PORT",), ("RANK", "MASTER_PORT")])
def test_missing_variables_of_a_group_are_an_error(missing: tuple[str, ...]) -> None:
    environment = {name: value for name, value in MASTER.items() if name not in missing} | {"WORLD_SIZE": "2"}
    error = refused(lambda: world_size(environment))
    assert error.code == "process.group"
    assert {name for name in MASTER if name in error.what} == set(missing)
    assert world_size(environment | MASTER) == 2
    assert world_size({name: value for name, value in environment.items() if name != "WORLD_SIZE"}) == 1


def test_the_restart_count_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "x")
    with open_world() as world:
        assert world.first


def test_errors_of_lost_connections_are_recognised() -> None:
    assert is_lost_connection(
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    )
    assert is_lost_connection(torch.distributed.DistNetworkError("gone"))
    assert not is_lost_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def meet_in_threads(store: HashStore, processes: int) -> set[str]:
    found: set[str] = set()

    def join(rank: int) -> None:
        found.add(agree_on_group_name(store, rank, processes))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return found


def test_restarted_processes_ignore_keys_of_dead_ones() -> None:
    """Three groups use the same store; the second one died before its first process joined."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=120))
    (first,) = meet_in_threads(store, 3)
    for rank in (1, 2):
        store.set(f"request of {rank}", f"dead {rank}")
    (third,) = meet_in_threads(store, 3)
    assert third != first


def test_exit_process_does_not_finalise_python() -> None:
    code = (
        "import atexit, sys; atexit.register(print, 'late'); from lilliput.training.process_group import exit_process; "
    )
    code += "print('out', end=''); print('err', end='', file=sys.stderr); exit_process(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "out", "err")
