"""What the environment says of processes, and what a process alone makes of it. Groups of them: test_distributed.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from helpers.small_runs import small_config
from lilliput.errors import UserError
from lilliput.storage.run_folders import Run
from lilliput.training.elastic_restart import torchrun_name
from lilliput.training.events import Stepped
from lilliput.training.process_group import World, agree_on_group_name, is_lost_connection, open_world, world_size
from lilliput.training.session import open_session

MASTER = {"RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def test_a_process_alone_is_a_world_without_torch() -> None:
    code = (
        "import sys; from lilliput.training.process_group import open_world\n"
        "with open_world() as w: print(w.total([1, 2]), w.first)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint('torch' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.split("\n") == ["[1, 2] True", "False", ""], done.stderr


def test_alone_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with open_world() as world:
        value = {"any": object()}
        assert world.share(value) is value
        assert world.in_turn(lambda: 7) == 7
        assert not torch.distributed.is_initialized()
        assert world.launch is None


@pytest.mark.parametrize("said", ["two", "0", "-1", ""])
def test_a_number_of_processes_that_is_none(said: str) -> None:
    with pytest.raises(UserError, match="no number of processes"):
        world_size({"WORLD_SIZE": said})


@pytest.mark.parametrize("missing", [("RANK",), ("MASTER_ADDR",), ("MASTER_PORT",), ("RANK", "MASTER_PORT")])
def test_a_group_that_nobody_can_find_is_refused(missing: tuple[str, ...]) -> None:
    environment = {name: value for name, value in MASTER.items() if name not in missing} | {"WORLD_SIZE": "2"}
    with pytest.raises(UserError) as told:
        world_size(environment)
    named = " and ".join(missing)
    assert str(told.value).startswith(f"WORLD_SIZE is 2, but {named} ")
    assert "torchrun --nproc-per-node 2 -m lilliput train" in str(told.value)
    assert world_size(environment | MASTER) == 2
    assert world_size({name: value for name, value in environment.items() if name != "WORLD_SIZE"}) == 1


def test_a_job_has_a_name_of_its_own() -> None:
    """Through its restarts, counted or not, and not that of the next with the same id."""
    assert torchrun_name({}) is None
    begun, again, other = (
        torchrun_name({"TORCHELASTIC_RUN_ID": "mine", "TORCHELASTIC_ERROR_FILE": f"/logs/{path}/error.json"})
        for path in ("mine_k3/attempt_0/0", "mine_k3/attempt_2/0", "mine_z9/attempt_0/0")
    )
    assert begun is not None
    assert begun == again != other
    assert torchrun_name({"TORCHELASTIC_RUN_ID": "mine", "TORCHELASTIC_ERROR_FILE": ""}) not in (None, begun, other)


def test_restarts_need_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "x")
    with open_world() as world:
        assert world.first


def test_what_gloo_says_of_lost_processes_is_known_and_other_errors_are_not() -> None:
    assert is_lost_connection(RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"))
    assert is_lost_connection(torch.distributed.DistNetworkError("gone"))
    assert not is_lost_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def meet_in_threads(store: HashStore, processes: int) -> set[str]:
    found: set[str] = set()
    threads = [
        threading.Thread(target=lambda rank=rank: found.add(agree_on_group_name(store, rank, processes))) for rank in range(processes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return found


def test_processes_that_are_started_again_take_nothing_from_their_dead_predecessors() -> None:
    """The same store for three groups, the second of which died before its first process came."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))
    (first,) = meet_in_threads(store, 3)
    for rank in (1, 2):
        store.set(f"request of {rank}", f"dead {rank}")
    (third,) = meet_in_threads(store, 3)
    assert third != first


# ---- jobs of torchrun


class Machines(World):
    """The first process of several machines, each with its torchrun."""

    def __init__(self, *launches: str) -> None:
        super().__init__(launches[0] if launches else None)
        self.all = set(launches)

    def launches(self) -> set[str]:
        return self.all


def begin(folder: Path, *launches: str, overwrite: bool = False, stop: int = 3) -> list[str]:
    """Train for a moment as a job of torchrun would; the session's notes, and which updates it made."""
    world, steps = Machines(*launches), list[int]()
    with open_session(small_config(folder), overwrite=overwrite, world=world) as session:
        for event in session.events([]):
            steps += [event.step] if isinstance(event, Stepped) else []
            if event.step == stop:
                session.trainer.stop()
    return [*session.notes, f"steps {steps[0]} to {steps[-1]}"]


def test_only_the_job_that_began_a_run_goes_on_with_it_unasked(tmp_path: Path) -> None:
    """A run that was there before must not be taken up because its refusal made torchrun start the processes again."""
    refused: Callable[[], object]
    assert begin(tmp_path, "one") == ["steps 1 to 3"]
    for refused in (lambda: begin(tmp_path, "two"), lambda: begin(tmp_path)):
        with pytest.raises(UserError, match="run mine exists already"):
            refused()
    assert begin(tmp_path, "one", stop=5) == ["steps 4 to 5"]


def test_a_job_replaces_a_run_once(tmp_path: Path) -> None:
    """Started again with the same --overwrite, it goes on with its own run."""
    assert begin(tmp_path, "one", stop=5) == ["steps 1 to 5"]
    assert begin(tmp_path, "two", overwrite=True) == ["steps 1 to 3"]
    assert begin(tmp_path, "two", overwrite=True, stop=5) == ["steps 4 to 5"]
    steps = [event["step"] for event in Run(tmp_path / "runs" / "mine").metrics() if event["event"] == "step"]
    assert steps == [1, 2, 3, 4, 5]


def test_a_job_is_the_same_while_machines_come_and_go(tmp_path: Path) -> None:
    """Also when the first of them has gone, and then all of those that began it."""
    assert begin(tmp_path, "a", "b", overwrite=True, stop=2) == ["steps 1 to 2"]
    assert begin(tmp_path, "b", "c", overwrite=True, stop=4) == ["steps 3 to 4"]
    assert begin(tmp_path, "d", "c", overwrite=True, stop=6) == ["steps 5 to 6"]
    with pytest.raises(UserError, match="run mine exists already"):
        begin(tmp_path, "a", "e")


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    with open_session(small_config(tmp_path), world=World("job")) as session:
        next(session.events([]))
    assert begin(tmp_path, "job") == ["the run has no checkpoint yet: it begins again", "steps 1 to 3"]


def test_a_process_of_several_leaves_without_taking_python_apart() -> None:
    code = "import atexit, sys; atexit.register(print, 'late'); from lilliput.training.process_group import exit_process; "
    code += "print('said', end=''); print('told', end='', file=sys.stderr); exit_process(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said", "told")
