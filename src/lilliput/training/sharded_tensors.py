"""Conversion between sharded tensors (DTensor) and the whole tensors of checkpoints.

Owns: gathering, splitting and distributing tensors. Does not own: which tensors are sharded (`distributed`), files
(`storage.checkpoints`).

Checkpoints hold whole tensors, so a run can be resumed with another number of processes. Tensors are gathered and
distributed one at a time: only the first process needs memory for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lilliput.model.transformer import Transformer, weights
from lilliput.training.process_group import World


def is_part(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, by its method: importing the class takes more than a second."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded; all processes must call this."""
    full: Tensor = tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return full


def cut(full: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a tensor that every process has whole, sharded like `like`; nothing is sent."""
    return distribute(full, like, None) if is_part(like) else full


def distribute(full: Tensor, like: Any, source: int | None) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=source)


def gather(world: World, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors in the first process and an empty dict in the others."""
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if world.first:
            gathered[name] = full.cpu() if is_part(tensor) else full
    return gathered


def deal(world: World, full: Tensor, like: Tensor) -> Tensor:
    """Send the first process's tensor to all, on the device of `like`, and sharded like it if the shapes are equal. In the
    other processes, `full` is on "meta" and gives only shape and type."""
    if world.processes == 1:
        return full
    local = full.to(like.device) if world.first else torch.empty_like(full, device=like.device)
    if is_part(like) and like.shape == local.shape:
        return distribute(local, like, 0)
    world.broadcast(local)
    return local


def deal_state(world: World, saved: Any, like: Any) -> Any:
    """Apply `deal` to the tensors of a nested state. `like` has the same structure, or one tensor in place of a subtree: a
    parameter for its optimizer state."""
    if isinstance(saved, Tensor):
        return deal(world, saved, like)
    if isinstance(saved, dict):
        return {
            key: deal_state(world, inner, like[key] if isinstance(like, dict) else like) for key, inner in saved.items()
        }
    if isinstance(saved, list | tuple):
        likes = like if isinstance(like, list | tuple) else [like] * len(saved)
        return type(saved)(deal_state(world, *pair) for pair in zip(saved, likes, strict=True))
    return saved


@torch.no_grad()
def deal_weights(world: World, model: Transformer, loaded: Mapping[str, Tensor]) -> None:
    """Copy the first process's `loaded` weights into the model of every process."""
    targets = weights(model)
    assert not world.first or loaded.keys() == targets.keys(), "weights of another model"
    for name, target in targets.items():
        empty = torch.empty(target.shape, dtype=target.dtype, device="meta")
        full = loaded[name].to(target.dtype) if world.first else empty
        target.copy_(deal(world, full, target))


def share_shapes(world: World, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in the first process, and tensors of the same shapes and types on "meta" in the others, for `deal`."""
    shapes = world.share({name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()})
    if world.first:
        return dict(tensors)
    return {
        name: torch.empty(shape, dtype=getattr(torch, kind), device="meta") for name, (shape, kind) in shapes.items()
    }
