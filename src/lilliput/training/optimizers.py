"""How gradients become steps.

Owns: the optimizer of the settings, decay groups, clipping. Does not own: the learning rate over time (`schedules`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lilliput.model.attention import Attention
from lilliput.model.layers import FeedForward
from lilliput.settings import OptimizerSettings
from lilliput.training.muon import Muon, Together


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> torch.optim.Optimizer | Together:
    """AdamW for all; or, with muon, Muon for the matrices inside the blocks and AdamW for the rest.

    Tables and the head stay AdamW's: their rows are words, and the gradient of a rare word must not be scaled up to the size
    of a frequent one's. Matrices are decayed, vectors (biases, norms) are not: by dimension, no lists of names. A group's
    `peak` is its learning rate before the schedule.
    """
    stacked = stacked_matrices(model) if settings.kind == "muon" else {}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rest = [parameter for parameter in trainable if id(parameter) not in stacked]
    groups = [
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": settings.weight_decay, "peak": settings.lr},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0, "peak": settings.lr},
    ]
    adamw = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,
    )
    if not stacked:
        return adamw
    matrices: list[dict[str, Any]] = [
        {"params": [p for p in trainable if stacked.get(id(p)) == rows], "rows": list(rows), "peak": settings.matrix_lr}
        for rows in dict.fromkeys(stacked.values())
    ]
    return Together([adamw, Muon(matrices, settings.matrix_lr, settings.momentum, settings.weight_decay)])


def stacked_matrices(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """The matrices inside the blocks, by identity, with the heights of those that one parameter stacks."""
    found: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            sizes = tuple(heads * module.head_dim for heads in (module.heads, module.kv_heads, module.kv_heads))
            found[id(module.qkv.weight)] = sizes
            found[id(module.out.weight)] = (module.out.out_features,)
        elif isinstance(module, FeedForward):
            inside = module.down.in_features
            found[id(module.up.weight)] = (inside,) * (module.up.out_features // inside)
            found[id(module.down.weight)] = (module.down.out_features,)
    return found


def gradient_norm(model: nn.Module) -> Tensor:
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def clip_gradients(model: nn.Module, norm: Tensor, largest: float) -> None:
    """Scale the whole gradient down to the largest norm.

    Left untouched below it, so that clipping costs nothing there.
    """
    if norm > largest:
        torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], largest / norm)
