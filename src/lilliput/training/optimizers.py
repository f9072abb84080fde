"""How gradients become steps.

Owns: the optimizer of the settings, decay groups, clipping. Does not own: the learning rate over time (`schedules`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lilliput.settings import OptimizerSettings


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Matrices are decayed, vectors (biases, norms) are not: by dimension, no lists of names."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=True,
    )


def gradient_norm(model: nn.Module) -> Tensor:
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def clip_gradients(model: nn.Module, norm: Tensor, largest: float) -> None:
    """Scale the whole gradient down to the largest norm.

    Left untouched below it, so that clipping costs nothing there.
    """
    if norm > largest:
        torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], largest / norm)
