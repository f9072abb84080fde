"""What a trained model looks at while it reads a text, or while it writes one.

Owns: turning a text into the row that the model reads, one pass with its attention captured, and putting the
passes of a text that is being written together. Does not own: the capture itself (`model.attention`), writing
(`decoding`), or the definition of who may see whom (`model.attention.visible`).

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
    how: GenerateSettings | None = None,
    pad: bool = False,
    title: str = "attention",
) -> AttentionMaps:
    """AttentionMaps in a text, as the model reads it: a language model begins with its start token, a classifier does not.

    Of a text longer than the context the beginning is read, as in training. With `generate` the model writes at most so many
    tokens after it, by `how` (the run's own settings; a beam search is none of them): row t is then what it looked at when it
    chose token t + 1. `pad` fills the row up to the context, as a longer neighbour in a batch would.
    """
    check_numbers("layer", layers, writer.config.model.layers)
    check_numbers("head", heads, writer.config.model.heads)
    if generate is not None:
        return capture_writing(writer, text, HeadChoice(layers, heads), generate, seed, how, title)
    ids = encode(writer, text)
    if len(ids) < 2:
        what = "the text is empty" if not ids or not text else "the text has one token, which can look at nothing else"
        raise UserError(what, fix="a longer text")
    context = writer.config.model.context
    attention = capture_ids(writer, ids[:context], HeadChoice(layers, heads), context if pad else None, title)
    return dataclasses.replace(attention, after=[writer.tokenizer.token(id_) for id_ in ids[context:]])


@dataclasses.dataclass(frozen=True)
class HeadChoice:
    """Which layers and heads are wanted; None: all."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def capture(self) -> Capture:
        layers = None if self.layers is None else frozenset(self.layers)
        return Capture(layers, None if self.heads is None else tuple(self.heads))

    def layers_of(self, model: Transformer) -> list[int]:
        return list(range(len(model.windows))) if self.layers is None else sorted(set(self.layers))


def check_numbers(name: str, wanted: Sequence[int] | None, there: int) -> None:
    for number in wanted or []:
        if not 0 <= number < there:
            raise UserError(f"there is no {name} {number}", fix=f"{name}s are numbered from 0 to {there - 1}")


def encode(writer: Writer, text: str) -> list[int]:
    if writer.config.model.task == "classifier":
        return writer.tokenizer.encode(text)
    return writer.encode_prompt(text)


def capture_ids(
    writer: Writer, ids: Sequence[int], choice: HeadChoice, length: int | None = None, title: str = "attention"
) -> AttentionMaps:
    """One pass over at most a context of tokens; `length` fills the row up with padding."""
    tokens = len(ids) if length is None else length
    padding = np.arange(tokens) >= len(ids)
    row = [*ids, *[0] * (tokens - len(ids))]
    pos = torch.where(torch.from_numpy(padding), -1, torch.arange(tokens))[None].to(writer.model.device)
    capture = choice.capture()
    with torch.inference_mode(), evaluating(writer.model):
        # Without padding no positions, and so no mask: the very pass that training and writing make. No head: nobody asks it.
        read = torch.tensor([row], device=pos.device)
        writer.model.trunk(read, writer.model.begin(read, pos if padding.any() else None, None, None, capture))
    real = (pos >= 0).long()
    layers = choice.layers_of(writer.model)
    sights = [visible(pos, pos, real, real, writer.model.causal, writer.model.windows[layer]) for layer in layers]
    pad = "<pad>" if writer.tokenizer.pad is None else writer.tokenizer.token(writer.tokenizer.pad)
    return AttentionMaps(
        tokens=[*map(writer.tokenizer.token, ids), *[pad] * (tokens - len(ids))],
        weights=[as_array(capture.weights[layer][0]) for layer in layers],
        visible=[sight[0].cpu().numpy() for sight in sights],
        layers=layers,
        heads=choice.heads,
        padding=padding if padding.any() else None,
        ids=row,
        title=title,
    )


# Writing --------------------------------------------------------------------------------------------------------------


def capture_writing(
    writer: Writer, text: str, choice: HeadChoice, tokens: int, seed: int, how: GenerateSettings | None, title: str
) -> AttentionMaps:
    """The model writes, one row, through the engine that lets itself be watched."""
    prompt = writer.encode_prompt(text)
    how = how or writer.config.generate
    changes = {"tokens": tokens, "min_tokens": min(tokens, how.min_tokens), "engine": "torch", "quantise": None}
    how = writer.checked(how, changes)
    if how.beams is not None:
        raise UserError("attention is shown of text that is written token by token", fix="generate.beams none")
    capture = choice.capture()
    engine = WatchedEngine(writer.model, capture)
    watched = dataclasses.replace(writer, engine=engine)
    sample = watched.samples([text], seed, how)[0]
    ids = [*prompt, *(piece.id for piece in sample.pieces)]
    layers = choice.layers_of(writer.model)
    seen = engine.views[0]  # of the prompt
    cut = len(prompt) - seen
    put = [put_together(capture.weights[layer], engine.views, writer.model.windows[layer]) for layer in layers]
    names = [writer.tokenizer.token(id_) for id_ in ids]
    return AttentionMaps(
        tokens=names[cut:-1],
        weights=[weights for weights, _ in put],
        visible=[sight for _, sight in put],
        layers=layers,
        heads=choice.heads,
        ids=ids[cut:-1],
        before=names[:cut],
        prompt=seen,
        last=names[-1],
        wrote=sample.text,
        title=title,
    )


class WatchedEngine(TorchEngine):
    """`views` tells at which passes a view was read anew, and of how many tokens: the prompt at pass 0, and what was left in
    view each time that the text outgrew the context."""

    def __init__(self, model: Transformer, capture: Capture) -> None:
        super().__init__(model, capture)
        self.views: dict[int, int] = {}

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, TorchRows]:
        assert self.capture is not None and len(views) == 1
        passes = max(map(len, self.capture.weights.values()), default=0)
        self.views[passes] = len(views[0])
        return super().prefill(views)


def put_together(passes: Sequence[Tensor], views: Mapping[int, int], window: int | None) -> tuple[Weights, Mask]:
    """(H, T, T) and (T, T) of one layer from its passes: the first reads the prompt, each other the newest token.

    Where a text outgrows the context, a pass reads its last half again; of that only the newest row is taken, so that every row
    is the one by which a token was chosen, and what had slid out of view is marked as not to be seen.
    """
    prompt = views[0]
    tokens = prompt + len(passes) - 1
    weights = np.zeros((passes[0].shape[1], tokens, tokens), as_array(passes[0]).dtype)
    sight = np.zeros((tokens, tokens), np.bool_)
    start = 0  # of what the model has in view
    for number, found in enumerate(passes):
        end, new = prompt + number, prompt if number == 0 else 1
        start = end - views[number] if number in views else start
        weights[:, end - new : end, end - found.shape[3] : end] = as_array(found)[:, -new:]
        sight[end - new : end, start:end] = allowed(np.arange(end - new, end), np.arange(start, end), window)
    return weights, sight


def allowed(queries: NDArray[np.int64], keys: NDArray[np.int64], window: int | None) -> Mask:
    """(T, K) by the model's own predicate, for a text without padding that is read from left to right."""
    q, k = torch.from_numpy(queries)[None], torch.from_numpy(keys)[None]
    found: Mask = visible(q, k, torch.ones_like(q), torch.ones_like(k), True, window)[0].numpy()
    return found
