"""The processes that train one run together, and the few words that they exchange.

Owns: what torchrun says of this process, the process group, sums and shared values, whose turn it is, and
ending together. Does not own: the model over several processes (`distributed`), what is agreed on (`loop`,
`session`).

A process alone is a `World` too: it has no group, imports nothing for one, and what it would ask the others
is free. Words are numbers and JSON, and travel over gloo, also where gradients take nccl: a number that is
wanted on the CPU waits for no GPU.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lilliput.errors import UserError

if TYPE_CHECKING:  # a wrong setting is told before torch is imported
    import torch
    from torch._C._distributed_c10d import Store

JOINING = timedelta(minutes=5)  # torchrun starts the processes of a group at about the same time
WAITING = timedelta(days=7)  # for another process's turn: preparing data takes as long as it takes
TELLING = "mistakes"  # the key under which processes count who has told one

MACHINES = (("RANK", "0"), ("WORLD_SIZE", "1"))  # torchrun's: number of this machine, and how many there are

Answer = TypeVar("Answer")


class World:
    """One process, alone. `launch` names the torchrun that started it, through all restarts; None without one."""

    rank = local_rank = 0
    processes = 1

    def __init__(self, launch: str | None = None) -> None:
        self.launch = launch

    @property
    def first(self) -> bool:
        """The one that writes, prints and decides."""
        return self.rank == 0

    def launches(self) -> set[str]:
        """The torchruns of all processes, one on each machine; only the first process need ask."""
        return {self.launch} if self.launch else set()

    def device(self, name: str) -> torch.device:
        from lilliput.devices import choose_device

        return choose_device(name)

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Each summed over all processes, in float64: the same bits everywhere."""
        return list(numbers)

    def share(self, value: Any) -> Any:
        """The first process's, which JSON must be able to hold; what others give does not matter."""
        return value

    def spread(self, tensor: torch.Tensor) -> None:
        """The first process's numbers, into everybody's tensor."""

    def in_turn(self, work: Callable[[], Answer]) -> Answer:
        """One process of each machine first, and then all others: for what is made once and found afterwards."""
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
            self.lasting, self.rank, self.processes = next(iter(rendezvous("env://", timeout=JOINING)))
            self.store = PrefixStore(meet(self.lasting, self.rank, self.processes), self.lasting)
            self.store.set(f"launch of {self.rank}", launch or "")
            dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.processes)
        except (RuntimeError, ValueError, OSError) as error:
            what = f"the {environment['WORLD_SIZE']} processes of WORLD_SIZE found no way to each other: {short(error)}"
            raise UserError(what, None, "starting them with torchrun, which sets all that they need") from error

    def launches(self) -> set[str]:
        return {self.store.get(f"launch of {rank}").decode() for rank in range(self.processes)} - {""}

    def device(self, name: str) -> torch.device:
        import torch

        device = super().device(name)
        if device.type == "mps":
            raise UserError("mps is one device, and there are several processes", None, "--train.device cpu")
        if device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            what = f"process {self.local_rank + 1} of this machine has no GPU: there are {torch.cuda.device_count()}"
            raise UserError(what, None, f"torchrun --nproc-per-node {torch.cuda.device_count()}")
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def total(self, numbers: Sequence[float]) -> list[float]:
        import torch

        summed = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        self.dist.all_reduce(summed)
        found: list[float] = summed.tolist()
        return found

    def share(self, value: Any) -> Any:
        import torch

        data = bytearray(json.dumps(value).encode() if self.first else b"")
        size = torch.tensor(len(data))
        self.spread(size)
        data = data or bytearray(int(size))
        self.spread(torch.frombuffer(data, dtype=torch.uint8))
        return json.loads(data)

    def spread(self, tensor: torch.Tensor) -> None:
        self.dist.broadcast(tensor, src=0)

    def in_turn(self, work: Callable[[], Answer]) -> Answer:
        self.turns += 1
        done = [f"turn {self.turns} of machine {machine}" for machine in range(self.machines)]
        if self.local_rank:
            self.store.wait([done[self.machine]], WAITING)
        answer = work()
        if not self.local_rank:
            self.store.set(done[self.machine], "")
        self.store.wait(done, WAITING)  # no collective: those end with a timeout of minutes
        return answer

    def tells(self, mistake: str | None = None) -> bool:
        """May this process tell what has happened? The first that asks may: one is enough, and the others end because of it.

        A user's mistake is one that torchrun's restarts repeat: it is told by the first processes that make it.
        """
        try:
            if int(self.store.add(TELLING, 1)) > 1:
                return False
            return mistake is None or int(self.lasting.add(f"{TELLING}: {mistake}", 1)) == 1
        except RuntimeError:  # who kept the count is gone
            return self.first


