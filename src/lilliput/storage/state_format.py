"""Convert state_dicts to tensors and JSON, and back, without pickle.

Owns: splitting a nested state into tensors by path and a JSON skeleton, seeds that need no state, and the description of
the machine. Does not own: files (`checkpoints`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def take_apart(state: Any, path: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Return a JSON skeleton and the tensors it names. Integer keys (of torch optimizers) stay integers."""
    if isinstance(state, Tensor):
        return {"tensor": path}, {path: state.detach()}
    if isinstance(state, dict):
        tensors: dict[str, Tensor] = {}
        items = []
        for key, value in state.items():
            inner, found = take_apart(value, f"{path}.{key}" if path else str(key))
            items.append([key, inner])
            assert tensors.keys().isdisjoint(found), f"two tensors would be called {path}.{key}"
            tensors |= found
        return {"dict": items}, tensors
    if isinstance(state, list | tuple):
        parts = [take_apart(value, f"{path}.{index}") for index, value in enumerate(state)]
        kind = "tuple" if isinstance(state, tuple) else "list"
        return {kind: [part[0] for part in parts]}, {name: tensor for part in parts for name, tensor in part[1].items()}
    assert state is None or isinstance(state, bool | int | float | str), (
        f"{path}: {type(state)} cannot be written as JSON"
    )
    return state, {}


def put_together(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(skeleton, dict):
        ((kind, inner),) = skeleton.items()
        if kind == "tensor":
            return tensors[inner]
        if kind == "dict":
            return {key: put_together(value, tensors) for key, value in inner}
        values = [put_together(value, tensors) for value in inner]
        return tuple(values) if kind == "tuple" else values
    return skeleton


def random_seed(seed: int, step: int, micro_batch: int, rank: int) -> int:
    """Return the dropout seed of one micro-batch, so that no generator state is saved (mixing of splitmix64)."""
    mixed = 0
    for part in (seed, step, micro_batch, rank):
        mixed = (mixed ^ part) + 0x9E3779B97F4A7C15 & (2**64 - 1)
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        mixed ^= mixed >> 31
    return mixed & (2**63 - 1)


def describe_machine(processes: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return what a bit-for-bit resume depends on in addition to the checkpoint; `dtype` is that of products."""
    software = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    return software | {"processes": processes, "device": device.type, "precision": str(dtype).removeprefix("torch.")}
