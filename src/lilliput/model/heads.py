"""Output heads: logits over the vocabulary, over labels, or both.

Owns: the heads and the soft cap of their logits. Does not own: the loss (`language_loss`, `classifier_loss`).

B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lilliput.model.attention import PassState
from lilliput.settings.tree import ModelSettings


class SoftCap(nn.Module):
    """cap x tanh(logits / cap), as in Gemma 2: bounded, with a nonzero gradient everywhere."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, logits: Tensor) -> Tensor:
        return (logits / self.cap).tanh_().mul(self.cap)


class LanguageHead(nn.Module):
    """Logits over the vocabulary; `soft_cap` bounds them."""

    def __init__(self, dim: int, vocab_size: int, bias: bool, soft_cap: float | None) -> None:
        super().__init__()
        self.project = nn.Linear(dim, vocab_size, bias=bias)
        self.soft_cap = soft_cap  # for the loss, which computes logits in chunks
        self.bound = nn.Identity() if soft_cap is None else SoftCap(soft_cap)

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        logits: Tensor = self.bound(self.project(x))
        return logits


class ClassifierHead(nn.Module):
    """Mean over the tokens of a row without padding, then two layers."""

    def __init__(self, dim: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, hidden)
        self.project = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, state: PassState) -> Tensor:
        real = ((state.pos >= 0) if state.doc is None else (state.doc != 0)).unsqueeze(-1)  # (B, T, 1)
        pooled = (x * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
        logits: Tensor = self.project(F.relu(self.inner(pooled)))  # (B, classes)
        return logits.to(x.dtype)  # under autocast these are 16-bit floats: too few bits for the loss


class LanguageAndLabelHead(LanguageHead):
    """Logits over the vocabulary, and a classifier (`label`) of the same hidden states, which decoding does not use."""

    def __init__(
        self, dim: int, vocab_size: int, bias: bool, soft_cap: float | None, hidden: int, classes: int
    ) -> None:
        super().__init__(dim, vocab_size, bias, soft_cap)
        self.label = ClassifierHead(dim, hidden, classes)


def language_head(settings: ModelSettings) -> LanguageHead:
    assert settings.vocab_size is not None
    return LanguageHead(settings.dim, settings.vocab_size, settings.bias_head, settings.soft_cap)


def classifier_head(settings: ModelSettings) -> ClassifierHead:
    assert settings.classes is not None
    return ClassifierHead(settings.dim, settings.classifier_hidden, settings.classes)


def language_and_label_head(settings: ModelSettings) -> LanguageAndLabelHead:
    assert settings.vocab_size is not None and settings.classes is not None
    sizes = settings.classifier_hidden, settings.classes
    return LanguageAndLabelHead(settings.dim, settings.vocab_size, settings.bias_head, settings.soft_cap, *sizes)
