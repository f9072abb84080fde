"""Weights that are averaged over the updates.

Owns: the exponential moving average of what is trained, lending it to the model, and its state. Does not own:
when it is judged and saved (`loop`). It is as long as the trainable weights, and costs one pass over them an
update.

The noise of the last updates is averaged out of the weights, as a falling learning rate would do it (Polyak and
Juditsky
1992; Izmailov et al. 2018): it gains most where the rate is kept high.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """average = decay x average + (1 - decay) x weights, after each update. Weights that are frozen are their own average.

    All of it is element by element, and so the same for a tensor that is sharded over processes.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # The average; while it is lent to the model, the weights that are the model's own.
        self.others = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.lent = False

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After update number `step`. The first ones count for more than `decay` says: else an average of 1 / (1 - decay)
        updates would be made mostly of the random weights that it began with."""
        assert not self.lent, "the model is not holding its own weights"
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.others.values()), list(self.weights.values()), 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model holds the averaged weights inside, its own again after."""
        assert not self.lent, "the model is holding the averaged weights already"
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """The numbers and not the tensors, which others refer to (optimizer, shards); one tensor at a time, so that the
        largest is all the room that it takes."""
        for name, weight in self.weights.items():
            held = weight.clone()
            weight.copy_(self.others[name])
            self.others[name].copy_(held)
        self.lent = not self.lent

    def state_dict(self) -> dict[str, Any]:
        """The model's own weights: a checkpoint's model is the average."""
        return {"weights": dict(self.others if self.lent else self.weights)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For a model that has just been given the weights of a checkpoint: they are the average, and `state` has its own."""
        assert not self.lent and state["weights"].keys() == self.weights.keys()
        for name, weight in self.weights.items():
            self.others[name].copy_(weight)
            weight.copy_(state["weights"][name])
