"""A model from the outside: its parts, the shape of every stage, its first numbers, its masks, and checks that run now.

Owns: `inspect_model` and the checks. They compute on a float64 copy of the very model, so that a difference that is not
rounding is a defect. Does not own: how the result is printed (`cli.inspect`) or drawn (`reports.inspection_report`).

B rows, T positions, C dim, H heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lilliput.model.attention import Capture
from lilliput.model.attention_mask import visible
from lilliput.model.embeddings import ValueEmbedding
from lilliput.model.positions import Rotary
from lilliput.model.transformer import Transformer, evaluating

ROWS, TOKENS = 2, 12  # of the batch that is passed through the model
EXACT, ROUNDING = 0.0, 1e-9  # largest differences that a check accepts
SHOWN = {True: "x", False: "."}


@dataclass(frozen=True)
class ModulePart:
    """One line of the model summary."""

    name: str
    kind: str
    parameters: int


@dataclass(frozen=True)
class Stage:
    """The shape of what one stage of a pass returns."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Check:
    """A check of the model: a measured value, and the largest value that passes."""

    name: str
    value: float
    limit: float
    meaning: str

    @property
    def passed(self) -> bool:
        return self.value <= self.limit


@dataclass(frozen=True)
class Inspection:
    parts: list[ModulePart]
    stages: list[Stage]
    embedding: Tensor  # (V, width): the table of the embedding
    positions: Tensor | None  # (T, width): what is added to the embedding, or the cosines of rotary positions
    position_kind: str
    masks: dict[int | None, Tensor]  # by window: (T, T), whether a query (row) sees a key (column)
    checks: list[Check]


def inspect_model(model: Transformer, seed: int = 1) -> Inspection:
    """Pass a batch of random tokens through the model; return what can be seen of it, and the checks."""
    tokens = min(TOKENS, model.settings.context)
    vocabulary = model.settings.vocab_size
    assert vocabulary is not None
    ids = torch.randint(vocabulary, (ROWS, tokens), generator=torch.Generator().manual_seed(seed)).to(model.device)
    with evaluating(model):
        stages = find_stages(model, ids)
    exact = copy.deepcopy(model).double().eval()
    return Inspection(
        parts=list_parts(model),
        stages=stages,
        embedding=model.embedding.table.weight.detach(),
        positions=position_rows(model, tokens),
        position_kind=type(model.positions).__name__.lower(),
        masks=masks(model, tokens),
        checks=[*run_checks(exact, ids), *count_checks(model)],
    )


# What can be seen ---------------------------------------------------------------------------------------------------------


def list_parts(model: Transformer) -> list[ModulePart]:
    """Return the parts of the model in order, and the parts of the first block."""
    found = [ModulePart("embedding", type(model.embedding).__name__, count_parameters(model.embedding))]
    found.append(ModulePart("positions", type(model.positions).__name__, count_parameters(model.positions)))
    for number, block in enumerate(model.blocks):
        found.append(ModulePart(f"block {number}", type(block).__name__, count_parameters(block)))
        if number == 0:
            inner = [(name, part) for name, part in block.named_modules() if is_stage(part)]
            found += [ModulePart(f"block 0: {name}", describe(part), count_parameters(part)) for name, part in inner]
    found.append(ModulePart("norm", type(model.norm).__name__, count_parameters(model.norm)))
    head, own = type(model.head).__name__, count_parameters(model.head)
    if model.settings.tied:  # its matrix is that of the embedding
        head, own = f"{head} (tied to the embedding)", model.count().parameters.head
    found.append(ModulePart("head", head, own))
    return found


def describe(part: nn.Module) -> str:
    shape = next((tuple(weight.shape) for weight in part.parameters()), ())
    return f"{type(part).__name__}({', '.join(map(str, reversed(shape)))})"


def count_parameters(part: nn.Module) -> int:
    return sum(weight.numel() for weight in part.parameters())


