"""From the trunk's output to nats: the head and its cross-entropy as one operation.

Owns: the summed loss of a language model, computed over chunks of tokens so that the logits of a whole batch never exist.
Does not own: dividing by tokens (the caller knows how many there are over all micro-batches and processes).

N tokens, n tokens of a chunk, C dim, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lilliput.model.layers import LanguageHead
from lilliput.model.transformer import Transformer

IGNORED = -100  # the target of padding: torch's own convention
CHUNK_NUMBERS = 1 << 22  # logits in flight, 16 MB in float32: they stay in a CPU's last cache between their five uses


def language_loss(model: Transformer, ids: Tensor, targets: Tensor, pos: Tensor | None, doc: Tensor | None) -> Tensor:
    """Nats of all targets that are not IGNORED, summed."""
    assert isinstance(model.head, LanguageHead)
    x = model.trunk(ids, model.begin(ids, pos, doc)).flatten(0, 1)  # (N, C)
    head = model.head.project
    loss: Tensor = LinearCrossEntropy.apply(x, head.weight, head.bias, targets.flatten())  # type: ignore[no-untyped-call]
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `x @ weight.T + bias`.

    The gradients are made in the forward pass, while a chunk's logits are at hand: the loss is a scalar, so all that the
    backward pass can add to them is a factor. One buffer holds a chunk's logits, then probabilities, then gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        chunk = max(1, CHUNK_NUMBERS // len(weight))
        learning = any(ctx.needs_input_grad)
        nats = x.new_zeros(())
        dx, dweight, dbias = (
            torch.empty_like(x),
            torch.zeros_like(weight),
            None if bias is None else torch.zeros_like(bias),
        )
        buffer = x.new_empty(min(chunk, len(x)), len(weight))
        for start in range(0, len(x), chunk):
            here = slice(start, start + chunk)
            counts = targets[here, None] != IGNORED  # (n, 1)
            goal = targets[here, None].where(counts, 0)
            scores = torch.mm(x[here], weight.t(), out=buffer[: len(goal)])  # (n, V)
            if bias is not None:
                scores += bias
            top, right = scores.amax(dim=-1, keepdim=True), scores.gather(1, goal)
            torch.softmax(scores, dim=-1, out=scores)
            # log-sum-exp = top - log p(top): p(top) is at least 1 / V, so nothing is lost by way of the probabilities
            nats += ((top - scores.amax(dim=-1, keepdim=True).log() - right) * counts).sum()
            if not learning:
                continue
            scores.scatter_add_(1, goal, scores.new_full((), -1.0).expand(goal.shape))
            if not counts.all():  # else a pass over all logits for nothing
                scores *= counts
            torch.mm(scores, weight, out=dx[here])
            dweight.addmm_(scores.t(), x[here])
            if dbias is not None:
                dbias += scores.sum(dim=0)
        if learning:
            ctx.save_for_backward(dx, dweight, dbias)
        return nats

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        (factor,) = gradients
        dx, dweight, dbias = ctx.saved_tensors
        return dx * factor, dweight * factor, None if dbias is None else dbias * factor, None
