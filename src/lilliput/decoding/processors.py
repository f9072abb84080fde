"""Logit processors: what happens between the model's logits and the choice of a token.

Owns: temperature and the filters (top-k, top-p, min-p, typical), `PROCESSORS`, the table of all logit processors, and
`Strategy`, the processors of a row. Does not own: rules about the text (`repetition_penalties`, `word_constraints`) or
the choice of a token (`token_choice`). Processors work on whole batches and treat each row by itself.

The order of the table: rules about the text act on the model's own logits, penalties before bans; then temperature,
top-k, typical, top-p, min-p, so that each filter sees what the one before has left. A ban that would leave a row
without any token is ignored in that row; so of the bans the earlier one holds: bad words, minimum length, forced words,
n-grams. A filter always keeps a token. Where nothing is drawn (temperature 0, or beams that are not sampled)
temperature and filters are left out: the likeliest token, or the likeliest text, is taken by the probabilities that the
rules have left.

B rows, V vocabulary, K the most tokens that a row has left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
from lilliput.settings.choice_tables import TABLES
from lilliput.settings.tree import GenerateSettings

# Below any difference of two float32 logits that is worth a thought; not so far that dividing by it overflows float32.
LEAST_TEMPERATURE = LARGEST / 1e38
# Numbers that are worked on at a time: in float64 they stay in the processor's cache, three times as fast.
BLOCK = 1 << 14


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
    def threshold(self, values: Values) -> Values:
        """The least logit that remains in each row, (B, 1)."""

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        left = np.full_like(values, -np.inf)
        np.copyto(left, values, where=values >= self.threshold(values))
        return torch.from_numpy(left)

    def apply_to_candidates(self, candidates: Candidates) -> Candidates:
        """The same, packed."""
        return candidates.pack(candidates.values >= self.threshold(candidates.values))


@dataclass(frozen=True)
class TopK(Filter):
    """Only the k likeliest remain. Ties at the border all remain, so that the outcome depends on no order."""

    k: int

    def threshold(self, values: Values) -> Values:
        return kth_largest(values, self.k)

    def apply_to_candidates(self, candidates: Candidates) -> Candidates:
        # As many sets of tokens have one that is as large as the k-th largest of their peaks: few are left to be searched.
        if candidates.peaks is not None and 2 * self.k <= SETS:
            candidates = candidates.pack(candidates.values >= kth_largest(candidates.peaks, self.k))
        return super().apply_to_candidates(candidates)


@dataclass(frozen=True)
class TopP(Filter):
    """The nucleus (Holtzman et al. 2020): the fewest of the likeliest tokens that together have probability p or more.

    The one that crosses p remains, and so do its ties.
    """

    p: float

    def threshold(self, values: Values) -> Values:
        possible = pack(values, values > -np.inf).values
        return np.concatenate([self.cross(own) for own in blocks(possible)])

    def cross(self, values: Values) -> Values:
        """The logit of the token that crosses p, (B, 1)."""
        likeliest = -np.sort(-values, axis=-1)  # ten times as fast as torch, which also finds where they stand
        shares = np.exp(np.subtract(likeliest, likeliest[:, :1], dtype=np.float64))
        return likeliest[crossing(shares, self.p)][:, None]


@dataclass(frozen=True)
class MinP(Filter):
    """Tokens with at least this share of the likeliest one's probability (Nguyen et al. 2024)."""

    p: float

    def threshold(self, values: Values) -> Values:
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
        far = np.concatenate([self.is_untypical(own) for own in blocks(values)])
        return torch.from_numpy(np.where(far, -np.inf, values))

    def is_untypical(self, values: Values) -> NDArray[np.bool_]:
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
    """Yield a few rows at a time."""
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


class Candidates(NamedTuple):
    """Logits (B, K) of some tokens of each row, in the order of their ids and filled up with -inf; ids None: of all tokens.

    Sums over a row, in order, are those over all tokens: the rest adds 0 to them. `peaks` (B, SETS) where they are known.
    """

    values: Values
    ids: Ids | None
    peaks: Values | None = None

    def pack(self, kept: NDArray[np.bool_]) -> Candidates:
        """Keep some of these, with their ids."""
        inner = pack(self.values, kept)
        if self.ids is None or inner.ids is None:
            return Candidates(inner.values, inner.ids if self.ids is None else self.ids)
        return Candidates(inner.values, np.take_along_axis(self.ids, inner.ids, axis=1))


