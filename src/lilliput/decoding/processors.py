"""Logit processors, which change the model's logits before a token is chosen.

Owns: the filters (top-k, top-p, min-p, typical), `PROCESSORS`, the table of all logit processors, and `Strategy`, the
processors of a row. Does not own: rules about the text (`repetition_penalties`, `word_constraints`), temperature
(`temperatures`) or the choice of a token (`token_choice`). Processors work on batches; each row is independent of the
others.

Order: the mixture with n-grams (`ngram_mixture`), penalties, bans (bad words, minimum length, forced words, n-grams),
temperature, top-k, typical, top-p, min-p; each filter receives the tokens that the previous one kept. A ban that would
leave a row without a token is ignored in that row, so earlier bans take precedence. A filter keeps at least one token.
Without sampling (temperature 0, or beams that are not sampled) temperature and filters are left out.

B rows, V vocabulary, K the largest number of tokens left in a row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.repetition_penalties import MinTokens, NoRepeat, Penalties
from lilliput.decoding.row_history import Processor, RowHistory
from lilliput.decoding.temperatures import EntropyTemperature, RowTemperature, Temperature, blocks, distributions
from lilliput.decoding.word_constraints import BadWords, ForcedWords
from lilliput.errors import UserError
from lilliput.kernels.logit_statistics import SETS, Ids, Values
from lilliput.settings.choice_tables import TABLES
from lilliput.settings.tree import GenerateSettings


class Filter(ABC):
    """Removes the tokens below a threshold."""

    @abstractmethod
    def threshold(self, values: Values) -> Values:
        """Return the smallest logit to keep in each row, (B, 1)."""

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        left = np.full_like(values, -np.inf)
        np.copyto(left, values, where=values >= self.threshold(values))
        return torch.from_numpy(left)

    def apply_to_candidates(self, candidates: Candidates) -> Candidates:
        """Apply the filter to packed logits."""
        return candidates.pack(candidates.values >= self.threshold(candidates.values))


@dataclass(frozen=True)
class TopK(Filter):
    """Keeps the k likeliest tokens, and all that equal the k-th: the result does not depend on the order of ids."""

    k: int

    def threshold(self, values: Values) -> Values:
        return kth_largest(values, self.k)

    def apply_to_candidates(self, candidates: Candidates) -> Candidates:
        # At least k tokens reach the k-th largest peak, so the others can be dropped before the search.
        if candidates.peaks is not None and 2 * self.k <= SETS:
            candidates = candidates.pack(candidates.values >= kth_largest(candidates.peaks, self.k))
        return super().apply_to_candidates(candidates)


@dataclass(frozen=True)
class TopP(Filter):
    """Keeps the nucleus (Holtzman et al. 2020): the smallest set of likeliest tokens with total probability p or more.

    Tokens that equal the last one of the set are kept too.
    """

    p: float

    def threshold(self, values: Values) -> Values:
        possible = pack(values, values > -np.inf).values
        return np.concatenate([self.cross(own) for own in blocks(possible)])

    def cross(self, values: Values) -> Values:
        """Return the logit of the token at which the sum reaches p, (B, 1)."""
        likeliest = -np.sort(-values, axis=-1)  # ten times as fast as torch, which also returns indices
        shares = np.exp(np.subtract(likeliest, likeliest[:, :1], dtype=np.float64))
        return likeliest[crossing(shares, self.p)][:, None]


@dataclass(frozen=True)
class MinP(Filter):
    """Keeps tokens with at least p times the probability of the likeliest one (Nguyen et al. 2024)."""

    p: float

    def threshold(self, values: Values) -> Values:
        least: Values = values.max(axis=-1, keepdims=True) + math.log(self.p)
        return least


@dataclass(frozen=True)
class Typical:
    """Keeps the smallest set of typical tokens with total probability p or more (Meister et al. 2022).

    Tokens are ordered by the distance of their surprisal from the entropy; those of equal distance are kept together. The
    likeliest token may be removed.
    """

    p: float

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        far = np.concatenate([self.is_untypical(own) for own in blocks(values)])
        return torch.from_numpy(np.where(far, -np.inf, values))

    def is_untypical(self, values: Values) -> NDArray[np.bool_]:
        logprobs, shares, entropies = distributions(values)
        distance = np.abs(-logprobs - entropies)
        order = np.argsort(distance, axis=-1)
        rows, places = crossing(np.take_along_axis(shares, order, axis=-1), self.p)
        far: NDArray[np.bool_] = distance > distance[rows, order[rows, places]][:, None]
        return far


def kth_largest(values: Values, k: int) -> Values:
    """Return the k-th largest value of each row, or its smallest if it has fewer, (B, 1). Takes half the time of torch.topk."""
    place = max(values.shape[1] - k, 0)
    return np.partition(values, place, axis=-1)[:, place, None]


def crossing(shares: Values, p: float) -> tuple[Ids, list[int]]:
    """Return all rows, and the place in each at which the cumulative sum of shares (B, K) reaches p of the total."""
    mass = shares.cumsum(axis=-1)
    return np.arange(len(mass)), [int(row.searchsorted(p * row[-1])) for row in mass]


@dataclass(frozen=True)
class Strategy:
    """How a row's next token is chosen: processors in order, then a random draw or the likeliest token (of equals the first).

    Rows with equal strategies are processed together.
    """

    processors: tuple[Processor, ...] = ()
    sample: bool = False


GREEDY = Strategy()


class Candidates(NamedTuple):
    """Logits (B, K) of some tokens of each row, ordered by id and padded with -inf. `ids` is None if all tokens are there.

    Cumulative sums equal those over all tokens, because the others add 0. `peaks` (B, SETS) save time where known.
    """

    values: Values
    ids: Ids | None
    peaks: Values | None = None

    def pack(self, kept: NDArray[np.bool_]) -> Candidates:
        """Return the kept candidates."""
        inner = pack(self.values, kept)
        if self.ids is None or inner.ids is None:
            return Candidates(inner.values, inner.ids if self.ids is None else self.ids)
        return Candidates(inner.values, np.take_along_axis(self.ids, inner.ids, axis=1))


def pack(values: Values, kept: NDArray[np.bool_]) -> Candidates:
    """Return the kept values of (B, V). Where packing saves little, return all, with -inf for those not kept."""
    flat = np.flatnonzero(kept)
    if 4 * len(flat) > values.size:
        return Candidates(values if len(flat) == values.size else np.where(kept, values, -np.inf), None)
    rows, ids = np.divmod(flat, values.shape[1])
    counts = np.bincount(rows, minlength=len(values))
    places = np.arange(len(flat)) - np.repeat(counts.cumsum() - counts, counts)  # in the packed row
    shape = len(values), int(counts.max())
    packed, packed_ids = np.full(shape, -np.inf, values.dtype), np.zeros(shape, np.int64)
    packed[rows, places], packed_ids[rows, places] = values.reshape(-1)[flat], ids
    return Candidates(packed, packed_ids)


BY_VALUE = (Filter, RowTemperature, Typical)  # processors that depend on the logits only, not on token ids


# Entries of `PROCESSORS` ----------------------------------------------------------------------------------------------


def build_penalties(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    penalties = (settings.repetition_penalty, settings.frequency_penalty, settings.presence_penalty)
    if penalties == (1.0, 0.0, 0.0):
        return None
    return Penalties(*penalties, settings.penalise_prompt, tokenizer.end, settings.repetition_window)


def build_forced_words(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    if not settings.forced_words:
        return None
    forced = ForcedWords(settings.forced_words, tokenizer)
    if forced.tokens > settings.tokens:
        raise UserError(
            f"the forced words require generate.tokens of at least {forced.tokens} (got {settings.tokens})",
            fix=f"set generate.tokens to {forced.tokens} or more, or remove a forced word",
            code="setting.conflict",
            setting="generate.forced_words",
        )
    return forced


@dataclass(frozen=True)
class Registered:
    """Processors of plugins, applied in order."""

    processors: tuple[Processor, ...]

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        for process in self.processors:
            logits = process(texts, logits)
        return logits


def build_registered(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    built = tuple(TABLES["generate.processors"][name].build(tokenizer) for name in settings.processors)
    return Registered(built) if built else None


def build_temperature(settings: GenerateSettings, tokenizer: Tokenizer) -> Processor | None:
    if settings.entropy_temperature is not None:
        return EntropyTemperature(settings.temperature, settings.entropy_temperature, tokenizer.vocab_size)
    if settings.final_temperature is None and settings.temperature == 1.0:
        return None
    return Temperature(settings.temperature, settings.final_temperature)


def build_unless_all(processor: Callable[[float], Processor], p: float | None) -> Processor | None:
    """Return the filter, or None if p is None or 1, which keeps every token."""
    return None if p is None or p >= 1.0 else processor(p)


@dataclass(frozen=True)
class ProcessorEntry:
    """A logit processor and the setting `generate.<name>` that turns it on.

    `build` returns None if the settings leave it off. `draw_only` processors are left out where no token is sampled.
    """

    name: str
    build: Callable[[GenerateSettings, Tokenizer], Processor | None]
    draw_only: bool = False


class ProcessorTable(dict[str, ProcessorEntry]):
    """Logit processors by name, in the order in which they are applied."""

    def add(self, entry: ProcessorEntry, before: str | None = None) -> None:
        """Add a processor before the named one, or at the end."""
        if entry.name in self:
            raise ValueError(f"a processor named {entry.name!r} is already registered")
        if before is not None and before not in self:
            raise ValueError(f"no processor is named {before!r}")
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


def build_strategy(settings: GenerateSettings, tokenizer: Tokenizer, first: Processor | None = None) -> Strategy:
    """Build the processors that the settings turn on, in the order of `PROCESSORS`. `first` is applied before them."""
    entries = [entry for entry in PROCESSORS.values() if settings.is_drawn or not entry.draw_only]
    built = (first, *(entry.build(settings, tokenizer) for entry in entries))
    return Strategy(tuple(processor for processor in built if processor is not None), sample=settings.is_drawn)
