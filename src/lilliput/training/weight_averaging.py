"""Exponential moving average of the weights.

Owns: the average of the trainable weights, applying it to the model, and its state. Does not own: when it is
evaluated and saved (`loop`). It needs memory for one copy of these weights and one pass over them per step.

Averaging removes the noise of the last steps, as a falling learning rate does (Polyak and Juditsky 1992; Izmailov
et al. 2018). It helps most where the learning rate stays high.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """average = decay x average + (1 - decay) x weights, after each step. Frozen weights are not averaged.

    All operations are elementwise, so they also work on sharded tensors.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        # The average; while it is applied to the model, the model's own weights.
        self.others = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.in_model = False

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after step `step`. Early in the run the decay is lower, so that the random initial weights are
        forgotten soon."""
        assert not self.in_model, "the model does not hold its own weights"
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.others.values()), list(self.weights.values()), 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the averaged weights into the model while the context is open."""
        assert not self.in_model, "the model holds the averaged weights already"
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Swap the values, not the tensors, to which the optimizer and shards refer. One tensor at a time saves memory."""
        for name, weight in self.weights.items():
            held = weight.clone()
            weight.copy_(self.others[name])
            self.others[name].copy_(held)
        self.in_model = not self.in_model

    def state_dict(self) -> dict[str, Any]:
        """Return the model's own weights: the model of a checkpoint holds the average."""
        return {"weights": dict(self.others if self.in_model else self.weights)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the average from the model, which has just loaded a checkpoint, and the model's own weights from `state`."""
        assert not self.in_model and state["weights"].keys() == self.weights.keys()
        for name, weight in self.weights.items():
            self.others[name].copy_(weight)
            weight.copy_(state["weights"][name])
