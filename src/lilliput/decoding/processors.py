"""What happens between the model's logits and the next token.

Owns: the processors that shape a distribution (temperature, and filters that leave the rest's shares as they
are), their composition with all others into a strategy, and the choice of one token a row. Does not own: the
loop (`stream`), rules about the text (`repetition_penalties`, `word_constraints`). All work on whole batches
and treat each row by itself.

The order of a strategy: rules about the text act on the model's own logits, penalties before bans; then
temperature, top-k, typical, top-p, min-p, so that each filter sees what the one before has left. A ban that
would leave a row without any token is not obeyed in that row; so of the bans the earlier one holds: bad
words, least length, forced words, n-grams. A filter always keeps a token. Without a draw (temperature 0, or
beams that are not drawn) temperature and filters are left out: the likeliest token is taken, or the likeliest
texts, by the probabilities that the rules have left.

B rows, V vocabulary, K the most tokens that a row has left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.repetition_penalties import LARGEST, MinTokens, NoRepeat, Penalties
from lilliput.decoding.row_history import Processor, RowHistory
from lilliput.decoding.word_constraints import BadWords, ForcedWords
from lilliput.errors import UserError
from lilliput.kernels.logit_statistics import SETS, Ids, Values
from lilliput.settings.tree import GenerateSettings

# Below any difference of two float32 logits that is worth a thought; not so far that dividing by it overflows float32.
LEAST_TEMPERATURE = LARGEST / 1e38
# Numbers that are worked on at a time: in float64 they stay in the processor's cache, three times as fast.
BLOCK = 1 << 14
AHEAD = 16  # uniform numbers drawn at a time


@dataclass(frozen=True)
class Temperature:
    """Divide by the temperature: below 1 sharper, above 1 flatter. Greedy is no temperature 0, but a strategy without a draw.

    With `final`, in equal steps from the first token that a row may write to the last one.
    """

    temperature: float
    final: float | None = None

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        if self.final is None:
            return torch.from_numpy(values / max(self.temperature, LEAST_TEMPERATURE))
        share = np.array([text.written / max(text.tokens - 1, 1) for text in texts])
        by_row = np.maximum(self.temperature + (self.final - self.temperature) * share, LEAST_TEMPERATURE)
        return torch.from_numpy(values / by_row[:, None].astype(values.dtype))


class Filter(ABC):
    """What is below a border falls; the rest's shares stay as they are."""

    @abstractmethod
    def border(self, values: Values) -> Values:
        """The least logit that remains in each row, (B, 1)."""

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        left = np.full_like(values, -np.inf)
        np.copyto(left, values, where=values >= self.border(values))
        return torch.from_numpy(left)

    def narrow(self, few: Packed) -> Packed:
        """The same, packed."""
        return few.pack(few.values >= self.border(few.values))


@dataclass(frozen=True)
class TopK(Filter):
    """Only the k likeliest remain. Ties at the border all remain, so that the outcome depends on no order."""

    k: int

    def border(self, values: Values) -> Values:
        return kth_largest(values, self.k)

    def narrow(self, few: Packed) -> Packed:
        # As many sets of tokens have one that is as large as the k-th largest of their peaks: few are left to be looked through.
        if few.peaks is not None and 2 * self.k <= SETS:
            few = few.pack(few.values >= kth_largest(few.peaks, self.k))
        return super().narrow(few)


@dataclass(frozen=True)
class TopP(Filter):
    """The nucleus (Holtzman et al. 2020): the fewest of the likeliest tokens that together have probability p or more.

    The one that crosses p remains, and so do its ties.
    """

    p: float

    def border(self, values: Values) -> Values:
        few = pack(values, values > -np.inf).values
        return np.concatenate([self.cross(own) for own in blocks(few)])

    def cross(self, values: Values) -> Values:
        """The logit of the token that crosses p, (B, 1)."""
        likeliest = -np.sort(-values, axis=-1)  # ten times as fast as torch, which also finds where they stand
        shares = np.exp(np.subtract(likeliest, likeliest[:, :1], dtype=np.float64))
        return likeliest[crossing(shares, self.p)][:, None]


@dataclass(frozen=True)
class MinP(Filter):
    """Tokens with at least this share of the likeliest one's probability (Nguyen et al. 2024)."""

    p: float

    def border(self, values: Values) -> Values:
        least: Values = values.max(axis=-1, keepdims=True) + math.log(self.p)
        return least


