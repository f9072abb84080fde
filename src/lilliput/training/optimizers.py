"""Build optimizers, and compute and clip gradient norms.

Owns: the optimizer of the settings, its parameter groups (each with a weight decay and a peak learning rate),
gradient norm and clipping. Does not own: Muon itself (`muon`), the learning rate over time (`schedules`), averaged
weights (`weight_averaging`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lilliput.model.attention import SelfAttention
from lilliput.model.heads import ClassifierHead, LanguageHead
from lilliput.model.layers import FeedForward
from lilliput.model.positions import Positions
from lilliput.settings.tree import OptimizerSettings
from lilliput.training.muon import Muon, Together
from lilliput.training.sharded_tensors import is_part, whole
from lilliput.training.training_choices import OPTIMIZERS

Optimizer = torch.optim.Optimizer | Together


def build_optimizer(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    """Build the optimizer of the settings. A group's `peak` is its learning rate before the schedule."""
    builds = OPTIMIZERS[settings.kind].load()
    if isinstance(builds, type) and issubclass(builds, torch.optim.Optimizer):
        groups = parameter_groups(settings, model, trainable(model))
        return builds(groups, lr=settings.lr)  # type: ignore[call-arg]
    built: Optimizer = builds(settings, model)
    return built


def build_sgd(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    groups = parameter_groups(settings, model, trainable(model))
    sharded = any(is_part(parameter) for group in groups for parameter in group["params"])  # torch cannot fuse them
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=not sharded)


def build_adam(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    groups = parameter_groups(settings, model, trainable(model))
    return torch.optim.Adam(groups, lr=settings.lr, betas=settings.betas, eps=settings.epsilon, fused=True)


def build_adamw(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    return adamw_for(settings, model, trainable(model))


def build_muon(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    """Build Muon for the matrices inside the blocks and AdamW for the rest.

    Embedding tables and the head use AdamW: each row is a token, and Muon would scale the gradient of a rare token up to
    that of a frequent one.
    """
    stacked, parameters = stacked_matrices(model), trainable(model)
    rest = adamw_for(settings, model, [p for p in parameters if id(p) not in stacked])
    if not stacked:
        return rest
    matrices: list[dict[str, Any]] = [
        {
            "params": [p for p in parameters if stacked.get(id(p)) == rows],
            "rows": list(rows),
            "peak": settings.matrix_lr,
        }
        for rows in dict.fromkeys(stacked.values())
    ]
    return Together([rest, Muon(matrices, settings.matrix_lr, settings.momentum, settings.weight_decay)])


def adamw_for(settings: OptimizerSettings, model: nn.Module, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Build torch's fused AdamW, which makes one pass over a parameter, its gradient and its moments."""
    groups = parameter_groups(settings, model, parameters)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.epsilon, fused=True)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_groups(
    settings: OptimizerSettings, model: nn.Module, parameters: list[nn.Parameter]
) -> list[dict[str, Any]]:
    """Group parameters by peak learning rate and weight decay. Groups at `optimizer.lr` come first: the rate of the first
    group is logged.

    Matrices are decayed, vectors (biases, norms) are not. Token tables use `embedding_lr` and head matrices `head_lr` if
    set; a tied table counts as a token table.
    """
    peaks = dict.fromkeys(head_matrices(model), settings.head_lr or settings.lr)
    peaks |= dict.fromkeys(token_tables(model), settings.embedding_lr or settings.lr)
    decays = (settings.weight_decay, 0.0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {(settings.lr, decay): [] for decay in decays}
    for parameter in parameters:
        key = (peaks.get(id(parameter), settings.lr), settings.weight_decay if parameter.dim() >= 2 else 0.0)
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "peak": peak, "lr": peak}
        for (peak, decay), members in groups.items()
        if members
    ]


def token_tables(model: nn.Module) -> set[int]:
    """Return the ids of all embedding weights except those of positions."""
    positions = {id(part) for module in model.modules() if isinstance(module, Positions) for part in module.modules()}
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return {id(module.weight) for module in embeddings if id(module) not in positions}


def head_matrices(model: nn.Module) -> set[int]:
    heads = [module for module in model.modules() if isinstance(module, LanguageHead | ClassifierHead)]
    return {id(parameter) for head in heads for parameter in head.parameters() if parameter.dim() >= 2}


def stacked_matrices(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """Map the id of each matrix parameter of the blocks to the heights of the matrices that it stacks."""
    heights: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            sizes = tuple(heads * module.head_dim for heads in (module.heads, module.kv_heads, module.kv_heads))
            heights[id(module.qkv.weight)] = sizes
            heights[id(module.out.weight)] = (module.out.out_features,)
        elif isinstance(module, FeedForward):
            inside = module.down.in_features
            heights[id(module.up.weight)] = (inside,) * (module.up.out_features // inside)
            heights[id(module.down.weight)] = (module.down.out_features,)
    return heights


def parameters_by_state(optimizer: torch.optim.Optimizer | Together) -> dict[str, Any]:
    """Return the parameters in the structure of the optimizer's state_dict, each in place of its own state."""
    if isinstance(optimizer, Together):
        return {"optimizers": [parameters_by_state(one) for one in optimizer.optimizers]}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {"state": dict(enumerate(parameters)), "param_groups": None}


def gradient_norm(model: nn.Module) -> Tensor:
    """Return the norm of the whole gradient, also if it is sharded."""
    return whole(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def clip_gradients(model: nn.Module, norm: Tensor, largest: float) -> None:
    """Scale the gradients down to the norm `largest`; do nothing below it."""
    if norm > largest:
        scale_gradients(model, largest / norm.item())


def scale_gradients(model: nn.Module, factor: float) -> None:
    torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], factor)
