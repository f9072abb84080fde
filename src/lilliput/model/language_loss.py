"""The loss of a language model over a batch.

Owns: the summed loss. Head and cross-entropy are one operation over chunks of tokens, so that the logits of a whole batch
are never in memory. Does not own: dividing by the number of targets (which the caller sums over micro-batches and
processes), the batches (`data.batches`), or the label loss (`classifier_loss`).

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
CHUNK_NUMBERS = 1 << 22  # logits per chunk, 16 MB in float32: they stay in the CPU's last-level cache between five uses


Integers = NDArray[np.integer[Any]]


class LossBatch(Protocol):
    """The fields of a batch of `data.batches` that a loss needs."""

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
    """Losses, summed over all targets that are not IGNORED."""

    goal: Tensor  # (): the training objective, with label smoothing and z-loss
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
    """Return the sum over targets of (1 - smoothing) x nats + smoothing x mean nats of all tokens + z_loss x logsumexp^2."""
    assert isinstance(model.head, LanguageHead)
    x = model.trunk(ids, model.begin(ids, pos, doc)).flatten(0, 1)  # (N, C)
    return head_loss(model.head, x, targets.flatten(), smoothing, z_loss)


def head_loss(head: LanguageHead, x: Tensor, targets: Tensor, smoothing: float = 0.0, z_loss: float = 0.0) -> Nats:
    """Return the loss for hidden states (N, C) and targets (N,)."""
    weight: Tensor = head.project.weight
    bias: Tensor | None = head.project.bias
    if not torch.is_grad_enabled():  # `needs_input_grad` is true for parameters even under `no_grad`
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    return Nats(*LinearCrossEntropy.apply(x, weight, bias, targets, head.soft_cap, smoothing, z_loss))  # type: ignore[no-untyped-call]


def add_product(total: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> None:
    """Set total = beta x total + alpha x a @ b. A product of another dtype needs a temporary tensor."""
    if a.dtype is total.dtype:
        total.addmm_(a, b, beta=beta, alpha=alpha)
    else:
        (total.zero_() if beta == 0.0 else total.mul_(beta)).add_(a @ b, alpha=alpha)


class LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of `x @ weight.T + bias`, with a soft cap: the training objective and the reported loss.

    The forward pass computes the gradients, while the logits of a chunk are in memory: the loss is a scalar, so the backward
    pass only multiplies them by a factor. One buffer holds a chunk's logits, then probabilities, then gradient.

    A soft cap needs a second buffer and uses cap tanh(z / cap) = 2 cap sigmoid(2 z / cap) - cap, because the sigmoid takes a
    third of the time of tanh on a CPU. The last term is dropped: it changes no probability.
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
        # Under autocast the operands of products are 16-bit floats, but sums are not.
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
            # log-sum-exp = top - log p(top), which is exact enough because p(top) is at least 1 / V
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
            if not counts.all():  # avoids a pass over all logits
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
            ctx.slope = 1.0 if cap is None else 4.0  # the cap has slope 1 at 0, the sigmoid 1/4
        ctx.mark_non_differentiable(nats)
        return goal, nats

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor = gradients[0] * ctx.slope
        dx, dweight, dbias = ctx.saved_tensors
        return dx * factor, dweight * factor, None if dbias is None else dbias * factor, None, None, None, None
