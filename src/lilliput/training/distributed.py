"""One model over several processes: a copy in each (DDP) or a part in each (FSDP2).

Owns: wrapping the model for both, and when gradients are exchanged. Does not own: the processes
(`process_group`), sharded tensors (`sharded_tensors`), the computation (`objectives`).

DDP and FSDP2 run their hooks when a module is called, but a loss needs more than the model's `forward`. So the
computation is passed, as a function of the model, to the call of a module that holds the model.
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
    """`share`: the factor of each process's loss with which the exchanged gradients are sums over processes."""

    share: float

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Run a forward pass for which a backward pass follows."""
        ...

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Run forward passes without gradients; their number must be the same in every process."""
        ...

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Return the context for forward and backward of a micro-batch. `last`: the last one of its step."""
        ...

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        """Prepare the first step; `work` is a forward pass over an empty batch, whose gradients are zero."""
        ...


class Whole:
    """The model in a single process."""

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
    """The module that DDP and FSDP2 wrap. Its call runs any function of the model."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[Transformer], Answer]) -> Answer:
        return work(self.model)


class Replicated(Whole):
    """A copy of the model in each process. Gradients are exchanged once per step, during its last backward pass."""

    def __init__(self, model: Transformer, world: World) -> None:
        super().__init__(model)
        self.share = float(world.processes)  # DDP computes the mean
        # All processes already have the same weights, and buffers (position tables) never change. Without bucket views,
        # every gradient would be in memory twice.
        self.caller = nn.parallel.DistributedDataParallel(Caller(model), init_sync=False, gradient_as_bucket_view=True)
        self.caller.broadcast_buffers = False

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        return cast(Answer, self.caller(work))

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.caller.no_sync()

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        """Run one backward pass: after its first one, DDP reorders its buckets and so changes the order of sums. Without
        this, the first step of a resumed run would differ by rounding."""
        self.learn(work).backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad()


class Sharded:
    """A part of every weight, gradient and moment in each process. The weights of a block are gathered while it computes.

    Gradients are exchanged after every micro-batch: waiting for the last one would need memory for whole gradients.
    """

    def __init__(self, model: Transformer, world: World, device: torch.device) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        self.share = float(world.processes)  # FSDP2 computes the mean
        mesh = init_device_mesh(device.type, (world.processes,))
        self.caller = cast(FSDPModule, Caller(model))
        for module in (*model.blocks, self.caller):
            part = fully_shard(cast(nn.Module, module), mesh=mesh)
            # FSDP2 allocates whole weights at their first use. If that were in inference mode, they could not be trained.
            part.unshard()
            part.reshard()

    def learn(self, work: Callable[[Transformer], Answer]) -> Answer:
        return cast(Answer, cast(nn.Module, self.caller)(work))

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Run forward passes. Embedding, norm and head stay gathered meanwhile; they are released at the end, because a step
        changes only the parts."""
        try:
            return self.learn(work)
        finally:
            self.caller.reshard()

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def settle(self, work: Callable[[Transformer], Tensor]) -> None:
        pass


def parallelise(model: Transformer, world: World, kind: str, device: torch.device) -> Parallel:
    """Copy the first process's weights to all, and replicate or shard the model. Call it before building the optimizer,
    which needs the sharded parameters."""
    for tensor in weights(model).values():
        world.broadcast(tensor)
    if world.processes > 1 and kind == "shard":  # moves block by block: the device never holds the whole model
        return Sharded(model, world, device)
    model.to(device)
    return Replicated(model, world) if world.processes > 1 else Whole(model)
