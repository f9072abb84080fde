"""Capture of a trained model's attention weights while it reads or generates a text.

Owns: encoding the text, one pass with its attention captured, and merging the passes of a generated text. Does not own: the
capture itself (`model.attention`), generation (`decoding`), or the mask (`model.attention_mask.visible`).

H heads, T tokens (queries, and keys), K keys of one pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.decoding.engines.torch_engine import TorchEngine, TorchRows
from lilliput.decoding.writer import Writer
from lilliput.errors import UserError
from lilliput.interpret.attention_maps import AttentionMaps, Mask, Weights, as_array
from lilliput.model.attention import Capture
from lilliput.model.attention_mask import visible
from lilliput.model.transformer import Transformer, evaluating
from lilliput.settings.tree import GenerateSettings


def capture_text(
    writer: Writer,
    text: str,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    generate: int | None = None,
    seed: int = 0,
    settings: GenerateSettings | None = None,
    pad: bool = False,
    title: str = "attention",
) -> AttentionMaps:
    """Return the attention weights in a text. A language model reads its start token first, a classifier does not.

    A text longer than the context is truncated. With `generate`, the model generates at most this number of tokens after the
    text, with `settings` (None: those of the run; no beam search); row t is then the attention with which token t + 1 was
    chosen. `pad` fills the row up to the context, as in a batch with longer rows.
    """
    check_numbers("layer", layers, writer.config.model.layers)
    check_numbers("head", heads, writer.config.model.heads)
    if generate is not None:
        return capture_generation(writer, text, HeadChoice(layers, heads), generate, seed, settings, title)
    ids = encode(writer, text)
    if len(ids) < 2:
        what = f"attention requires a text of at least two tokens (got {len(ids) if text else 0})"
        raise UserError(what, fix="use a longer text", code="attention.text")
    context = writer.config.model.context
    attention = capture_ids(writer, ids[:context], HeadChoice(layers, heads), context if pad else None, title)
    return dataclasses.replace(attention, after=[writer.tokenizer.token(id_) for id_ in ids[context:]])


@dataclasses.dataclass(frozen=True)
class HeadChoice:
    """The selected layers and heads; None: all."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def capture(self) -> Capture:
        layers = None if self.layers is None else frozenset(self.layers)
        return Capture(layers, None if self.heads is None else tuple(self.heads))

    def layers_of(self, model: Transformer) -> list[int]:
        return list(range(len(model.windows))) if self.layers is None else sorted(set(self.layers))


def check_numbers(name: str, selected: Sequence[int] | None, count: int) -> None:
    for number in selected or []:
        if not 0 <= number < count:
            raise UserError(
                f"{name} must be from 0 to {count - 1} (got {number})",
                fix=f"use a {name} from 0 to {count - 1}",
                code="attention.selection",
                setting=f"{name}s",
            )


def encode(writer: Writer, text: str) -> list[int]:
    if writer.config.model.task == "classifier":
        return writer.tokenizer.encode(text)
    return writer.encode_prompt(text)


def capture_ids(
    writer: Writer, ids: Sequence[int], choice: HeadChoice, length: int | None = None, title: str = "attention"
) -> AttentionMaps:
    """Capture one pass over tokens that fit into the context; with `length` the row is padded to it."""
    tokens = len(ids) if length is None else length
    padding = np.arange(tokens) >= len(ids)
    row = [*ids, *[0] * (tokens - len(ids))]
    pos = torch.where(torch.from_numpy(padding), -1, torch.arange(tokens))[None].to(writer.model.device)
    capture = choice.capture()
    with torch.inference_mode(), evaluating(writer.model):
        # Without padding, positions are not passed: this is the pass of training and generation. Logits are not needed.
        inputs = torch.tensor([row], device=pos.device)
        writer.model.trunk(inputs, writer.model.begin(inputs, pos if padding.any() else None, None, None, capture))
    real = (pos >= 0).long()
    layers = choice.layers_of(writer.model)
    masks = [visible(pos, pos, real, real, writer.model.causal, writer.model.windows[layer]) for layer in layers]
    pad = "<pad>" if writer.tokenizer.pad is None else writer.tokenizer.token(writer.tokenizer.pad)
    return AttentionMaps(
        tokens=[*map(writer.tokenizer.token, ids), *[pad] * (tokens - len(ids))],
        weights=[as_array(capture.weights[layer][0]) for layer in layers],
        visible=[mask[0].cpu().numpy() for mask in masks],
        layers=layers,
        heads=choice.heads,
        padding=padding if padding.any() else None,
        ids=row,
        title=title,
    )


