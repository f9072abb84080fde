"""Tensors of which each process has a part, and the whole ones of checkpoints.

Owns: gathering what is in parts, cutting and dealing out what is whole. Does not own: what is in parts, and
why (`distributed`); files (`storage.checkpoints`).

Checkpoints know nothing of parts: what one number of processes wrote in one way, another reads in another.
Tensors are gathered and dealt out one at a time, so that only the first process ever needs room for all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lilliput.model.transformer import Transformer, weights
from lilliput.training.process_group import World


def is_part(tensor: Tensor) -> bool:
    """A DTensor is known by its method: its module takes more than a second to import, and a process alone has none."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, if each process has a part; every process must ask."""
    found: Tensor = tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return found


def cut(full: Tensor, like: Tensor) -> Tensor:
    """This process's part of what every process has whole, cut as `like` is; nothing is sent."""
    return distribute(full, like, None) if is_part(like) else full


def distribute(full: Tensor, like: Any, source: int | None) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=source)


def gather(world: World, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of each, in the first process; the others have one of them at a time, and in the end none."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if world.first:
            found[name] = full.cpu() if is_part(tensor) else full
    return found


def deal(world: World, full: Tensor, like: Tensor) -> Tensor:
    """The first process's tensor to all, on the device of `like`, and in parts where that is in parts and of the same shape.
    The others know only what it looks like: theirs is on "meta"."""
    if world.processes == 1:
        return full
    here = full.to(like.device) if world.first else torch.empty_like(full, device=like.device)
    if is_part(like) and like.shape == here.shape:
        return distribute(here, like, 0)
    world.broadcast(here)
    return here


def deal_state(world: World, saved: Any, like: Any) -> Any:
    """A nested state, as `deal` gives its tensors. `like` has the same shape, or from somewhere on is one tensor, as a
    parameter is for all that an optimizer keeps of it."""
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
def deal_weights(world: World, model: Transformer, found: Mapping[str, Tensor]) -> None:
    """The first process's weights into the model of each; what others give does not matter."""
    targets = weights(model)
    assert not world.first or found.keys() == targets.keys(), "not this model's weights"
    for name, target in targets.items():
        kind, look = target.dtype, torch.empty(target.shape, dtype=target.dtype, device="meta")
        full = found[name].to(kind) if world.first else look
        target.copy_(deal(world, full, target))


def share_looks(world: World, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the first process its tensors; in the others what they look like, on "meta", for `deal`."""
    looks = world.share({name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()})
    if world.first:
        return dict(tensors)
    return {
        name: torch.empty(shape, dtype=getattr(torch, kind), device="meta") for name, (shape, kind) in looks.items()
    }
