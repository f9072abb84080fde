"""How gradients become steps.

Owns: the optimizer of the settings, its groups of parameters (each with its decay and its peak learning
rate), the norm of the gradient and clipping. Does not own: how Muon steps (`muon`), the learning rate over
time (`schedules`), nor weights that are averaged (`weight_averaging`).
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
    parts = any(is_part(parameter) for group in groups for parameter in group["params"])  # which torch does not fuse
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=not parts)


def build_adam(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    groups = parameter_groups(settings, model, trainable(model))
    return torch.optim.Adam(groups, lr=settings.lr, betas=settings.betas, eps=settings.epsilon, fused=True)


def build_adamw(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    return adamw_for(settings, model, trainable(model))


def build_muon(settings: OptimizerSettings, model: nn.Module) -> Optimizer:
    """Build Muon for the matrices inside the blocks and AdamW for the rest.

    Tables and the head stay AdamW's: their rows are words, and the gradient of a rare word must not be scaled up to the size
    of a frequent one's.
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
    """Build torch's AdamW, fused: one pass over a parameter, its gradient and its moments."""
    groups = parameter_groups(settings, model, parameters)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.epsilon, fused=True)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_groups(
    settings: OptimizerSettings, model: nn.Module, parameters: list[nn.Parameter]
) -> list[dict[str, Any]]:
    """Those of one peak and one decay together; those at `optimizer.lr` come first, and the first group's rate is the one
    that is told.

    Matrices are decayed, vectors (biases, norms) are not: by dimension, no lists of names. Tables of tokens and the
    matrices of the head may have peaks of their own; a table that is also the head's matrix is a table.
    """
    peaks = dict.fromkeys(head_matrices(model), settings.head_lr or settings.lr)
    peaks |= dict.fromkeys(token_tables(model), settings.embedding_lr or settings.lr)
    decays = (settings.weight_decay, 0.0)
    found: dict[tuple[float, float], list[nn.Parameter]] = {(settings.lr, decay): [] for decay in decays}
    for parameter in parameters:
        key = (peaks.get(id(parameter), settings.lr), settings.weight_decay if parameter.dim() >= 2 else 0.0)
        found.setdefault(key, []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "peak": peak, "lr": peak}
        for (peak, decay), members in found.items()
        if members
    ]


def token_tables(model: nn.Module) -> set[int]:
    """Every table that is looked up by token, by identity: all embeddings but those of positions."""
    places = {id(part) for module in model.modules() if isinstance(module, Positions) for part in module.modules()}
    return {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding) and id(module) not in places
    }


def head_matrices(model: nn.Module) -> set[int]:
    heads = [module for module in model.modules() if isinstance(module, LanguageHead | ClassifierHead)]
    return {id(parameter) for head in heads for parameter in head.parameters() if parameter.dim() >= 2}


def stacked_matrices(model: nn.Module) -> dict[int, tuple[int, ...]]:
    """The matrices inside the blocks, by identity, with the heights of those that one parameter stacks."""
    found: dict[int, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            sizes = tuple(heads * module.head_dim for heads in (module.heads, module.kv_heads, module.kv_heads))
            found[id(module.qkv.weight)] = sizes
            found[id(module.out.weight)] = (module.out.out_features,)
        elif isinstance(module, FeedForward):
            inside = module.down.in_features
            found[id(module.up.weight)] = (inside,) * (module.up.out_features // inside)
            found[id(module.down.weight)] = (module.down.out_features,)
    return found


def parameters_by_state(optimizer: torch.optim.Optimizer | Together) -> dict[str, Any]:
    """The parameters in the shape of the optimizer's state_dict: each stands for all that is kept of it."""
    if isinstance(optimizer, Together):
        return {"optimizers": [parameters_by_state(one) for one in optimizer.optimizers]}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {"state": dict(enumerate(parameters)), "param_groups": None}


def gradient_norm(model: nn.Module) -> Tensor:
    """Of the whole gradient, also where processes have parts of it."""
    return whole(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))


def clip_gradients(model: nn.Module, norm: Tensor, largest: float) -> None:
    """Scale the whole gradient down to the largest norm.

    Left untouched below it, so that clipping costs nothing there.
    """
    if norm > largest:
        scale_gradients(model, largest / norm.item())


def scale_gradients(model: nn.Module, factor: float) -> None:
    torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], factor)
