"""Beam search: the best texts of each prompt, by the probability of the whole text instead of token by token.

Owns: the loop over all prompts and beams, one `rows.step` for all of them, and the order of their continuations. Does
not own: which beams continue and when a search ends (`beam_hypotheses`), processors, or the computation of logits
(`engines`).

Each prompt is read once and its row repeated; a prompt whose search is over leaves the batch. A search that is cancelled
or raises an exception ends alone. Texts longer than the context follow the rule of `engines.prefill`: beams of a prompt
have one length, so they slide together. Beams are compared by the log-probabilities after the processors, normalised
again; without processors these are the model's own. Equals are ordered by their beam, then by their logit, which a sum
may have rounded away, then by their token's id: so the result is a function of the logits alone, and one beam is greedy.

B rows (beams of all prompts), N rows of one group, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.decoding.beam_hypotheses import Beam, BeamGroup, BestBeams, Ending, SampledBeams, best_hypotheses
from lilliput.decoding.engines import Engine, EngineRows, prefill
from lilliput.decoding.processors import Strategy
from lilliput.decoding.requests import Finish, Request
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.token_choice import isolate_errors
from lilliput.kernels.logit_statistics import LogitStatistics, find_peaks, logit_statistics

Floats = NDArray[np.floating[Any]]  # of the engine's own precision
Doubles = NDArray[np.float64]
Places = NDArray[np.int64]


def search_requests(engine: Engine, requests: Sequence[Request], end: int | None = None) -> None:
    """Run the beam searches of requests together; set `hypotheses`, `finish` and `error` of each.

    Of a strategy only the processors are used. Sampled beams draw from the seed of their request, whatever else is in the batch.
    """
    going: list[Search] = []  # the searches of `rows` and `logits`, in their order
    unread = [Search(request, end) for request in requests]  # later those whose view has reached the context
    searches = list(unread)
    rows: EngineRows | None = None
    logits: Tensor | None = None  # (B, V)
    while going or unread:
        if unread and (begun := begin(engine, unread)):
            new, new_logits, new_rows = begun
            if rows is None or logits is None:
                rows, logits = new_rows, new_logits
            else:
                rows.join(new_rows)
                logits = torch.cat((logits, new_logits))
            going = going + new
        unread = []
        if rows is None or logits is None:
            break
        advance(going, logits)
        left = [search for search in going if search.beams]
        going = [search for search in left if search.viewed <= engine.context]
        unread = [search for search in left if search.viewed > engine.context]
        if not going:
            rows, logits = None, None
            continue
        beams = [beam for search in going for beam in search.beams]
        places = [beam.row for beam in beams]
        if places != list(range(len(rows.lengths))):
            rows.reorder(places)
        logits = rows.step([beam.text.ids[-1:] for beam in beams])
    for search in searches:
        search.conclude()


class Search:
    """The beams of one request. `start` is where in their texts the engine's view begins."""

    def __init__(self, request: Request, end: int | None) -> None:
        assert request.prompt, "an empty prompt begins with the end-of-text token"
        assert request.beams is not None
        self.request, self.settings = request, request.beams
        self.generator = torch.Generator().manual_seed(request.seed)
        self.start = 0
        root = Beam(RowHistory(list(request.prompt), len(request.prompt), self.settings.tokens))
        kind = SampledBeams if self.settings.sample else BestBeams
        ending = Ending(end, self.settings.stops)
        self.groups: list[BeamGroup] = [kind(self.settings, ending, root) for _ in range(self.settings.groups)]
        request.finish, request.error, request.hypotheses = None, None, []

    @property
    def beams(self) -> list[Beam]:
        return [beam for group in self.groups for beam in group.beams]

    @property
    def views(self) -> list[list[int]]:
        return [beam.text.ids[self.start :] for beam in self.beams]

    @property
    def viewed(self) -> int:
        """Tokens that the engine must see of each beam for its next logits."""
        return len(self.beams[0].text.ids) - self.start

    def interrupt(self, finish: Finish, error: Exception | None = None) -> None:
        """End the search without a result."""
        self.request.finish, self.request.error = finish, error
        for group in self.groups:
            group.beams = []

    def conclude(self) -> None:
        """Give the request its result, unless the search was interrupted."""
        if self.request.finish is None:
            self.request.hypotheses = best_hypotheses(self.groups, self.settings.n_best)
            self.request.finish = self.request.hypotheses[0].finish

    def extend(self, scores: TokenScores, row: int) -> None:
        """Extend every group by a token; `row` is the engine's first row of this search, `scores` are of its rows only.

        Groups choose in turn (Vijayakumar et al. 2016): a token loses `diversity` for each time that an earlier group took it
        at this step. The penalty guides the search and is no part of any score, so that texts of all groups compare.
        """
        used: Counter[int] = Counter()
        first = 0
        for group in self.groups:
            if not group.beams:
                continue
            beams, own = group.beams, scores.of_rows(first, first + len(group.beams))
            keys, peaks, norms = own.logits, own.statistics.peaks, own.statistics.norms
            base = np.array([beam.score for beam in beams]) - norms
            arrivals: Doubles | None = None
            if self.settings.sample:
                arrivals = draw_arrival_times(beams, keys - norms[:, None], self.generator)
                keys, base = -arrivals, np.zeros(len(beams))
                peaks = find_peaks(keys)
            elif used:
                keys = keys.copy()
                keys[:, list(used)] -= self.settings.diversity * np.array(list(used.values()), keys.dtype)
                peaks = find_peaks(keys)
            best = in_order(keys, peaks, base, 2 * group.width)
            first, row_of_group = first + len(beams), row + first
            used.update(group.take(expand_beams(beams, own, row_of_group, arrivals, best)))