def find_stages(model: Transformer, ids: Tensor) -> list[Stage]:
    """Return the shapes of one pass: every stage of the first block, then the outputs of all blocks, the norm and the head."""
    found = [Stage("token ids", tuple(ids.shape))]
    capture = Capture(layers=frozenset([0]))

    def record(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda part, given, out: found.append(Stage(name, tuple(out.shape)))

    watched = {"embedding": model.embedding}
    watched |= {f"block 0: {name}": part for name, part in model.blocks[0].named_modules() if is_stage(part)}
    watched |= {f"block {number}": block for number, block in enumerate(model.blocks)}
    watched |= {"final norm": model.norm, "logits": model.head}
    handles = [part.register_forward_hook(record(name)) for name, part in watched.items()]
    try:
        with torch.inference_mode():
            model(ids, capture=capture)
    finally:
        for handle in handles:
            handle.remove()
    at = next(place for place, stage in enumerate(found) if stage.name == "block 0: attention.inner.out")
    found.insert(at, Stage("block 0: attention weights", tuple(capture.weights[0][0].shape)))
    return found


def is_stage(part: nn.Module) -> bool:
    return not list(part.children()) and count_parameters(part) > 0


def position_rows(model: Transformer, tokens: int) -> Tensor | None:
    """Return what positions add to an embedding of zeros; of rotary positions the cosines; None if there is neither."""
    pos = torch.arange(tokens, device=model.device)[None]
    if isinstance(model.positions, Rotary):
        return model.positions.cos[:tokens]
    zeros = torch.zeros(1, tokens, model.settings.dim, dtype=torch.float64, device=model.device)
    added = model.positions.embed(zeros, pos)[0].detach()
    return added if added.any() else None


def masks(model: Transformer, tokens: int) -> dict[int | None, Tensor]:
    pos = torch.arange(tokens)[None]
    doc = torch.ones_like(pos)
    return {window: visible(pos, pos, doc, doc, model.causal, window)[0] for window in dict.fromkeys(model.windows)}


def mask_text(mask: Tensor) -> str:
    """Return a mask as lines of x (seen) and . (not seen)."""
    return "\n".join(" ".join(SHOWN[bool(seen)] for seen in row) for row in mask)


# Checks -------------------------------------------------------------------------------------------------------------------


def run_checks(model: Transformer, ids: Tensor) -> list[Check]:
    """`model` computes in float64."""
    found = [attention_sums(model, ids), padding_unseen(model, ids)]
    if not model.causal:
        return found
    return [causality(model, ids), *([cached(model, ids)] if ids.shape[1] > 1 else []), *found]


def causality(model: Transformer, ids: Tensor) -> Check:
    """Differentiate the logits of each position with respect to the embedding of every token."""
    embedded: list[Tensor] = []

    def keep(part: nn.Module, given: object, out: Tensor) -> Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[-1]

    handle = model.embedding.register_forward_hook(keep)
    try:
        logits = model(ids)
    finally:
        handle.remove()
    largest = 0.0
    for at in range(ids.shape[1]):
        (gradient,) = torch.autograd.grad(logits[:, at].square().sum(), embedded[0], retain_graph=True)
        later = gradient[:, at + 1 :]
        largest = max(largest, later.abs().max().item() if later.numel() else 0.0)
    return Check("causality", largest, EXACT, "largest gradient of a logit with respect to a later token")


@torch.no_grad()
def cached(model: Transformer, ids: Tensor) -> Check:
    whole, cache = model(ids), model.new_cache(len(ids))
    half = ids.shape[1] // 2
    parts = [model(ids[:, :half], cache=cache)] + [
        model(ids[:, at : at + 1], cache=cache) for at in range(half, ids.shape[1])
    ]
    difference = (torch.cat(parts, dim=1) - whole).abs().max().item()
    return Check(
        "cache equals no cache", difference, ROUNDING, "largest difference of a logit with and without KV cache"
    )


@torch.no_grad()
def attention_sums(model: Transformer, ids: Tensor) -> Check:
    capture = Capture()
    model(ids, capture=capture)
    sums = [weights.sum(dim=-1) for passes in capture.weights.values() for weights in passes]
    largest = max((found - 1.0).abs().max().item() for found in sums)
    return Check("attention rows sum to one", largest, ROUNDING, "largest difference from 1 in all layers and heads")


@torch.no_grad()
def padding_unseen(model: Transformer, ids: Tensor) -> Check:
    """Pad rows, and compare the logits of real tokens for two different paddings and for none."""
    real = max(1, ids.shape[1] // 2)
    pos = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    pos = torch.where(pos < real, pos, -1)
    other = torch.where(pos >= 0, ids, ids.flip(1))
    outcomes = [model(ids[:, :real]), model(ids, pos=pos), model(other, pos=pos)]
    alone, *padded = [logits[:, :real] if model.causal else logits for logits in outcomes]
    difference = max((logits - alone).abs().max().item() for logits in padded)
    return Check("padding is not seen", difference, ROUNDING, "largest change of a logit by padding")


def count_checks(model: Transformer) -> list[Check]:
    """Compare the counts by formula, which dry runs print, with the tensors of the model."""
    counted = model.count().parameters
    tables = [part.table for part in model.modules() if isinstance(part, ValueEmbedding)]
    values = sum(map(count_parameters, tables))
    shared = model.embedding.table.weight.numel() if model.settings.tied else 0
    actual = {
        "embedding": count_parameters(model.embedding) + count_parameters(model.positions) + values,
        "blocks": count_parameters(model.blocks) - values,
        "norm": count_parameters(model.norm),
        "head": count_parameters(model.head) - shared,
        "total": count_parameters(model),
    }
    expected = {name: getattr(counted, name) for name in actual}
    return [
        Check(
            f"parameters: {name}",
            abs(expected[name] - number),
            EXACT,
            f"{number:,} in the model, {expected[name]:,} by formula",
        )
        for name, number in actual.items()
    ]