@dataclass(frozen=True)
class Typical:
    """The fewest tokens of typical surprise that together have probability p or more (Meister et al. 2022).

    Typical is what is near the distribution's entropy; equally near ones remain together. The likeliest token may fall.
    """

    p: float

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        far = np.concatenate([self.untypical(own) for own in blocks(values)])
        return torch.from_numpy(np.where(far, -np.inf, values))

    def untypical(self, values: Values) -> NDArray[np.bool_]:
        below = np.subtract(values, values.max(axis=-1, keepdims=True), dtype=np.float64)  # (B, V)
        shares = np.exp(below)
        whole = shares.cumsum(axis=-1)[:, -1:]
        logprobs, shares = below - np.log(whole), shares / whole
        with np.errstate(invalid="ignore"):  # what was ruled out has share 0 and no surprise
            entropy = np.where(shares > 0, -shares * logprobs, 0.0).cumsum(axis=-1)[:, -1:]
        distance = np.abs(-logprobs - entropy)
        order = np.argsort(distance, axis=-1)
        rows, places = crossing(np.take_along_axis(shares, order, axis=-1), self.p)
        far: NDArray[np.bool_] = distance > distance[rows, order[rows, places]][:, None]
        return far


def kth_largest(values: Values, k: int) -> Values:
    """Of each row, or its smallest where it has no k, (B, 1). Half the time of torch's topk, which finds places too."""
    place = max(values.shape[1] - k, 0)
    return np.partition(values, place, axis=-1)[:, place, None]


