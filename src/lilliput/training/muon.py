"""Muon: momentum whose updates of matrices are made orthogonal (Jordan et al. 2024).

Owns: the orthogonalisation, the optimizer of matrices, and two optimizers as one. Does not own: which parameters those are
(`optimizers`), nor the learning rate over time (`schedules`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# A quintic that is steep at zero: five steps lift singular values of 0.01 and more to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonalise(matrix: Tensor) -> Tensor:
    """The same singular vectors, singular values near one, by Newton-Schulz.

    In the precision of the input: torch.optim.Muon rounds to bfloat16, which a CPU without it emulates a hundred times
    slower.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.mT if tall else matrix  # the short side first: the products below have its size
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    straight: Tensor = x.mT if tall else x
    return straight


class Muon(torch.optim.Optimizer):
    """A group has `rows`: where a parameter stacks several matrices (queries, keys and values in one product), the height of
    each. They are made orthogonal one by one: the size of one says nothing about the others."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average: Tensor = state["momentum"]
                average.lerp_(parameter.grad, 1.0 - group["momentum"])
                ahead = parameter.grad.lerp(average, group["momentum"])  # Nesterov
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                start = 0
                for rows in group["rows"]:
                    here = slice(start, start + rows)
                    # A tall matrix has room for larger steps at the same size of output (Jordan et al.).
                    scale = max(1.0, rows / parameter.shape[1]) ** 0.5
                    parameter[here].add_(orthogonalise(ahead[here]), alpha=-group["lr"] * scale)
                    start += rows


class Together:
    """Several optimizers as one: what the loop uses of an optimizer, and the state of each."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
