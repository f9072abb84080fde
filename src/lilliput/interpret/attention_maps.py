"""The tokens of a text and the attention weights of each layer, from any model.

Owns: `AttentionMaps`, its checks, and labels of tokens that show spaces. Does not own: the capture of weights
(`attention_capture`), or their use (`head_scores`, `heat_maps`, `attention_page`).

H heads, T tokens, which are the queries and the keys.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lilliput.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Weights = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]

TOLERANCE = 1e-3  # of a weight
SUM_TOLERANCE = 1e-2  # of the sum of a row: bfloat16 rounds each weight by up to 0.4%
SYMBOLS = {" ": "·", "\n": "↵", "\r": "␍", "\t": "→"}


def invalid(what: str, fix: str = "pass arrays of matching shapes") -> UserError:
    return UserError(what, fix=fix, code="attention.weights")


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention weights of one text.

    `weights` has one (H, T, T) per layer: row t holds the weights of query t. `visible` has one mask (T, T) per layer, or one
    for all (None: no mask). `layers` and `heads` are the numbers of the shown layers and heads in the model (None: all).
    `padding` (T,) marks padding. `ids` distinguishes tokens of equal text.

    `before` and `after` are tokens of the text that the model did not read, because they do not fit into the context. If the
    model generated a part of the text, `prompt` is the number of tokens before it, `last` the last generated token, which it
    did not read, and `wrote` the generated text.
    """

    tokens: Sequence[str]
    weights: Sequence[Weights]
    visible: Sequence[Mask] | None = None
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    padding: Mask | None = None
    ids: Sequence[int] | None = None
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    prompt: int | None = None
    last: str | None = None
    wrote: str | None = None
    title: str = "attention"

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not count or not len(self.weights):
            raise invalid(f"attention requires tokens and layers (got {count} tokens and {len(self.weights)} layers)")
        for name, numbers, expected in (("layers", self.layers, len(self.weights)), ("ids", self.ids, count)):
            if numbers is not None and len(numbers) != expected:
                raise invalid(f"`{name}` must have {expected} entries (got {len(numbers)})")
        for name, numbers in (("layer", self.layers), ("head", self.heads)):
            if numbers is not None and len(set(numbers)) < len(numbers):
                what = f"each {name} must be selected once (got {', '.join(map(str, numbers))})"
                raise UserError(what, fix=f"select each {name} once", code="attention.selection")
        if self.visible is not None and len(self.visible) not in (1, len(self.weights)):
            raise invalid(
                f"`visible` must have 1 or {len(self.weights)} masks, one per layer (got {len(self.visible)})"
            )
        if self.prompt is not None and not 1 <= self.prompt <= count:
            raise invalid(f"`prompt` must be from 1 to {count}, the number of tokens (got {self.prompt})")
        if self.padding is not None and self.padding.shape != (count,):
            raise invalid(f"`padding` must have shape ({count},) (got {self.padding.shape})")
        for place, weights in enumerate(self.weights):
            self.check(f"layer {self.layer_numbers[place]}", weights, self.mask(place))

    def check(self, name: str, weights: Weights, visible: Mask) -> None:
        count = len(self.tokens)
        if weights.ndim != 3 or weights.shape[1:] != (count, count):
            raise invalid(f"weights of {name} must have shape (heads, {count}, {count}) (got {weights.shape})")
        if self.heads is not None and len(self.heads) != len(weights):
            raise invalid(f"`heads` must have {len(weights)} entries, one per head of {name} (got {len(self.heads)})")
        if visible.shape != (count, count):
            raise invalid(f"`visible` of {name} must have shape ({count}, {count}) (got {visible.shape})")
        fix = "pass the weights after the softmax, of a model without dropout: model.eval()"
        least, most = weights.min(), weights.max()
        if not (least >= -TOLERANCE and most <= 1 + TOLERANCE):  # written so that NaN is an error
            raise invalid(f"weights of {name} must be between 0 and 1 (got {least:.3g} to {most:.3g})", fix)
        total = weights.sum(axis=-1, dtype=np.float64).max()
        if total > 1 + SUM_TOLERANCE:  # a sum below 1 is valid: some heads can attend to nothing
            raise invalid(f"rows of {name} must sum to at most 1 (got {total:.3g})", fix)
        masked = (weights * ~visible).max()
        if masked > TOLERANCE:
            what = f"weights of {name} must be 0 outside the mask (got {masked:.3g})"
            raise invalid(what, "pass the model's own mask: causal, window, padding")

    @property
    def layer_numbers(self) -> list[int]:
        return list(range(len(self.weights)) if self.layers is None else self.layers)

    def head_numbers(self, place: int) -> list[int]:
        """Return the head numbers of the layer at index `place`."""
        return list(range(len(self.weights[place])) if self.heads is None else self.heads)

    def mask(self, place: int) -> Mask:
        """Return the mask (T, T) of the layer at index `place`; false for padding."""
        return self.masks[place if len(self.masks) > 1 else 0]

    @cached_property
    def masks(self) -> list[Mask]:
        count = len(self.tokens)
        masks = [np.ones((count, count), np.bool_)] if self.visible is None else self.visible
        real = np.ones(count, np.bool_) if self.padding is None else ~self.padding
        return [mask & real[:, None] & real[None, :] if mask.shape == (count, count) else mask for mask in masks]

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """Return (T,): a number for each token, equal for equal tokens."""
        if self.ids is not None:
            return np.asarray(self.ids, np.int64)
        return np.unique(np.asarray(list(self.tokens)), return_inverse=True)[1].astype(np.int64)

    @cached_property
    def labels(self) -> list[str]:
        return [label(token) for token in self.tokens]

    @property
    def written(self) -> list[str]:
        """Return the generated tokens, including the last one."""
        if self.prompt is None:
            return []
        return [*self.tokens[self.prompt :], *([] if self.last is None else [self.last])]