# Generation -----------------------------------------------------------------------------------------------------------


def capture_generation(
    writer: Writer, text: str, choice: HeadChoice, tokens: int, seed: int, settings: GenerateSettings | None, title: str
) -> AttentionMaps:
    """Generate one text, without n-grams, and capture the attention of each pass."""
    prompt = writer.encode_prompt(text)
    settings = settings or writer.config.generate
    changes = {"tokens": tokens, "min_tokens": min(tokens, settings.min_tokens), "engine": "torch", "quantise": None}
    changes["mix_ngram"] = None
    settings = writer.checked(settings, changes)
    if settings.beams is not None:
        raise UserError(
            f"capturing attention requires generation without beam search (got generate.beams {settings.beams})",
            fix="set generate.beams to none",
            code="setting.conflict",
            setting="generate.beams",
        )
    capture = choice.capture()
    engine = CapturingEngine(writer.model, capture)
    sample = dataclasses.replace(writer, engine=engine).samples([text], seed, settings)[0]
    ids = [*prompt, *(piece.id for piece in sample.pieces)]
    layers = choice.layers_of(writer.model)
    kept = engine.views[0]  # tokens of the prompt that fit into the context
    dropped = len(prompt) - kept
    merged = [merge_passes(capture.weights[layer], engine.views, writer.model.windows[layer]) for layer in layers]
    names = [writer.tokenizer.token(id_) for id_ in ids]
    return AttentionMaps(
        tokens=names[dropped:-1],
        weights=[weights for weights, _ in merged],
        visible=[mask for _, mask in merged],
        layers=layers,
        heads=choice.heads,
        ids=ids[dropped:-1],
        before=names[:dropped],
        prompt=kept,
        last=names[-1],
        wrote=sample.text,
        title=title,
    )


class CapturingEngine(TorchEngine):
    """Record prefills in `views`, by pass: the number of tokens read. Pass 0 reads the prompt; a later prefill reads the last
    part of a text that has become longer than the context."""

    def __init__(self, model: Transformer, capture: Capture) -> None:
        super().__init__(model, capture)
        self.views: dict[int, int] = {}

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, TorchRows]:
        assert self.capture is not None and len(views) == 1
        passes = max(map(len, self.capture.weights.values()), default=0)
        self.views[passes] = len(views[0])
        return super().prefill(views)


def merge_passes(passes: Sequence[Tensor], views: Mapping[int, int], window: int | None) -> tuple[Weights, Mask]:
    """Return weights (H, T, T) and mask (T, T) of one layer; the first pass reads the prompt, each other the newest token.

    When a text exceeds the context, a pass reads its last half again; only the newest row of it is used, so that every row is
    the one with which a token was chosen. Earlier tokens are masked.
    """
    prompt = views[0]
    tokens = prompt + len(passes) - 1
    weights = np.zeros((passes[0].shape[1], tokens, tokens), as_array(passes[0]).dtype)
    mask = np.zeros((tokens, tokens), np.bool_)
    start = 0  # the first token in the context of the model
    for number, captured in enumerate(passes):
        end, new = prompt + number, prompt if number == 0 else 1
        start = end - views[number] if number in views else start
        weights[:, end - new : end, end - captured.shape[3] : end] = as_array(captured)[:, -new:]
        mask[end - new : end, start:end] = causal_mask(np.arange(end - new, end), np.arange(start, end), window)
    return weights, mask


def causal_mask(queries: NDArray[np.int64], keys: NDArray[np.int64], window: int | None) -> Mask:
    """Return the causal mask (T, K) for queries and keys at these positions."""
    q, k = torch.from_numpy(queries)[None], torch.from_numpy(keys)[None]
    mask: Mask = visible(q, k, torch.ones_like(q), torch.ones_like(k), True, window)[0].numpy()
    return mask
