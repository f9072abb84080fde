"""Beam search: the best texts of each prompt, by their probability as a whole, in place of one token after the other.

Owns: the loop over all prompts and beams, one `rows.step` for all of them, and the order of their
continuations. Does not own: which of these go on and when it is enough (`beam_hypotheses`), processors, or
how logits are computed (`engines`).

Each prompt is read once and its row repeated; a prompt whose search is over leaves the batch. Texts longer
than the context follow the rule of `stream`: beams of a prompt are of one length, so they slide together.
What is compared are the log-probabilities after the processors, normalised again; without processors these
are the model's own. Equals are ordered by their beam, then by their logit, which a sum may have rounded away,
then by their token's id: so the outcome is a function of the logits alone, and one beam is greedy.

B rows (beams of all prompts), N rows of one group, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.decoding.beam_hypotheses import Beam, Beams, Best, Drawn, Ending, Group, Hypothesis, Stops, tell_best
from lilliput.decoding.engines import Engine, EngineRows
from lilliput.decoding.processors import GREEDY, Strategy
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.stream import read
from lilliput.kernels.logit_statistics import LogitStatistics, find_peaks, logit_statistics

__all__ = ["Beams", "Hypothesis", "search"]

Floats = NDArray[np.floating[Any]]  # of the engine's own precision
Doubles = NDArray[np.float64]
Places = NDArray[np.int64]


def search(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    settings: Beams,
    strategy: Strategy = GREEDY,
    end: int | None = None,
    seed: int = 0,
    stops: Stops | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` texts after each prompt, the best first; fewer only where no more were found.

    Of the strategy only the processors are used. Drawn beams of prompt i draw from seed + i, whatever else is in the batch.
    """
    ending = Ending(end, stops)
    searches = [Search(prompt, settings, ending, seed + number) for number, prompt in enumerate(prompts)]
    going: list[Search] = []  # those that `rows` and `logits` are about, in their order
    unread = searches  # then those that slid
    rows: EngineRows | None = None
    logits: Tensor | None = None  # (B, V)
    while going or unread:
        if unread:
            begun, new = look(engine, unread)
            if rows is None or logits is None:
                rows, logits = new, begun
            else:
                rows.join(new)
                logits = torch.cat((logits, begun))
            going, unread = going + unread, []
        assert rows is not None and logits is not None
        odds, first = weigh(logits, strategy, [beam.text for one in going for beam in one.beams]), 0
        for one in going:
            first = one.advance(odds, first)
        left = [one for one in going if one.beams]
        going = [one for one in left if one.viewed <= engine.context]
        unread = [one for one in left if one.viewed > engine.context]
        if not going:
            rows, logits = None, None
            continue
        beams = [beam for one in going for beam in one.beams]
        places = [beam.row for beam in beams]
        if places != list(range(len(rows.lengths))):
            rows.reorder(places)
        logits = rows.step([beam.text.ids[-1:] for beam in beams])
    return [tell_best(one.groups, settings.n_best) for one in searches]


class Search:
    """One prompt's beams. `start` is where in their texts the engine's view begins."""

    def __init__(self, prompt: Sequence[int], settings: Beams, ending: Ending, seed: int) -> None:
        assert prompt, "an empty prompt begins with the end-of-text token"
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed)
        self.start = 0
        root = Beam(RowHistory(list(prompt), len(prompt), settings.tokens))
        kind = Drawn if settings.sample else Best
        self.groups: list[Group] = [kind(settings, ending, root) for _ in range(settings.groups)]

    @property
    def beams(self) -> list[Beam]:
        return [beam for group in self.groups for beam in group.beams]

    @property
    def viewed(self) -> int:
        """Tokens that the engine must see of each beam for its next logits."""
        return len(self.beams[0].text.ids) - self.start

    def advance(self, odds: Odds, first: int) -> int:
        """One more token for every group; `first` is the first of the prompt's rows, and the next prompt's is given.

        Groups choose in turn (Vijayakumar et al. 2016): a token loses `diversity` for each time that an earlier group took it
        at this step. The penalty leads the search and is no part of any score, so that texts of all groups compare.
        """
        used: Counter[int] = Counter()
        for group in self.groups:
            if not group.beams:
                continue
            beams, rows = group.beams, slice(first, first + len(group.beams))
            keys, peaks, norms = odds.logits[rows], odds.statistics.peaks[rows], odds.statistics.norms[rows]
            base = np.array([beam.score for beam in beams]) - norms
            arrivals: Doubles | None = None
            if self.settings.sample:
                arrivals = let_arrive(beams, keys - norms[:, None], self.generator)
                keys, base = -arrivals, np.zeros(len(beams))
                peaks = find_peaks(keys)
            elif used:
                keys = keys.copy()
                keys[:, list(used)] -= self.settings.diversity * np.array(list(used.values()), keys.dtype)
                peaks = find_peaks(keys)
            children = grow(beams, odds, first, arrivals, in_order(keys, peaks, base, 2 * group.width))
            used.update(group.take(children))
            first = rows.stop
        return first