def begin(engine: Engine, searches: Sequence[Search]) -> tuple[list[Search], Tensor, EngineRows] | None:
    """Read the beams' views. Return the searches that can go on, or None; the others are interrupted."""
    for search in searches:
        if search.request.cancelled:
            search.interrupt("cancelled")
    going = [search for search in searches if search.beams]
    if not going:
        return None
    views = [search.views for search in going]
    try:
        logits, rows = prefill(engine, [view for own in views for view in own])
    except Exception:
        for search in going:
            try:
                prefill(engine, search.views)
            except Exception as error:
                search.interrupt("error", error)
        if all(search.beams for search in going):
            raise  # no search is at fault by itself
        return begin(engine, going)
    for search, own in zip(going, views, strict=True):
        search.start = len(search.beams[0].text.ids) - len(own[0])
    return going, logits, rows


def advance(searches: Sequence[Search], logits: Tensor) -> None:
    """Extend the beams of all searches by a token, or end them. Searches of equal strategies are scored together."""
    counts = [len(search.beams) for search in searches]
    firsts = list(itertools.accumulate(counts, initial=0))

    def score(places: Sequence[int]) -> list[TokenScores]:
        """The scores of some searches of one strategy."""
        texts = [beam.text for place in places for beam in searches[place].beams]
        own = logits
        if len(places) < len(searches):
            own = logits[[row for place in places for row in range(firsts[place], firsts[place + 1])]]
        scores = score_tokens(own, searches[places[0]].request.strategy, texts)
        ends = itertools.accumulate((counts[place] for place in places), initial=0)
        return [scores.of_rows(first, last) for first, last in itertools.pairwise(ends)]

    groups: list[tuple[Strategy, list[int]]] = []
    for place, search in enumerate(searches):
        strategy = search.request.strategy
        group = next((own for known, own in groups if known is strategy or known == strategy), None)
        if group is None:
            groups.append((strategy, [place]))
        else:
            group.append(place)
    for _, places in groups:
        for place, scores in zip(places, isolate_errors(places, score), strict=True):
            extend(searches[place], scores, firsts[place])


def extend(search: Search, scores: TokenScores | Exception, row: int) -> None:
    if search.request.cancelled:
        search.interrupt("cancelled")
    elif isinstance(scores, Exception):
        search.interrupt("error", scores)
    else:
        try:
            search.extend(scores, row)
        except Exception as error:
            search.interrupt("error", error)


