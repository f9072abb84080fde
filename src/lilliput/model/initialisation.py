"""Initial weights. Each rule draws the matrices of a model in the order of its modules; biases are 0, norms 1.

Owns: the rules. Does not own: word vectors (`embeddings.put_vectors`), bigram counts (`training.bigram_initialisation`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from lilliput.model.attention import SelfAttention
from lilliput.model.heads import LanguageHead

if TYPE_CHECKING:
    from lilliput.model.transformer import Transformer


class Xavier:
    """Glorot and Bengio 2010, uniform; embeddings of unit length."""

    def __init__(self, model: Transformer, generator: torch.Generator) -> None:
        self.model, self.generator = model, generator

    def embedding(self, table: nn.Embedding) -> None:
        table.weight.normal_(0.0, 1.0 / math.sqrt(table.embedding_dim), generator=self.generator)

    def residual(self, linear: nn.Linear) -> None:
        """Draw a projection that writes into the residual stream."""
        self.matrix(linear)

    def head(self, linear: nn.Linear) -> None:
        """Draw the projection to the vocabulary."""
        self.matrix(linear)

    def matrix(self, linear: nn.Linear) -> None:
        nn.init.xavier_uniform_(linear.weight, generator=self.generator)

    def finish(self) -> None:
        """Set weights that depend on several matrices, after all are drawn."""


class Gpt2(Xavier):
    """Radford et al. 2019: normal 0.02; projections that write into the residual stream divided by sqrt(2 x layers)."""

    def embedding(self, table: nn.Embedding) -> None:
        table.weight.normal_(0.0, 0.02, generator=self.generator)

    def residual(self, linear: nn.Linear) -> None:
        linear.weight.normal_(0.0, 0.02 / math.sqrt(2 * self.model.settings.layers), generator=self.generator)

    def matrix(self, linear: nn.Linear) -> None:
        linear.weight.normal_(0.0, 0.02, generator=self.generator)


class ZeroResidual(Xavier):
    """Xavier, but blocks are initialised as the identity, and embedding and head are small: the initial loss is log V."""

    def embedding(self, table: nn.Embedding) -> None:
        table.weight.normal_(0.0, 0.02, generator=self.generator)

    def residual(self, linear: nn.Linear) -> None:
        linear.weight.zero_()

    def head(self, linear: nn.Linear) -> None:
        linear.weight.normal_(0.0, 0.02, generator=self.generator)


class Copying(ZeroResidual):
    """Zero-residual, but attention after the first layer copies half of the vector that it attends to.

    Value and output projections are an orthogonal matrix and half its transpose, so that a tied head predicts the token
    that is attended to. To recall a word, the model only has to learn which position to attend to. Heads that are together
    narrower than the model copy a projection of the vector.
    """

    def embedding(self, table: nn.Embedding) -> None:
        Xavier.embedding(self, table)

    def finish(self) -> None:
        attentions = [module for module in self.model.modules() if isinstance(module, SelfAttention)]
        for attention in attentions[1:]:
            shape = attention.out.weight.shape[::-1]  # (H D, C), with G = H
            values = nn.init.orthogonal_(attention.out.weight.new_empty(shape), generator=self.generator)
            attention.qkv.weight[-len(values) :] = values
            attention.out.weight.copy_(0.5 * values.t())


@torch.no_grad()
def initialise(model: Transformer, rule: Xavier) -> None:
    """Apply a rule to every embedding and linear layer, in the order of the modules."""
    outputs = (getattr(module, "output", None) for module in model.modules())
    residual = {id(output) for output in outputs if isinstance(output, nn.Linear)}
    head = model.head.project if isinstance(model.head, LanguageHead) else None
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            rule.embedding(module)
        elif isinstance(module, nn.Linear):
            if module is head and model.settings.tied:
                pass  # it shares the embedding's table
            elif module is head:
                rule.head(module)
            elif id(module) in residual:
                rule.residual(module)
            else:
                rule.matrix(module)
            if module.bias is not None:
                module.bias.zero_()
    rule.finish()
