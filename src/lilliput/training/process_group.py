"""The processes that train one run together, and the values that they exchange.

Owns: the environment that torchrun sets, the process group, sums and shared values, work that one process per
machine does first, and ending together. Does not own: the model over several processes (`distributed`), what
the processes agree on (`loop`, `session`), restarts (`elastic_restart`).

A single process is a `World` too, in which exchanging a value costs nothing. Values are numbers and JSON, and use
gloo even where gradients use nccl: they are needed on the CPU and must not wait for the GPU.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lilliput.errors import UserError
from lilliput.training.elastic_restart import torchrun_name

if TYPE_CHECKING:  # a wrong setting is reported before torch is imported
    import torch
    from torch._C._distributed_c10d import Store

JOINING = timedelta(minutes=5)  # torchrun starts the processes of a group at about the same time
WAITING = timedelta(days=7)  # for another process's turn: preparing data may take long
REPORTS = "reports"  # the key of the store that counts reported errors

MACHINES = (("RANK", "0"), ("WORLD_SIZE", "1"))  # of torchrun, with GROUP_: index of this machine, number of machines

Answer = TypeVar("Answer")


class World:
    """A single process. `launch` names the torchrun that started it (None without one)."""

    rank = local_rank = 0
    processes = 1

    def __init__(self, launch: str | None = None) -> None:
        self.launch = launch

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, prints and decides."""
        return self.rank == 0

    def launches(self) -> set[str]:
        """Return the torchruns of all processes, one per machine; only the first process needs to call this."""
        return {self.launch} if self.launch else set()

    def device(self, name: str) -> torch.device:
        from lilliput.devices import choose_device

        return choose_device(name)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sum each number over all processes, in float64: the same bits everywhere."""
        return list(numbers)

    def share(self, value: Any) -> Any:
        """Return the first process's value, which must fit in JSON; the values of other processes are ignored."""
        return value

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copy the first process's numbers into the tensor of every process."""

    def in_turn(self, work: Callable[[], Answer]) -> Answer:
        """Do the work in one process of each machine first, then in the others, which find its results on the disk."""
        return work()


class Group(World):
    """One of several processes."""

    def __init__(self, environment: Mapping[str, str], launch: str | None) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        super().__init__(launch)
        self.dist, self.turns = dist, 0
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            self.local_rank = int(environment.get("LOCAL_RANK", "0"))
            self.machine, self.machines = (int(environment.get(f"GROUP_{name}", n)) for name, n in MACHINES)
            self.job_store, self.rank, self.processes = next(iter(rendezvous("env://", timeout=JOINING)))
            self.store = PrefixStore(agree_on_group_name(self.job_store, self.rank, self.processes), self.job_store)
            self.store.set(f"launch of {self.rank}", launch or "")
            dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.processes)
        except (RuntimeError, ValueError, OSError) as error:
            what = f"the {environment['WORLD_SIZE']} processes could not form a process group: {first_line(error)}"
            raise UserError(what, "environment", fix="start them with torchrun", code="process.group") from error

    def launches(self) -> set[str]:
        return {self.store.get(f"launch of {rank}").decode() for rank in range(self.processes)} - {""}

    def device(self, name: str) -> torch.device:
        import torch

        device = super().device(name)
        if device.type == "mps":
            raise UserError(
                f'train.device "mps" requires a single process (got {self.processes})',
                fix='set train.device to "cpu"',
                code="setting.conflict",
                setting="train.device",
            )
        if device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            count = torch.cuda.device_count()
            what = f"process {self.local_rank + 1} of this machine requires its own GPU (got {count} GPUs)"
            raise UserError(what, None, fix=f"start at most {count} processes per machine", code="device.missing")
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def total(self, numbers: Sequence[float]) -> list[float]:
        import torch

        summed = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        self.dist.all_reduce(summed)
        totals: list[float] = summed.tolist()
        return totals

    def share(self, value: Any) -> Any:
        import torch

        data = bytearray(json.dumps(value).encode() if self.first else b"")
        size = torch.tensor(len(data))
        self.broadcast(size)
        data = data or bytearray(int(size))
        self.broadcast(torch.frombuffer(data, dtype=torch.uint8))
        return json.loads(data)

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.dist.broadcast(tensor, src=0)

    def in_turn(self, work: Callable[[], Answer]) -> Answer:
        self.turns += 1
        done = [f"turn {self.turns} of machine {machine}" for machine in range(self.machines)]
        if self.local_rank:
            self.store.wait([done[self.machine]], WAITING)
        answer = work()
        if not self.local_rank:
            self.store.set(done[self.machine], "")
        self.store.wait(done, WAITING)  # not a collective operation: those time out after minutes
        return answer

    def may_report(self, error: str | None = None) -> bool:
        """Return whether this process prints the error. Only the first process that calls this does, since the others end for
        the same reason. A UserError that occurs again after each restart by torchrun is printed once.
        """
        try:
            if int(self.store.add(REPORTS, 1)) > 1:
                return False
            return error is None or int(self.job_store.add(f"{REPORTS}: {error}", 1)) == 1
        except RuntimeError:  # the process that kept the count is gone
            return self.first


