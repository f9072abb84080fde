"""Muon: momentum with orthogonalised updates of matrices (Jordan et al. 2024).

Owns: the orthogonalisation, the optimizer for matrices, and combining two optimizers. Does not own: the choice of
parameters (`optimizers`), the learning rate over time (`schedules`).

N matrices of a batch, R rows, C columns; n is the short side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lilliput.training.sharded_tensors import cut, whole

# Three polynomials of degree 5, each optimal for the result of the one before (Amsel et al. 2025). They map singular values
# from [0.01, 1] to [0.72, 1.28].
COEFFICIENTS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
# A Newton-Schulz step that recomputes the Gram matrix costs 4 n^2 C + 2 n^3. If C > LONG * n, all steps are computed from the
# first Gram matrix, each at most 8 n^3 after the first, and x is multiplied once. The rounding error is 2.4 times as large.
LONG = 1.5
# Numbers per batch of equal shapes (64 MB in float32, and three times that for intermediate results). One batched product
# needs fewer thread barriers than many small ones, which saves a third of the time on a busy machine.
MOST_NUMBERS = 1 << 24


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices (N, R, C) with the same singular vectors and singular values near 1, by Newton-Schulz.

    It computes in the precision of the input. torch.optim.Muon uses bfloat16, which is a hundred times slower on a CPU that
    has to emulate it.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # (N, n, C): the Gram matrices have the size of the short side
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    # Now no singular value is above 1. The norm of the Gram matrix is a closer upper bound of the largest one's square:
    # dividing by it leaves larger singular values to start from.
    gram = torch.bmm(x, x.mT)
    size = torch.linalg.matrix_norm(gram, keepdim=True).clamp(min=1e-7)
    x, gram = x * size.rsqrt(), gram / size
    together = COEFFICIENTS if x.shape[2] > LONG * x.shape[1] else COEFFICIENTS[:1]
    x = torch.bmm(polynomial(gram, together), x)
    for step in COEFFICIENTS[len(together) :]:
        x = torch.bmm(polynomial(torch.bmm(x, x.mT), [step]), x)
    return x.mT if tall else x


def polynomial(gram: Tensor, steps: Sequence[tuple[float, float, float]]) -> Tensor:
    """Return the factor (N, n, n) by which these steps multiply x, from its Gram matrix alone.

    A step is x -> p x with p = a + b g + c g^2, g = x x^T. The Gram matrix of p x is p g p.
    """
    product: Tensor | None = None
    for index, (a, b, c) in enumerate(steps):
        p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=1, dim2=2).add_(a)
        product = p if product is None else torch.bmm(p, product)
        if index + 1 < len(steps):
            gram = torch.bmm(torch.bmm(p, gram), p)
    assert product is not None
    return product


def orthogonalise_stacked(matrices: Tensor, rows: list[int]) -> Tensor:
    """Orthogonalise and scale stacked matrices: `rows` has the height of each matrix that is stacked in (N, R, C).

    Matrices of one height are one batch. Tall matrices get larger steps (Jordan et al.).
    """
    result = torch.empty_like(matrices)
    parts, outputs = torch.split(matrices, rows, dim=1), torch.split(result, rows, dim=1)
    for height in dict.fromkeys(rows):
        chosen = [index for index, other in enumerate(rows) if other == height]
        batch = orthogonalise(torch.cat([parts[index] for index in chosen]))
        scale = max(1.0, height / matrices.shape[2]) ** 0.5
        for index, part in zip(chosen, batch.chunk(len(chosen)), strict=True):
            torch.mul(part, scale, out=outputs[index])
    return result


class Muon(torch.optim.Optimizer):
    """The optimizer for matrices. `rows` of a group: the heights of the matrices that a parameter stacks (queries, keys and
    values). Each is orthogonalised separately, because their gradients differ in size."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameters in batches([p for p in group["params"] if p.grad is not None]):
                self.step_batch(parameters, group)

    def step_batch(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one shape."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages = [self.average_of(p) for p in parameters]
        torch._foreach_lerp_(averages, gradients, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, averages, group["momentum"])  # Nesterov
        # Each process gathers whole matrices and keeps its part of the result.
        steps = orthogonalise_stacked(torch.stack([whole(matrix) for matrix in ahead]), group["rows"])
        own = [cut(matrix, parameter) for matrix, parameter in zip(steps.unbind(), parameters, strict=True)]
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, own, alpha=-group["lr"])

    def average_of(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        average: Tensor = state["momentum"]
        return average


def batches(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield batches of equal shape, each of at most MOST_NUMBERS numbers or one parameter."""
    for shape in dict.fromkeys(p.shape for p in parameters):
        remaining = iter([p for p in parameters if p.shape == shape])
        while batch := list(islice(remaining, max(1, MOST_NUMBERS // shape.numel()))):
            yield batch


class Together:
    """Several optimizers behind the part of the torch interface that the loop uses."""

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