def attention_of(
    tokens: Sequence[str],
    weights: Sequence[Tensor | NDArray[Any]],
    causal: bool = False,
    window: int | Sequence[int | None] | None = None,
    padding: Sequence[bool] | NDArray[np.bool_] | None = None,
    ids: Sequence[int] | None = None,
    title: str = "attention",
) -> AttentionMaps:
    """Build AttentionMaps from one tensor or array (H, T, T) or (1, H, T, T) per layer, as `output_attentions=True` of
    transformers returns them.

    `causal`, `window` (one, or one per layer) and `padding` define the mask, as for Lilliput's own models. Padding does not
    count as a position.
    """
    import torch

    from lilliput.model.attention_mask import visible

    real = ~np.asarray(padding, np.bool_) if padding is not None else np.ones(len(tokens), np.bool_)
    doc = torch.from_numpy(real.astype(np.int64))[None]
    pos = doc.cumsum(dim=1) - 1
    windows = list(window) if isinstance(window, Sequence) else [window]
    return AttentionMaps(
        tokens=list(tokens),
        weights=[as_array(layer) for layer in weights],
        visible=[visible(pos, pos, doc, doc, causal, one)[0].numpy() for one in windows],
        padding=None if padding is None else ~real,
        ids=ids,
        title=title,
    )


def as_array(weights: Tensor | NDArray[Any]) -> Weights:
    """Return (H, T, T) as a NumPy array, from a tensor of any device or dtype, or from a batch of one."""
    from torch import Tensor

    if isinstance(weights, Tensor):
        weights = weights.detach().cpu()
        plain = (weights if weights.dtype.itemsize >= 4 else weights.float()).numpy()  # NumPy has no bfloat16
    else:
        plain = np.asarray(weights)
    if plain.ndim == 4:
        if len(plain) != 1:
            raise invalid(f"weights must be a batch of one text (got {len(plain)})", "pass weights[:1]")
        plain = plain[0]
    array: Weights = plain
    return array


def label(token: str) -> str:
    """Return a token with spaces shown as ·, line ends as ↵, and other invisible characters by their code point."""
    return (
        "".join(SYMBOLS.get(one) or (one if is_printable(one) else f"<{ord(one):04X}>") for one in token) or "<empty>"
    )


def is_printable(character: str) -> bool:
    """Return whether a character is visible: no control character, separator or unassigned code point."""
    return unicodedata.category(character)[0] not in "CZ"