class TokenScores(NamedTuple):
    """Logits of the rows' next tokens after the processors, and the model's own.

    A log-probability is a logit minus its row's norm. Not by torch, which shares work on 40,960 numbers (10 beams of
    4,096 tokens) among threads, which then spin on cores that the engine's own threads need; beside a busy process a
    logsumexp took 52 ms with two threads, and 0.07 ms with one.
    """

    logits: Floats  # (B, V)
    statistics: LogitStatistics
    own_logits: Floats  # (B, V)
    own_statistics: LogitStatistics

    def of_rows(self, first: int, last: int) -> TokenScores:
        if last - first == len(self.logits):
            return self
        processed = self.logits[first:last], take_rows(self.statistics, first, last)
        if self.own_logits is self.logits:
            return TokenScores(*processed, *processed)
        return TokenScores(*processed, self.own_logits[first:last], take_rows(self.own_statistics, first, last))

    def logprobs(self, rows: Places, ids: Places) -> tuple[list[float], list[float]]:
        """Log-probabilities of these tokens after the processors, and the model's own. Never above 0, not even by rounding:
        the bound of a search depends on it."""
        compared: list[float] = np.minimum(0.0, self.statistics.logprobs(self.logits, rows, ids)).tolist()
        if self.own_logits is self.logits:
            return compared, compared
        return compared, np.minimum(0.0, self.own_statistics.logprobs(self.own_logits, rows, ids)).tolist()


def take_rows(statistics: LogitStatistics, first: int, last: int) -> LogitStatistics:
    peaks, largest, logs = statistics
    return LogitStatistics(peaks[first:last], largest[first:last], logs[first:last])


def score_tokens(logits: Tensor, strategy: Strategy, texts: Sequence[RowHistory]) -> TokenScores:
    own = logits.cpu().numpy()
    own_statistics = logit_statistics(own)
    if not strategy.processors:
        return TokenScores(own, own_statistics, own, own_statistics)
    for process in strategy.processors:
        logits = process(texts, logits)
    processed = logits.cpu().numpy()
    if processed.shape != own.shape:
        raise ValueError(f"a logit processor returned shape {processed.shape}, expected {own.shape}")
    return TokenScores(processed, logit_statistics(processed), own, own_statistics)


def in_order(keys: Floats, peaks: Floats, base: Doubles, wanted: int) -> Iterator[tuple[Places, Places]]:
    """Yield rows and tokens by falling base[row] + keys[row, token]; of equals the lower row, then the larger key, then the lower
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


def draw_arrival_times(beams: Sequence[Beam], logprobs: Doubles, generator: torch.Generator) -> Doubles:
    """Draw when each continuation (N, V) of sampled beams arrives: the first `width` of all texts to arrive are the sample.

    Stochastic beam search (Kool et al. 2019), described as a race. Let every whole text arrive at an exponential time whose
    rate is the text's probability: then the first texts to arrive are a sample without replacement. The first text of a
    beam arrives when the beam does, so its earliest child has the beam's own time; an exponential wait has no memory, so
    the other children come later than that by as much as in a race of the children alone. (The paper's Gumbel numbers are
    minus the logarithms of these times.) A text that would arrive after 1e308 does not arrive.
    """
    uniform = torch.rand(logprobs.shape, dtype=torch.float64, generator=generator).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        waits = -np.log1p(-uniform) * np.exp(-logprobs)  # in units of 1 / the beam's own probability
        waits[logprobs == -np.inf] = np.inf
        waits -= waits.min(axis=1, keepdims=True)
        unit = np.exp(np.minimum(700.0, [-beam.score for beam in beams]))
        arrivals = np.array([beam.arrival for beam in beams])[:, None] + waits * unit[:, None]
    return np.asarray(arrivals)


def expand_beams(
    beams: Sequence[Beam],
    scores: TokenScores,
    row: int,
    arrivals: Doubles | None,
    best: Iterator[tuple[Places, Places]],
) -> Iterator[Beam]:
    """Yield the children of the beams, best first; the engine's rows of the beams are those from `row` on."""
    for places, ids in best:
        compared, own = scores.logprobs(places, ids)
        times: list[float] = [0.0] * len(ids) if arrivals is None else arrivals[places, ids].tolist()
        for place, id_, after, before, time in zip(places.tolist(), ids.tolist(), compared, own, times, strict=True):
            yield beams[place].extend(row + place, id_, after, before, time)
