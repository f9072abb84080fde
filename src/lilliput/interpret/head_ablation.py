"""Ablation: what the removal of attention heads costs.

Owns: replacing the output of heads during forward passes (`without_heads`), the mean outputs for mean ablation, and the loss and
the generated text without heads, over a text (`ablate`) or over documents (`ablate_documents`). Does not own: the loss of
documents (`decoding.token_scores`), intervals (`evaluation.intervals`), or the printed tables (`cli.interpret`).

The output of a head is its slice of the input of the output projection, (D,) per token. Zero ablation replaces it by 0.
Mean ablation replaces it by its mean over all tokens that the unchanged model reads in the evaluated text or documents,
each token with the same weight. The weights of the model do not change: forward hooks replace the slices and are removed
afterwards.

B rows, T tokens, H heads, D head dimension.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lilliput.data.prepare.token_files import TokenFile
from lilliput.data.progress import Report, silent
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.token_scores import StridedRows, score_tokens
from lilliput.decoding.writer import Writer
from lilliput.errors import UserError
from lilliput.evaluation.generated_stories import StoryCheck, check_story
from lilliput.evaluation.intervals import Interval, ratio_interval
from lilliput.interpret.head_names import Head, all_heads, check_heads
from lilliput.model.attention import SelfAttention
from lilliput.model.transformer import Transformer, evaluating
from lilliput.settings.tree import GenerateSettings

Kind = Literal["zero", "mean"]
Numbers = NDArray[np.float64]
BATCH = 32


@dataclass(frozen=True, eq=False)
class TextAblation:
    """A text with and without heads; `nats` are those of each token given the tokens before it."""

    heads: tuple[Head, ...]
    kind: Kind
    tokens: list[str]
    nats: Numbers  # (T,)
    ablated_nats: Numbers  # (T,)
    unread: int  # tokens of the text after the context
    generated: str | None = None  # after the text
    ablated_generated: str | None = None
    story: StoryCheck | None = None  # of the text with what was generated, for a model of the storybook
    ablated_story: StoryCheck | None = None

    @property
    def loss(self) -> float:
        return float(self.nats.mean())

    @property
    def ablated_loss(self) -> float:
        return float(self.ablated_nats.mean())

    def as_dict(self) -> dict[str, Any]:
        tokens = [
            {"token": token, "nats": float(with_heads), "ablated_nats": float(without)}
            for token, with_heads, without in zip(self.tokens, self.nats, self.ablated_nats, strict=True)
        ]
        return {
            "heads": list(map(str, self.heads)),
            "loss": self.loss,
            "ablated_loss": self.ablated_loss,
            "difference": self.ablated_loss - self.loss,
            "generated": self.generated,
            "ablated_generated": self.ablated_generated,
            "story": None if self.story is None else dataclasses.asdict(self.story),
            "ablated_story": None if self.ablated_story is None else dataclasses.asdict(self.ablated_story),
            "unread": self.unread,
            "tokens": tokens,
        }


@dataclass(frozen=True)
class AblationCost:
    """The loss without some heads, and its difference from the loss of the whole model."""

    heads: tuple[Head, ...]
    loss: float
    difference: float
    interval: Interval | None  # 95%, of the difference, over documents; None for fewer than two

    def as_dict(self) -> dict[str, Any]:
        interval = None if self.interval is None else list(self.interval)
        names = list(map(str, self.heads))
        return {"heads": names, "loss": self.loss, "difference": self.difference, "interval": interval}


@dataclass(frozen=True)
class DocumentAblation:
    kind: Kind
    documents: int
    tokens: int  # predictions
    loss: float  # of the whole model
    costs: list[AblationCost]  # the largest difference first

    def as_dict(self) -> dict[str, Any]:
        costs = [cost.as_dict() for cost in self.costs]
        return dataclasses.asdict(self) | {"costs": costs}


# Over a text ----------------------------------------------------------------------------------------------------------


def ablate(
    writer: Writer,
    text: str,
    heads: Sequence[tuple[int, int]],
    kind: Kind = "zero",
    generate: int | None = None,
    seed: int = 0,
    settings: GenerateSettings | None = None,
) -> TextAblation:
    """Remove heads together; return the loss of a text with and without them.

    A text longer than the context is truncated. With `generate`, the model also generates at most this number of tokens after
    the text, with and without the heads, with `settings` (None: those of the run) and the same seed. For a model of the
    storybook, the result states where each story breaks.
    """
    chosen = check_heads(writer.config.model, heads)
    ids, unread = encode_text(writer, text)
    row = torch.tensor([ids[:-1]], device=writer.model.device)
    replaced = replacements(writer.model, chosen, kind, [(row, torch.ones_like(row, dtype=torch.bool))])
    generating = None if generate is None else generation_settings(writer, generate, settings)
    nats = row_nats(writer.model, ids)
    written = None if generating is None else continue_text(writer, text, seed, generating)
    with without_heads(writer.model, replaced):
        ablated_nats = row_nats(writer.model, ids)
        without = None if generating is None else continue_text(writer, text, seed, generating)
    tokens = [writer.tokenizer.token(id_) for id_ in ids[1:]]
    stories = [None if one is None else check_story(writer.config, text + one) for one in (written, without)]
    return TextAblation(chosen, kind, tokens, nats, ablated_nats, unread, written, without, *stories)


def ablate_each(writer: Writer, text: str, kind: Kind = "zero") -> DocumentAblation:
    """Return the cost of removing each single head in a text, without an interval."""
    ids, _ = encode_text(writer, text)
    end = writer.tokenizer.end  # closes the text; not predicted, because a text may be the beginning of a document
    size = np.array([len(text.encode(errors="replace"))])
    file = TokenFile(np.array([end, *ids[1:], end]), np.array([1, len(ids) + 1]), size, ends=False)
    return ablate_documents(writer, file, kind=kind)


def encode_text(writer: Writer, text: str) -> tuple[list[int], int]:
    """Return the start token and the tokens of a text, together as many as the context, and the number of the others."""
    ids = writer.encode_prompt(text)
    if len(ids) < 2:
        what = "the text must have at least one token (got none)"
        raise UserError(what, fix="use a longer text", code="interpret.text")
    kept = ids[: writer.config.model.context]
    return kept, len(ids) - len(kept)


@torch.inference_mode()
def row_nats(model: Transformer, ids: Sequence[int]) -> Numbers:
    """Return the nats of ids[1:], each given the ids before it."""
    row = torch.tensor([ids], device=model.device)
    with evaluating(model):
        logs = model(row[:, :-1])[0].double().log_softmax(dim=-1)  # (T, V)
    nats: Numbers = -logs.gather(1, row[0, 1:, None])[:, 0].cpu().numpy()
    return nats


def generation_settings(writer: Writer, tokens: int, settings: GenerateSettings | None) -> GenerateSettings:
    """Return the settings for this number of tokens with the torch engine (only torch runs hooks), without n-grams."""
    settings = settings or writer.config.generate
    changes = {"tokens": tokens, "min_tokens": min(tokens, settings.min_tokens), "engine": "torch", "quantise": None}
    changes["mix_ngram"] = None
    return writer.checked(settings, changes)


def continue_text(writer: Writer, text: str, seed: int, settings: GenerateSettings) -> str:
    # An engine of its own: a shared prefix cache would mix passes with and without the heads.
    own = dataclasses.replace(writer, engine=TorchEngine(writer.model))
    return own.samples([text], seed, settings)[0].text


# Over documents -------------------------------------------------------------------------------------------------------


def ablate_documents(
    writer: Writer,
    file: TokenFile,
    heads: Iterable[Sequence[tuple[int, int]]] | None = None,
    kind: Kind = "zero",
    documents: int = 100,
    seed: int = 0,
    report: Report = silent,
) -> DocumentAblation:
    """Return the cost of removing each group of heads (None: each head alone) on documents drawn with the seed.

    Documents are read in windows of the context, as in training; each token, and the end of each document, is predicted once.
    """
    groups = [
        check_heads(writer.config.model, some) for some in heads or [[head] for head in all_heads(writer.config.model)]
    ]
    writer.encode_prompt("")  # raises for a classifier
    chosen = np.sort(np.random.default_rng(seed).permutation(file.documents)[:documents])
    sample, model, context = file.select(chosen), writer.model, writer.config.model.context
    counts = np.diff(sample.offsets) - (0 if sample.ends else 1)
    start = writer.tokenizer.start

    def document_nats() -> Numbers:
        scored = score_tokens(model, sample, start, context, batch=BATCH)
        return np.bincount(scored.document, scored.nats, sample.documents).astype(np.float64)

    if not counts.sum():
        what = "ablation requires documents of at least one token (got none)"
        raise UserError(what, fix="use a split with longer documents", code="interpret.text")
    whole = document_nats()
    every = sorted({head for group in groups for head in group})
    replaced = replacements(model, every, kind, inputs_of(sample, start, context, model.device))
    costs = []
    for done, group in enumerate(groups):
        report("removing heads", done, len(groups))
        with without_heads(model, {head: replaced[head] for head in group}):
            nats = document_nats()
        interval = ratio_interval(nats - whole, counts, seed) if len(chosen) > 1 else None
        loss, difference = nats.sum() / counts.sum(), (nats - whole).sum() / counts.sum()
        costs.append(AblationCost(group, float(loss), float(difference), interval))
    report("removing heads", len(groups), len(groups))
    costs.sort(key=lambda cost: -cost.difference)
    return DocumentAblation(kind, len(chosen), int(counts.sum()), float(whole.sum() / counts.sum()), costs)


def inputs_of(file: TokenFile, start: int, context: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows (B, T) that `score_tokens` reads, and which of their tokens are not padding."""
    rows = StridedRows(file, context, start, context)
    for batch in rows.in_order(BATCH):
        real = np.arange(batch.ids.shape[1]) < rows.sizes(batch.rows)[:, None]
        yield torch.from_numpy(batch.ids).to(device), torch.from_numpy(real).to(device)


