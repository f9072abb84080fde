"""One model over several processes: whole in one, whole in each (DDP), or a part in each (FSDP2).

Owns: standing around the model wherever something is computed with it, and when gradients are exchanged. Does
not own: the processes (`process_group`), tensors in parts (`sharded_tensors`), what is computed
(`objectives`).

DDP and FSDP2 act when a module is called, and the loss of a language model is more than its `forward`: so all
that is done with the model is handed, as a function of it, to the call of a module that holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from lilliput.model.transformer import Transformer, weights
from lilliput.training.process_group import World

Answer = TypeVar("Answer")


class Parallel(Protocol):
    """`share` is what a process's part of the loss is multiplied by, so that gradients are sums over processes."""

    share: float

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        """A forward pass that a backward follows."""
        ...

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Forward passes without gradients, as many as the work needs; as many in every process."""
        ...

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch, which is the last of its update or not."""
        ...

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        """Before the first update, with a forward pass over nothing, whose gradients are zeros."""
        ...


class Whole:
    """In one process."""

    share = 1.0

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        return work(self.model)

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        return work(self.model)

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        pass


class Caller(nn.Module):
    """What DDP and FSDP2 stand around: its call is whatever is to be done with the model."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Transformer], Answer]) -> Answer:
        return work(self.model)


class Replicated(Whole):
    """The whole model in each process; gradients are exchanged once an update, while its last backward still runs."""

    def __init__(self, model: Transformer, world: World) -> None:
        super().__init__(model)
        self.share = float(world.processes)  # DDP gives the mean
        # All processes have the same weights by now, and buffers (tables of positions) never change. Views: else all gradients
        # would be there twice, once as they are sent.
        self.caller = nn.parallel.DistributedDataParallel(Caller(model), init_sync=False, gradient_as_bucket_view=True)
        self.caller.broadcast_buffers = False

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        return cast(Answer, self.caller(work))

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.caller.no_sync()

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        """After its first backward DDP puts gradients in the order in which they came, and what is summed elsewhere is summed
        in another order of processes: a resumed run would differ in its first update by rounding."""
        self.learn(work).backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad()


class Sharded:
    """A part of every weight, gradient and moment in each process; a block's weights are gathered while it computes.

    Gradients are exchanged with every micro-batch: to wait for the last would mean to keep them whole, and the memory for
    that is what parts are there to save.
    """

    def __init__(self, model: Transformer, world: World, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self.share = float(world.processes)  # FSDP2 gives the mean
        mesh = init_device_mesh(device.type, (world.processes,))
        self.caller = cast(FSDPModule, Caller(model))
        for module in (*model.blocks, self.caller):
            part = fully_shard(cast(nn.Module, module), mesh=mesh)
            # The room for whole weights is made at its first use, which must not be one of inference mode: what is made
            # there can never be learned with.
            part.unshard()
            part.reshard()

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        return cast(Answer, cast(nn.Module, self.caller)(work))

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """The ends of the model (embedding, norm, head) stay gathered until all of it is done, and no longer: an update
        would change the parts, and not what is gathered."""
        try:
            return self.learn(work)
        finally:
            self.caller.reshard()

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        pass


def parallelise(model: Transformer, world: World, kind: str, device: torch.device) -> Parallel:
    """All processes begin with the first one's weights. Before the optimizer is made: its parameters are the parts."""
    for tensor in weights(model).values():
        world.broadcast(tensor)
    if world.processes > 1 and kind == "shard":  # block by block to the device, which never holds the whole
        return Sharded(model, world, device)
    model.to(device)
    return Replicated(model, world) if world.processes > 1 else Whole(model)
