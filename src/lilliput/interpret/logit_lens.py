"""The logit lens: the predictions of the residual stream after each layer (nostalgebraist 2020).

Owns: `lens`. The residual stream after the embedding and after each block passes through the final norm and the head, as that of
the last block does in the model. Does not own: the printed table (`cli.interpret`).

L layers, T tokens, K predictions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.decoding.writer import Writer
from lilliput.interpret.head_ablation import encode_text, hooked
from lilliput.model.transformer import Transformer, evaluating

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lens:
    """Stage 0 is the embedding, stage n the output of layer n - 1; the last stage is the output of the model.

    Token 0 is the start token. The next token of token t is token t + 1, so the last token has none.
    """

    tokens: list[str]  # T
    top: list[list[list[str]]]  # (L + 1, T, K): the likeliest next tokens, likeliest first
    top_probability: Numbers  # (L + 1, T, K)
    nats: Numbers  # (L + 1, T - 1): -log of the probability of the next token
    rank: Integers  # (L + 1, T - 1): 1 + the number of tokens with a higher logit than the next token
    unread: int  # tokens of the text after the context

    @property
    def probability(self) -> Numbers:
        """(L + 1, T - 1): of the next token."""
        found: Numbers = np.exp(-self.nats)
        return found

    @property
    def loss(self) -> Numbers:
        """(L + 1,): the mean of the nats."""
        found: Numbers = self.nats.mean(axis=1)
        return found

    @property
    def stages(self) -> list[str]:
        return ["embedding", *(f"layer {number}" for number in range(len(self.nats) - 1))]

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "unread": self.unread,
            "stages": [self.stage(number, name) for number, name in enumerate(self.stages)],
        }

    def stage(self, number: int, name: str) -> dict[str, Any]:
        predictions = [
            {
                "next": self.tokens[at + 1] if at < len(self.tokens) - 1 else None,
                "probability": float(self.probability[number, at]) if at < len(self.tokens) - 1 else None,
                "rank": int(self.rank[number, at]) if at < len(self.tokens) - 1 else None,
                "top": [
                    {"token": token, "probability": float(share)}
                    for token, share in zip(self.top[number][at], self.top_probability[number, at], strict=True)
                ],
            }
            for at in range(len(self.tokens))
        ]
        layer = None if number == 0 else number - 1
        return {"stage": name, "layer": layer, "loss": float(self.loss[number]), "predictions": predictions}


@torch.inference_mode()
def lens(writer: Writer, text: str, top: int = 3) -> Lens:
    """Return what each layer predicts in a text. A text longer than the context is truncated."""
    ids, unread = encode_text(writer, text)
    model, device = writer.model, writer.model.device
    row, targets = torch.tensor([ids], device=device), torch.tensor(ids[1:], device=device)
    names, shares, nats, ranks = [], [], [], []
    with evaluating(model):
        for x in residual_streams(model, row):
            logs = stage_logits(model, row, x).double().log_softmax(dim=-1)  # (T, V)
            likeliest = logs.topk(min(top, logs.shape[1]), dim=-1)
            right = logs[:-1].gather(1, targets[:, None])
            names.append([[writer.tokenizer.token(id_) for id_ in some] for some in likeliest.indices.tolist()])
            shares.append(likeliest.values.exp().cpu().numpy())
            nats.append(-right[:, 0].cpu().numpy())
            ranks.append(1 + (logs[:-1] > right).sum(dim=-1).cpu().numpy())
    tokens = [writer.tokenizer.token(id_) for id_ in ids]
    return Lens(tokens, names, np.stack(shares), np.stack(nats), np.stack(ranks), unread)


def residual_streams(model: Transformer, ids: Tensor) -> list[Tensor]:
    """Return L + 1 tensors (1, T, C): the input of the first block, and the output of each block."""
    found: list[Tensor] = []
    parts = [*model.blocks, model.norm]  # the input of the final norm is the output of the last block
    with hooked({part: lambda part, given: found.append(given[0]) for part in parts}):
        model.trunk(ids, model.begin(ids, None, None))
    return found


def stage_logits(model: Transformer, ids: Tensor, x: Tensor) -> Tensor:
    """Return the logits (T, V) of a residual stream (1, T, C)."""
    logits: Tensor = model.head(model.norm(x), model.begin(ids, None, None))[0]
    return logits
