"""The loss of a language model over a batch.

Owns: the summed loss, computed over chunks of tokens with the head and its cross-entropy as one operation, so that the
logits of a whole batch never exist. Does not own: dividing by the number of targets (the caller knows how many there are
over all micro-batches and processes), the batches (`data.batches`), or the loss of labels (`classifier_loss`).

B rows, T positions, N tokens, n tokens of a chunk, C dim, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.model.heads import LanguageHead
from lilliput.model.transformer import Transformer

IGNORED = -100  # the target of padding: torch's own convention
CHUNK_NUMBERS = 1 << 22  # logits in flight, 16 MB in float32: they stay in a CPU's last cache between their five uses


Integers = NDArray[np.integer[Any]]


class LossBatch(Protocol):
    """What a loss needs of the rows of `data.batches`."""

    @property
    def ids(self) -> Integers: ...  # (B, T)

    @property
    def pos(self) -> Integers | None: ...  # (B, T)


class LanguageLossBatch(LossBatch, Protocol):
    @property
    def targets(self) -> Integers: ...  # (B, T)

    @property
    def doc(self) -> Integers | None: ...  # (B, T)


class Nats(NamedTuple):
    """Summed over all targets that are not IGNORED."""

    goal: Tensor  # (): the training objective: smoothed, with its penalty
    nats: Tensor  # (): the reported loss: plain cross-entropy, detached


def batch_loss(model: Transformer, batch: LanguageLossBatch, smoothing: float = 0.0, z_loss: float = 0.0) -> Nats:
    """Return the summed loss of all targets of a batch."""
    ids, targets = tensor(model, batch.ids), tensor(model, batch.targets)
    pos, doc = (None if array is None else tensor(model, array) for array in (batch.pos, batch.doc))
    return language_loss(model, ids, targets, pos, doc, smoothing, z_loss)


def tensor(model: Transformer, array: Integers) -> Tensor:
    return torch.from_numpy(array).to(model.device)


def language_loss(
    model: Transformer,
    ids: Tensor,
    targets: Tensor,
    pos: Tensor | None,
    doc: Tensor | None,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Nats:
    """For each target (1 - smoothing) x its nats + smoothing x the mean nats of all tokens + z_loss x logsumexp^2."""
    assert isinstance(model.head, LanguageHead)
    x = model.trunk(ids, model.begin(ids, pos, doc)).flatten(0, 1)  # (N, C)
    return head_loss(model.head, x, targets.flatten(), smoothing, z_loss)


def head_loss(head: LanguageHead, x: Tensor, targets: Tensor, smoothing: float = 0.0, z_loss: float = 0.0) -> Nats:
    """The loss of states (N, C) and targets (N,)."""
    weight: Tensor = head.project.weight
    bias: Tensor | None = head.project.bias
    if not torch.is_grad_enabled():  # a function is told that a parameter needs a gradient also where none is taken
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    return Nats(*LinearCrossEntropy.apply(x, weight, bias, targets, head.soft_cap, smoothing, z_loss))  # type: ignore[no-untyped-call]


def add_product(total: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> None:
    """total = beta x total + alpha x a @ b. The product may be of fewer bits than the total; then it exists for a moment."""
    if a.dtype is total.dtype:
        total.addmm_(a, b, beta=beta, alpha=alpha)
    else:
        (total.zero_() if beta == 0.0 else total.mul_(beta)).add_(a @ b, alpha=alpha)


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `x @ weight.T + bias`, capped if `cap` says so: what is descended, and what is told.

    The gradients are made in the forward pass, while a chunk's logits are at hand: the loss is a scalar, so all that the
    backward pass can add to them is a factor. One buffer holds a chunk's logits, then probabilities, then gradient.

    A cap needs a second buffer, and is made of sigmoids: cap tanh(z / cap) = 2 cap sigmoid(2 z / cap) - cap, and a CPU has
    the sigmoid in a third of the tanh's time. The last term is left out, for it changes no probability.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        cap: float | None,
        smoothing: float,
        z_loss: float,
    ) -> tuple[Tensor, Tensor]:
        vocab_size, learning = len(weight), any(ctx.needs_input_grad)
        chunk = max(1, CHUNK_NUMBERS // vocab_size // (1 if cap is None else 2))
        steep, lift = (1.0, 0.0) if cap is None else (2.0 / cap, cap)
        goal, nats = weight.new_zeros(()), weight.new_zeros(())
        # Under automatic casting products are of 16 bits, and all that is summed up is not.
        device = x.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        states, matrix = x.to(kind), weight.to(kind)
        buffer = weight.new_empty(min(chunk, len(x)), vocab_size)
        bent = buffer if cap is None else torch.empty_like(buffer)
        if learning:
            dx, dweight = torch.empty_like(x, dtype=weight.dtype), torch.zeros_like(weight)
            dbias = None if bias is None else torch.zeros_like(bias)
        for start in range(0, len(x), chunk):
            here = slice(start, start + chunk)
            counts = targets[here, None] != IGNORED  # (n, 1)
            right = targets[here, None].where(counts, 0)
            scores, bend = buffer[: len(right)], bent[: len(right)]  # (n, V)
            if bias is not None:
                scores.copy_(bias)
            add_product(scores, states[here], matrix.t(), beta=0.0 if bias is None else steep, alpha=steep)
            if cap is not None:
                torch.mul(torch.sigmoid(scores, out=bend), 2.0 * cap, out=scores)
            top, at_right = scores.amax(dim=-1, keepdim=True), scores.gather(1, right)
            mean = scores.mean(dim=-1, keepdim=True) if smoothing else at_right
            torch.softmax(scores, dim=-1, out=scores)
            # log-sum-exp = top - log p(top): p(top) is at least 1 / V, so nothing is lost by way of the probabilities
            total = top - scores.amax(dim=-1, keepdim=True).log()
            nats += ((total - at_right) * counts).sum()
            wanted = total - at_right.lerp(mean, smoothing)
            if z_loss:
                wanted += z_loss * (total - lift).square()
                scores *= 1.0 + 2.0 * z_loss * (total - lift)
            goal += (wanted * counts).sum()
            if not learning:
                continue
            scores.scatter_add_(1, right, scores.new_full((), smoothing - 1.0).expand(right.shape))
            if smoothing:
                scores -= smoothing / vocab_size
            if not counts.all():  # else a pass over all logits for nothing
                scores *= counts
            if cap is not None:
                torch.ops.aten.sigmoid_backward.grad_input(scores, bend, grad_input=scores)
            slopes = scores.to(matrix.dtype)
            add_product(dx[here], slopes, matrix, beta=0.0)
            add_product(dweight, slopes.t(), states[here])
            if dbias is not None:
                dbias += scores.sum(dim=0)
        if learning:
            ctx.save_for_backward(dx, dweight, dbias)
            ctx.slope = 1.0 if cap is None else 4.0  # of the cap at 0, by the sigmoid's 1/4
        ctx.mark_non_differentiable(nats)
        return goal, nats

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor = gradients[0] * ctx.slope
        dx, dweight, dbias = ctx.saved_tensors
        return dx * factor, dweight * factor, None if dbias is None else dbias * factor, None, None, None, None
