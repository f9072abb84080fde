"""What every picture and number is made of: tokens, and for each layer the weights that its heads gave them.

Owns: `AttentionMaps`, which any model can fill, its checks, and how a token is written so that its spaces are
seen. Does not own: where weights come from (`attention_capture`), or what is made of them (`head_scores`,
`heat_maps`, `attention_page`).

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
ROUNDED = 1e-2  # of the sum of a row: bfloat16 rounds each weight by up to 0.4%
SEEN = {" ": "·", "\n": "↵", "\r": "␍", "\t": "→"}


def invalid(what: str) -> UserError:
    return UserError(what, fix="pass arrays of matching shapes", code="attention.weights")


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Who looks at whom in one text.

    `weights` has one (H, T, T) a layer: row t is what token t gives to each token. `visible` has one (T, T) a layer, or one
    for all: what a token may look at (None: everything). `layers` and `heads` are their numbers in the model, where only
    some are shown. `padding` (T,) marks what only fills a row up. `ids` tell equal tokens apart better than their text.

    `before` and `after` are tokens of the text that the model did not see, because the text is longer than its context. `prompt`
    is how many tokens the model was given, where it wrote the others itself; `last` the token that it wrote at the end and never
    read; `wrote` what it wrote as text, in which its tokenizer knows where spaces belong.
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
            raise invalid("attention maps require at least one token and one layer")
        for name, number, of in (("layers", self.layers, len(self.weights)), ("ids", self.ids, count)):
            if number is not None and len(number) != of:
                raise invalid(f"`{name}` has {len(number)} entries, expected {of}")
        for name, number in (("layer", self.layers), ("head", self.heads)):
            if number is not None and len(set(number)) < len(number):
                what = f"a {name} was selected twice (got {', '.join(map(str, number))})"
                raise UserError(what, fix=f"select each {name} once", code="attention.selection")
        if self.visible is not None and len(self.visible) not in (1, len(self.weights)):
            raise invalid(f"`visible` has {len(self.visible)} masks, expected 1 or {len(self.weights)} (one per layer)")
        if self.prompt is not None and not 1 <= self.prompt <= count:
            raise invalid(f"`prompt` is {self.prompt}, expected 1 to {count} (the number of tokens)")
        if self.padding is not None and self.padding.shape != (count,):
            raise invalid(f"`padding` has shape {self.padding.shape}, expected ({count},)")
        for place, weights in enumerate(self.weights):
            self.check(f"layer {self.layer_numbers[place]}", weights, self.mask(place))

    def check(self, name: str, weights: Weights, visible: Mask) -> None:
        count = len(self.tokens)
        if weights.ndim != 3 or weights.shape[1:] != (count, count):
            raise invalid(f"{name} has shape {weights.shape}, expected (heads, {count}, {count})")
        if self.heads is not None and len(self.heads) != len(weights):
            raise invalid(f"{name} has {len(weights)} heads, but `heads` has {len(self.heads)} entries")
        if visible.shape != (count, count):
            raise invalid(f"`visible` of {name} has shape {visible.shape}, expected ({count}, {count})")
        fix = "pass the weights after the softmax, of a model without dropout: model.eval()"
        if not (weights.min() >= -TOLERANCE and weights.max() <= 1 + TOLERANCE):  # also where one is not a number
            raise UserError(f"{name} has weights that are not between 0 and 1", fix=fix, code="attention.weights")
        if weights.sum(axis=-1, dtype=np.float64).max() > 1 + ROUNDED:  # less than 1: a head may also look at nothing
            raise UserError(f"{name} has rows whose weights sum to more than 1", fix=fix, code="attention.weights")
        if (weights * ~visible).max() > TOLERANCE:
            what, fix = f"{name} has weights outside its mask", "pass the model's own mask: causal, window, padding"
            raise UserError(what, fix=fix, code="attention.weights")

    @property
    def layer_numbers(self) -> list[int]:
        return list(range(len(self.weights)) if self.layers is None else self.layers)

    def head_numbers(self, place: int) -> list[int]:
        """Of the layer that stands at `place` of the list."""
        return list(range(len(self.weights[place])) if self.heads is None else self.heads)

    def mask(self, place: int) -> Mask:
        """(T, T): what the layer at `place` may look at; padding neither looks nor is looked at."""
        return self.masks[place if len(self.masks) > 1 else 0]

    @cached_property
    def masks(self) -> list[Mask]:
        count = len(self.tokens)
        masks = [np.ones((count, count), np.bool_)] if self.visible is None else self.visible
        real = np.ones(count, np.bool_) if self.padding is None else ~self.padding
        return [mask & real[:, None] & real[None, :] if mask.shape == (count, count) else mask for mask in masks]

    @cached_property
    def kinds(self) -> NDArray[np.int64]:
        """(T,): a number for each token, equal for equal tokens."""
        if self.ids is not None:
            return np.asarray(self.ids, np.int64)
        return np.unique(np.asarray(list(self.tokens)), return_inverse=True)[1].astype(np.int64)

    @cached_property
    def labels(self) -> list[str]:
        return [label(token) for token in self.tokens]

    @property
    def written(self) -> list[str]:
        """What the model wrote itself, the token that it never read included."""
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
    """Of any model: one tensor or array (H, T, T) or (1, H, T, T) a layer, as `output_attentions=True` of transformers gives.

    `causal` and `window` (one, or one for each layer) tell which tokens may be seen; both are read by the predicate that
    Lilliput's own models live by. Padding counts no position.
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
    """(H, T, T) as plain numbers, whatever device, type or graph it comes from; of a batch, its only row."""
    from torch import Tensor

    if isinstance(weights, Tensor):
        weights = weights.detach().cpu()
        plain = (weights if weights.dtype.itemsize >= 4 else weights.float()).numpy()  # NumPy has no bfloat16
    else:
        plain = np.asarray(weights)
    if plain.ndim == 4:
        if len(plain) != 1:
            raise UserError(
                f"expected a batch of one text, got {len(plain)}", fix="pass weights[:1]", code="attention.weights"
            )
        plain = plain[0]
    found: Weights = plain
    return found


def label(token: str) -> str:
    """A token as it is shown: spaces as ·, line ends as ↵, whatever else cannot be seen by its number."""
    return "".join(SEEN.get(one) or (one if is_seen(one) else f"<{ord(one):04X}>") for one in token) or "<empty>"


def is_seen(character: str) -> bool:
    """Whether it leaves a mark of its own: no control, no separator, nothing that has no assigned form."""
    return unicodedata.category(character)[0] not in "CZ"