def meet(store: Store, rank: int, processes: int) -> str:
    """A name that no processes but these ever had.

    torchrun keeps its store when it starts processes again: the address that a dead one left there could be taken for that of
    its successor. So each asks under a name that is new, and only the living first process answers it with the group's. What
    dead ones asked is answered too, and nobody hears it.
    """
    name = secrets.token_hex(8)
    if rank:
        store.set(f"{rank} asks", name)
        group: str = store.get(f"answer to {name}").decode()  # waits for it
        store.set(f"{rank} has heard {group}", "")
        return group
    answered, silent, until = dict[int, bytes](), set(range(1, processes)), time.monotonic() + JOINING.total_seconds()
    while silent:
        for other in sorted(silent):
            if store.check([f"{other} asks"]) and (asking := store.get(f"{other} asks")) != answered.get(other):
                store.set(f"answer to {asking.decode()}", name)
                answered[other] = asking
            if store.check([f"{other} has heard {name}"]):
                silent.remove(other)
        if time.monotonic() > until:
            raise TimeoutError(f"{len(silent)} of them did not come within {JOINING.total_seconds():.0f} s")
        time.sleep(0.01)
    return name


@contextmanager
def open_world() -> Iterator[World]:
    """As the environment says. A mistake of one process ends all of them, and is told once."""
    environment = os.environ
    launch = name_launch(environment)
    if said_processes(environment) == 1:
        yield World(launch)
        return
    group = Group(environment, launch)
    try:
        yield group
    except UserError as error:
        if not group.tells(str(error)):
            raise SystemExit(2) from error
        raise
    except RuntimeError as error:
        if not is_lost(error):
            raise
        if not group.tells():
            raise SystemExit(2) from error
        what = f"process {group.rank} has lost the others: {short(error)}"
        raise UserError(what, None, "what the one that ended first has told; the run can be resumed") from error
    finally:
        group.dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End one of several processes without taking the interpreter apart: a thread of the exchange that asks for Python
    meanwhile makes the C++ runtime abort the process, which torchrun takes for a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def said_processes(environment: Mapping[str, str]) -> int:
    """WORLD_SIZE, if a group can be made of what else is said. A process that trains alone and believes itself one of
    several, or the other way round, would be silently wrong."""
    said = environment.get("WORLD_SIZE", "1")
    if not said.isdecimal() or int(said) < 1:
        raise UserError(f"WORLD_SIZE is {said!r}, which is no number of processes", "environment", "unset WORLD_SIZE")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if int(said) > 1 and missing:
        what = f"WORLD_SIZE is {said}, but {' and '.join(missing)} are not set: there is no group of processes"
        fix = f"torchrun --nproc-per-node {said} -m lilliput train ..., or unset WORLD_SIZE"
        raise UserError(what, "environment", fix)
    return int(said)


def name_launch(environment: Mapping[str, str]) -> str | None:
    """The torchrun that started this process, by the machine and the folder that it has made for its job and for no other.

    Its id of a job may be a user's, who gives the same to the next; its count of restarts leaves out those for a machine that
    came. With `--log-dir /dev/null` it has no folder, but still a process.
    """
    if environment.get("TORCHELASTIC_RUN_ID") is None:
        return None
    errors = environment.get("TORCHELASTIC_ERROR_FILE")  # FOLDER/attempt_N/local rank/error.json
    return f"{socket.gethostname()} {Path(errors).parents[2] if errors else os.getppid()}"


def is_lost(error: RuntimeError) -> bool:
    """The others are gone: torch has a class for what nccl and the store say; gloo's errors are plain, and name it."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or "gloo" in str(error).lower()


def short(error: Exception) -> str:
    """The first line without the place in the source that gloo puts before it."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.rpartition("] ")[2].strip()[:160]