def agree_on_group_name(store: Store, rank: int, processes: int) -> str:
    """Return a name that no other group of processes ever had.

    torchrun keeps its store when it restarts processes, so the store can hold the address of a dead process. So each process
    sends a request under a new key, and only a living first process answers it with the name of the group. Requests of dead
    processes are answered too; the answers are not read.
    """
    name = secrets.token_hex(8)
    if rank:
        store.set(f"request of {rank}", name)
        group: str = store.get(f"answer to {name}").decode()  # waits for it
        store.set(f"{rank} joined {group}", "")
        return group
    answered, missing, until = dict[int, bytes](), set(range(1, processes)), time.monotonic() + JOINING.total_seconds()
    while missing:
        for other in sorted(missing):
            key = f"request of {other}"
            if store.check([key]) and (request := store.get(key)) != answered.get(other):
                store.set(f"answer to {request.decode()}", name)
                answered[other] = request
            if store.check([f"{other} joined {name}"]):
                missing.remove(other)
        if time.monotonic() > until:
            raise TimeoutError(f"{len(missing)} of them did not join within {JOINING.total_seconds():.0f} s")
        time.sleep(0.01)
    return name


@contextmanager
def open_world() -> Iterator[World]:
    """Join the process group that the environment describes. An error of one process ends all, and is reported once."""
    environment = os.environ
    launch = torchrun_name(environment)
    if world_size(environment) == 1:
        yield World(launch)
        return
    group = Group(environment, launch)
    try:
        yield group
    except UserError as error:
        if not group.may_report(str(error)):
            raise SystemExit(2) from error
        raise
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        if not group.may_report():
            raise SystemExit(2) from error
        what = f"process {group.rank} lost the connection to the others: {first_line(error)}"
        fix = "read the error of the process that ended first, then resume the run"
        raise UserError(what, None, fix=fix, code="process.lost") from error
    finally:
        group.dist.destroy_process_group()


def exit_process(code: int) -> NoReturn:
    """End one of several processes without finalising the interpreter: a communication thread that needs Python during
    that time makes the C++ runtime abort the process, which torchrun counts as a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def world_size(environment: Mapping[str, str]) -> int:
    """Return WORLD_SIZE; raise if it is wrong or the other variables of a group are missing. A process with the wrong number
    of processes would train silently on the wrong rows."""
    size = environment.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 1:
        what = f"WORLD_SIZE must be a positive number of processes (got {size!r})"
        raise UserError(what, "environment", fix="remove WORLD_SIZE from the environment", code="process.group")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if int(size) > 1 and missing:
        what = f"WORLD_SIZE {size} requires {' and '.join(missing)}, which are not set"
        fix = f"start {size} processes with torchrun, or remove WORLD_SIZE from the environment"
        raise UserError(what, "environment", fix=fix, code="process.group")
    return int(size)


def is_lost_connection(error: RuntimeError) -> bool:
    """Return whether the error is a lost connection: a DistError of nccl or the store, or an error text that names gloo."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or "gloo" in str(error).lower()


def first_line(error: Exception) -> str:
    """Return the first line of an error without the source location that gloo adds."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.rpartition("] ")[2].strip()[:160]