def look(engine: Engine, searches: Sequence[Search]) -> tuple[Tensor, EngineRows]:
    """Read the beams' views, those too long for the context by the rule of `stream`; equal ones once."""
    views = [beam.text.ids[one.start :] for one in searches for beam in one.beams]
    logits, rows = read(engine, views)
    first = 0
    for one in searches:
        one.start = len(one.beams[0].text.ids) - len(views[first])
        first += len(one.beams)
    return logits, rows


@dataclass(frozen=True)
class Odds:
    """Of the rows' next tokens: the logits after the processors, and the model's own.

    A log-probability is a logit less its row's norm. Not by torch, which shares work on 40,960 numbers (10 beams of 4,096 tokens)
    among threads, which then spin on cores that the engine's own threads need; beside a busy process a logsumexp took 52 ms
    with two threads, and 0.07 ms with one.
    """

    logits: Floats  # (B, V)
    statistics: LogitStatistics
    own_logits: Floats  # (B, V)
    own_statistics: LogitStatistics

    def logprobs(self, rows: Places, ids: Places) -> tuple[list[float], list[float]]:
        """Of these tokens, after the processors and the model's own; never above 0, not even by rounding: the bound
        of a search rests on it."""
        compared: list[float] = np.minimum(0.0, self.statistics.logprobs(self.logits, rows, ids)).tolist()
        if self.own_logits is self.logits:
            return compared, compared
        return compared, np.minimum(0.0, self.own_statistics.logprobs(self.own_logits, rows, ids)).tolist()


def weigh(logits: Tensor, strategy: Strategy, texts: Sequence[RowHistory]) -> Odds:
    own = logits.cpu().numpy()
    own_statistics = logit_statistics(own)
    if not strategy.processors:
        return Odds(own, own_statistics, own, own_statistics)
    for process in strategy.processors:
        logits = process(texts, logits)
    processed = logits.cpu().numpy()
    return Odds(processed, logit_statistics(processed), own, own_statistics)


def in_order(keys: Floats, peaks: Floats, base: Doubles, wanted: int) -> Iterator[tuple[Places, Places]]:
    """EngineRows and tokens by falling base[row] + keys[row, token]; of equals the lower row, then the larger key, then the lower
    token; none of minus infinity.

    At least `wanted` come at once, and more only where more are asked for. `peaks` are the largest logits of sets of tokens:
    the k-th best of these bounds the k best of all from below, so that few numbers are left to be sorted.
    """
    best, given = (peaks + base[:, None]).ravel(), 0
    while True:
        whole = wanted >= best.size
        least = -np.inf if whole else np.partition(best, best.size - wanted)[best.size - wanted]
        # Compared in the keys' own precision, a little too low, and then exactly.
        low = np.maximum(least - base - 1e-6 * (1 + np.abs(base) + abs(least)), np.finfo(keys.dtype).min)
        found = np.flatnonzero(keys >= low.astype(keys.dtype)[:, None])
        rows, tokens = np.divmod(found, keys.shape[1])
        own = keys[rows, tokens]
        totals = base[rows] + own
        order = np.lexsort((-own, rows, -totals))[given : np.count_nonzero(totals >= least)]
        yield rows[order], tokens[order]
        if whole:
            return
        given += len(order)
        wanted = 2 * max(wanted, given)


def let_arrive(beams: Sequence[Beam], logprobs: Doubles, generator: torch.Generator) -> Doubles:
    """When each continuation (N, V) of drawn beams arrives: the first `width` of all texts to arrive are the sample.

    Stochastic beam search (Kool et al. 2019), told as a race. Let every whole text arrive at an exponential time whose rate is
    the text's probability: then the first texts to arrive are a sample without replacement. The first text of a beam arrives
    when the beam does, so its earliest child has the beam's own time; an exponential wait has no memory, so the other children
    come later than that by as much as in a race of the children alone. (The paper's Gumbel numbers are minus the logarithms
    of these times.) A text that would arrive after 1e308 does not arrive.
    """
    uniform = torch.rand(logprobs.shape, dtype=torch.float64, generator=generator).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        waits = -np.log1p(-uniform) * np.exp(-logprobs)  # in units of 1 / the beam's own probability
        waits[logprobs == -np.inf] = np.inf
        waits -= waits.min(axis=1, keepdims=True)
        unit = np.exp(np.minimum(700.0, [-beam.score for beam in beams]))
        arrivals = np.array([beam.arrival for beam in beams])[:, None] + waits * unit[:, None]
    return np.asarray(arrivals)


def grow(
    beams: Sequence[Beam], odds: Odds, first: int, arrivals: Doubles | None, best: Iterator[tuple[Places, Places]]
) -> Iterator[Beam]:
    """The children of the beams, whose rows are those from `first` on, each made when it is asked for."""
    for places, ids in best:
        compared, own = odds.logprobs(first + places, ids)
        times: list[float] = [0.0] * len(ids) if arrivals is None else arrivals[places, ids].tolist()
        for place, id_, after, before, time in zip(places.tolist(), ids.tolist(), compared, own, times, strict=True):
            yield beams[place].grow(first + place, id_, after, before, time)
