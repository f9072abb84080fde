"""Muon: momentum whose updates of matrices are made orthogonal (Jordan et al. 2024).

Owns: the orthogonalisation, the optimizer of matrices, and two optimizers as one. Does not own: which
parameters those are (`optimizers`), nor the learning rate over time (`schedules`).

N matrices at once, R rows, C columns; n is the short side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lilliput.training.sharded_tensors import cut, whole

# Three quintics, each the best of its degree for what the one before leaves (Amsel et al. 2025): they lift singular values
# from 0.01 to 1 to between 0.72 and 1.28.
COEFFICIENTS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
# A step that takes its Gram matrix anew costs 4 n^2 C + 2 n^3. Where x is so much longer than high, all steps are taken on the
# Gram matrix alone, each after the first at most 8 n^3, and x is multiplied once. Rounding then ends 2.4 times as far off.
LONG = 1.5
# Matrices of one shape are one batch, which the threads share out among them instead of meeting at the end of every small
# product: on a busy machine that is a third of the time. 64 MB in float32; the work needs three times as much beside.
MOST_NUMBERS = 1 << 24


def orthogonalise(matrices: Tensor) -> Tensor:
    """(N, R, C): the same singular vectors, singular values near one, by Newton-Schulz.

    In the precision of the input: torch.optim.Muon rounds to bfloat16, which a CPU without it emulates a hundred times
    slower.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # (N, n, C): the Gram matrices have the size of the short side
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    # By its own size no singular value is above one. The Gram matrix's size is nearer to the largest one's square and never
    # below it: what is divided by that begins higher up.
    gram = torch.bmm(x, x.mT)
    size = torch.linalg.matrix_norm(gram, keepdim=True).clamp(min=1e-7)
    x, gram = x * size.rsqrt(), gram / size
    together = COEFFICIENTS if x.shape[2] > LONG * x.shape[1] else COEFFICIENTS[:1]
    x = torch.bmm(polynomial(gram, together), x)
    for step in COEFFICIENTS[len(together) :]:
        x = torch.bmm(polynomial(torch.bmm(x, x.mT), [step]), x)
    return x.mT if tall else x


def polynomial(gram: Tensor, steps: Sequence[tuple[float, float, float]]) -> Tensor:
    """(N, n, n): what these steps multiply x with, from its Gram matrix alone.

    A step is x -> p x with p = a + b g + c g^2, g = x x^T; and the Gram matrix of p x is p g p.
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
    """(N, R, C), each of which stacks matrices of so many rows: each is made orthogonal by itself, those of one height as
    one batch, and scaled. A tall matrix has room for larger steps at the same size of output (Jordan et al.)."""
    straight = torch.empty_like(matrices)
    parts, places = torch.split(matrices, rows, dim=1), torch.split(straight, rows, dim=1)
    for height in dict.fromkeys(rows):
        chosen = [index for index, there in enumerate(rows) if there == height]
        found = orthogonalise(torch.cat([parts[index] for index in chosen]))
        scale = max(1.0, height / matrices.shape[2]) ** 0.5
        for index, part in zip(chosen, found.chunk(len(chosen)), strict=True):
            torch.mul(part, scale, out=places[index])
    return straight


class Muon(torch.optim.Optimizer):
    """A group has `rows`: where a parameter stacks several matrices (queries, keys and values in one product), the height of
    each. They are made orthogonal one by one: the size of one says nothing about the others."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameters in batches([p for p in group["params"] if p.grad is not None]):
                self.step_batch(parameters, group)

    def step_batch(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Parameters of one shape: momentum and decay where they lie, then one batch of whole matrices."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        averages = [self.average_of(p) for p in parameters]
        torch._foreach_lerp_(averages, gradients, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, averages, group["momentum"])  # Nesterov
        # Of a matrix that is in parts over processes each gathers the whole, and keeps of the result its own part.
        straight = orthogonalise_stacked(torch.stack([whole(matrix) for matrix in ahead]), group["rows"])
        own = [cut(matrix, parameter) for matrix, parameter in zip(straight.unbind(), parameters, strict=True)]
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, own, alpha=-group["lr"])

    def average_of(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        average: Tensor = state["momentum"]
        return average


def batches(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Those of one shape together, as many as memory is spent on."""
    for shape in dict.fromkeys(p.shape for p in parameters):
        left = iter([p for p in parameters if p.shape == shape])
        while batch := list(islice(left, max(1, MOST_NUMBERS // shape.numel()))):
            yield batch


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