# Hooks ----------------------------------------------------------------------------------------------------------------


@contextmanager
def hooked(hooks: Mapping[nn.Module, Callable[[nn.Module, tuple[Any, ...]], Any]]) -> Iterator[None]:
    """Call each hook before the forward pass of its module, inside the context."""
    handles = [part.register_forward_pre_hook(hook) for part, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def attention_of_layer(model: Transformer, layer: int) -> SelfAttention:
    attention = model.blocks[layer].attention.inner
    assert isinstance(attention, SelfAttention)
    return attention


@contextmanager
def without_heads(model: Transformer, replaced: Mapping[Head, Tensor]) -> Iterator[None]:
    """Replace the outputs of heads by vectors (D,), in every forward pass inside the context."""

    def replacing(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        width = model.head_dim
        vectors = {head.head: vector for head, vector in replaced.items() if head.layer == layer}

        def replace(part: nn.Module, given: tuple[Any, ...]) -> tuple[Tensor]:
            mixed: Tensor = given[0].clone()  # (B, T, H x D)
            for head, vector in vectors.items():
                mixed[..., head * width : (head + 1) * width] = vector
            return (mixed,)

        return replace

    layers = {head.layer for head in replaced}
    with hooked({attention_of_layer(model, layer).out: replacing(layer) for layer in layers}):
        yield


@torch.inference_mode()
def replacements(
    model: Transformer, heads: Iterable[Head], kind: Kind, rows: Iterable[tuple[Tensor, Tensor]]
) -> dict[Head, Tensor]:
    """Return the vector (D,) that replaces each head's output; `rows` are ids and which of them are not padding."""
    like, width = next(model.blocks.parameters()), model.head_dim
    if kind == "zero":
        return {head: like.new_zeros(width) for head in heads}
    sums = torch.zeros(len(model.blocks), model.settings.heads * width, dtype=torch.float64)
    tokens, real = 0, torch.zeros(0)

    def adding(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def add(part: nn.Module, given: tuple[Any, ...]) -> None:
            sums[layer] += given[0][real].double().sum(dim=0).cpu()

        return add

    layers = range(len(model.blocks))
    with evaluating(model), hooked({attention_of_layer(model, layer).out: adding(layer) for layer in layers}):
        for ids, real in rows:  # the hooks read `real`
            model.trunk(ids, model.begin(ids, None, None))
            tokens += int(real.sum())
    means = (sums / tokens).to(like)
    return {head: means[head.layer, head.head * width : (head.head + 1) * width] for head in heads}