def blocks(values: Values) -> Iterator[Values]:
    """A few rows at a time."""
    rows = max(1, BLOCK // values.shape[1])
    for first in range(0, len(values), rows):
        yield values[first : first + rows]


def crossing(shares: Values, p: float) -> tuple[Ids, list[int]]:
    """Where the sum of shares (B, K), in their order, reaches p of the whole: all rows, and the place in each."""
    mass = shares.cumsum(axis=-1)
    return np.arange(len(mass)), [int(row.searchsorted(p * row[-1])) for row in mass]


@dataclass(frozen=True)
class Strategy:
    """How a row's next token is chosen: processors in order, then a draw, or the likeliest (of equal ones the first).

    A value: rows of equal strategies are treated together.
    """

    processors: tuple[Processor, ...] = ()
    sample: bool = False


GREEDY = Strategy()


def choose(
    strategies: Sequence[Strategy],
    texts: Sequence[RowHistory],
    logits: Tensor,
    draws: Sequence[Draws],
    peaks: Values | None = None,
) -> list[int]:
    """One token for each row of logits (B, V); `peaks` of them, where they are known (`logit_statistics`), save time."""
    first = strategies[0]
    if all(strategy is first or strategy == first for strategy in strategies):
        return choose_together(first, texts, logits, draws, peaks)
    places: dict[Strategy, list[int]] = {}
    for place, strategy in enumerate(strategies):
        places.setdefault(strategy, []).append(place)
    chosen = [0] * len(texts)
    for strategy, own in places.items():
        here = None if peaks is None else peaks[own]
        found = choose_together(strategy, [texts[p] for p in own], logits[own], [draws[p] for p in own], here)
        for place, id_ in zip(own, found, strict=True):
            chosen[place] = id_
    return chosen


def choose_together(
    strategy: Strategy, texts: Sequence[RowHistory], logits: Tensor, draws: Sequence[Draws], peaks: Values | None
) -> list[int]:
    rest = strategy.processors
    while rest and not (strategy.sample and all(isinstance(process, BY_VALUE) for process in rest)):
        logits, rest, peaks = rest[0](texts, logits), rest[1:], None
    values = logits.cpu().numpy()
    if not strategy.sample:
        chosen: list[int] = values.argmax(axis=-1).tolist()
        return chosen
    # What is left looks at no ids: after a filter it works on the few tokens that remain, wherever they stand.
    few = Packed(values, None, peaks)
    for process in rest:
        if isinstance(process, Filter):
            few = process.narrow(few)
            continue
        divided: Values | None = None
        if isinstance(process, Temperature) and few.peaks is not None:  # the largest stays the largest
            divided = process(texts, torch.from_numpy(few.peaks)).numpy()
        few = Packed(process(texts, torch.from_numpy(few.values)).numpy(), few.ids, divided)
    return draw_packed(few, draws)


def draw_packed(few: Packed, draws: Sequence[Draws]) -> list[int]:
    """By inversion, one uniform number a token, each row from its own: exact in float64, the same on every device.

    A token without mass is never drawn: the sum is cumulative, so numbers below 1 fall below the whole of it.
    """
    numbers = [row.next() for row in draws]
    drawn: list[int] = []
    for own in blocks(few.values):
        mass = np.exp(np.subtract(own, own.max(axis=-1, keepdims=True), dtype=np.float64)).cumsum(axis=-1)  # (rows, K)
        border = mass[:, -1] * numbers[len(drawn) : len(drawn) + len(own)]
        drawn += np.count_nonzero(mass <= border[:, None], axis=-1).tolist()
    if few.ids is None:
        return drawn
    chosen: list[int] = few.ids[np.arange(len(drawn)), drawn].tolist()
    return chosen


class Draws:
    """Numbers from 0 to below 1: those that `torch.rand` gives one by one, drawn AHEAD at a time."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.ahead: list[float] = []

    def next(self) -> float:
        if not self.ahead:
            self.ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator).tolist()[::-1]
        return self.ahead.pop()


class Packed(NamedTuple):
    """Logits (B, K) of some tokens of each row, in the order of their ids and filled up with -inf; ids None: of all tokens.

    Sums over a row, in order, are those over all tokens: the rest adds 0 to them. `peaks` (B, SETS) where they are known.
    """

    values: Values
    ids: Ids | None
    peaks: Values | None = None

    def pack(self, there: NDArray[np.bool_]) -> Packed:
        """Those that are `there`, with the ids that they have here."""
        inner = pack(self.values, there)
        if self.ids is None or inner.ids is None:
            return Packed(inner.values, inner.ids if self.ids is None else self.ids)
        return Packed(inner.values, np.take_along_axis(self.ids, inner.ids, axis=1))


def pack(values: Values, there: NDArray[np.bool_]) -> Packed:
    """Of values (B, V) those that are `there`; where packing saves little all of them, -inf where they are not."""
    flat = np.flatnonzero(there)
    if 4 * len(flat) > values.size:
        return Packed(values if len(flat) == values.size else np.where(there, values, -np.inf), None)
    rows, ids = np.divmod(flat, values.shape[1])
    counts = np.bincount(rows, minlength=len(values))
    places = np.arange(len(flat)) - np.repeat(counts.cumsum() - counts, counts)  # of each in its own row
    shape = len(values), int(counts.max())
    packed, packed_ids = np.full(shape, -np.inf, values.dtype), np.zeros(shape, np.int64)
    packed[rows, places], packed_ids[rows, places] = values.reshape(-1)[flat], ids
    return Packed(packed, packed_ids)


BY_VALUE = (Filter, Temperature, Typical)  # processors that look at logits only, whatever tokens they are of


def build_strategy(settings: GenerateSettings, tokenizer: Tokenizer) -> Strategy:
    """What the settings ask for, in the order that stands above; what is off is left out."""
    shaping = shapes(settings) if settings.is_drawn else ()
    return Strategy((*text_rules(settings, tokenizer), *shaping), sample=settings.is_drawn)


def text_rules(settings: GenerateSettings, tokenizer: Tokenizer) -> list[Processor]:
    rules: list[Processor] = []
    end, prompt = tokenizer.end, settings.penalise_prompt
    penalties = (settings.repetition_penalty, settings.frequency_penalty, settings.presence_penalty)
    if penalties != (1.0, 0.0, 0.0):
        rules.append(Penalties(*penalties, prompt, end))
    if settings.bad_words:
        rules.append(BadWords(settings.bad_words, tokenizer))
    if settings.min_tokens:
        rules.append(MinTokens(settings.min_tokens, end))
    if settings.forced_words:
        forced = ForcedWords(settings.forced_words, tokenizer)
        if forced.tokens > settings.tokens:
            what = f"the forced words take {forced.tokens} tokens, and {settings.tokens} may be written"
            raise UserError(what, "generate.forced_words", f"generate.tokens {forced.tokens} or more")
        rules.append(forced)
    if settings.no_repeat_ngram is not None:
        rules.append(NoRepeat(settings.no_repeat_ngram, prompt, end))
    return rules


def shapes(settings: GenerateSettings) -> list[Processor]:
    """A probability of 1 keeps all: that filter is off."""
    found: list[Processor] = []
    if settings.final_temperature is not None or settings.temperature != 1.0:
        found.append(Temperature(settings.temperature, settings.final_temperature))
    if settings.top_k is not None:
        found.append(TopK(settings.top_k))
    if settings.typical is not None and settings.typical < 1.0:
        found.append(Typical(settings.typical))
    if settings.top_p is not None and settings.top_p < 1.0:
        found.append(TopP(settings.top_p))
    if settings.min_p is not None:
        found.append(MinP(settings.min_p))
    return found