def pack(values: Values, kept: NDArray[np.bool_]) -> Candidates:
    """Return the kept ones of values (B, V); where packing saves little, all of them with -inf in place of the others."""
    flat = np.flatnonzero(kept)
    if 4 * len(flat) > values.size:
        return Candidates(values if len(flat) == values.size else np.where(kept, values, -np.inf), None)
    rows, ids = np.divmod(flat, values.shape[1])
    counts = np.bincount(rows, minlength=len(values))
    places = np.arange(len(flat)) - np.repeat(counts.cumsum() - counts, counts)  # of each in its own row
    shape = len(values), int(counts.max())
    packed, packed_ids = np.full(shape, -np.inf, values.dtype), np.zeros(shape, np.int64)
    packed[rows, places], packed_ids[rows, places] = values.reshape(-1)[flat], ids
    return Candidates(packed, packed_ids)


BY_VALUE = (Filter, Temperature, Typical)  # processors that look at logits only, whatever tokens they are of


# Entries of `PROCESSORS` ----------------------------------------------------------------------------------------------


def build_penalties(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    penalties = (settings.repetition_penalty, settings.frequency_penalty, settings.presence_penalty)
    if penalties == (1.0, 0.0, 0.0):
        return None
    return Penalties(*penalties, settings.penalise_prompt, tokenizer.end)


def build_forced_words(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    if not settings.forced_words:
        return None
    forced = ForcedWords(settings.forced_words, tokenizer)
    if forced.tokens > settings.tokens:
        raise UserError(
            f"the forced words take {forced.tokens} tokens, but generate.tokens is {settings.tokens}",
            "generate.forced_words",
            fix=f"set generate.tokens to {forced.tokens} or more",
            code="setting.conflict",
            setting="generate.forced_words",
        )
    return forced


@dataclass(frozen=True)
class Registered:
    """Processors that plugins registered, one after the other."""

    processors: tuple[Processor, ...]

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        for process in self.processors:
            logits = process(texts, logits)
        return logits


def build_registered(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    built = tuple(TABLES["generate.processors"][name].build(tokenizer) for name in settings.processors)
    return Registered(built) if built else None


def build_temperature(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    if settings.final_temperature is None and settings.temperature == 1.0:
        return None
    return Temperature(settings.temperature, settings.final_temperature)


def build_unless_all(processor: Callable[[float], Processor], p: float | None) -> Processor | None:
    """A probability of 1 keeps every token: the filter is off."""
    return None if p is None or p >= 1.0 else processor(p)


@dataclass(frozen=True)
class ProcessorEntry:
    """A logit processor by the setting `generate.<name>` that turns it on.

    `build` returns None where the settings leave it off. `draw_only`: it shapes a distribution that a token is drawn from, and
    is left out where nothing is drawn.
    """

    name: str
    build: Callable[[GenerateSettings, Tokenizer], Processor | None]
    draw_only: bool = False


class ProcessorTable(dict[str, ProcessorEntry]):
    """Logit processors by name, in the order in which they are applied."""

    def add(self, entry: ProcessorEntry, before: str | None = None) -> None:
        """Add a processor before the named one, or at the end."""
        if entry.name in self:
            raise ValueError(f"there is already a processor named {entry.name!r}")
        if before is not None and before not in self:
            raise ValueError(f"there is no processor named {before!r}")
        entries = list(self.values())
        entries.insert(len(entries) if before is None else list(self).index(before), entry)
        self.clear()
        self.update((each.name, each) for each in entries)


PROCESSORS = ProcessorTable()
for _entry in (
    ProcessorEntry("repetition_penalty", build_penalties),
    ProcessorEntry("bad_words", lambda s, tokenizer: BadWords(s.bad_words, tokenizer) if s.bad_words else None),
    ProcessorEntry("min_tokens", lambda s, tokenizer: MinTokens(s.min_tokens, tokenizer.end) if s.min_tokens else None),
    ProcessorEntry("forced_words", build_forced_words),
    ProcessorEntry(
        "no_repeat_ngram",
        lambda s, tokenizer: (
            None if s.no_repeat_ngram is None else NoRepeat(s.no_repeat_ngram, s.penalise_prompt, tokenizer.end)
        ),
    ),
    ProcessorEntry("processors", build_registered),
    ProcessorEntry("temperature", build_temperature, draw_only=True),
    ProcessorEntry("top_k", lambda s, _: None if s.top_k is None else TopK(s.top_k), draw_only=True),
    ProcessorEntry("typical", lambda s, _: build_unless_all(Typical, s.typical), draw_only=True),
    ProcessorEntry("top_p", lambda s, _: build_unless_all(TopP, s.top_p), draw_only=True),
    ProcessorEntry("min_p", lambda s, _: None if s.min_p is None else MinP(s.min_p), draw_only=True),
):
    PROCESSORS.add(_entry)


def build_strategy(settings: GenerateSettings, tokenizer: Tokenizer) -> Strategy:
    """Build the processors that the settings turn on, in the order of `PROCESSORS`."""
    entries = [entry for entry in PROCESSORS.values() if settings.is_drawn or not entry.draw_only]
    built = (entry.build(settings, tokenizer) for entry in entries)
    return Strategy(tuple(processor for processor in built if processor is not None), sample=settings.is_drawn)
