"""Beam search: the texts of highest probability after each prompt.

Owns: the loop over all prompts and beams, with one `rows.step` for all of them, and the order of their continuations.
Does not own: which beams continue and when a search ends (`beam_hypotheses`), processors, or the computation of logits
(`engines`).

Each prompt is read once and its row is repeated; a finished search leaves the batch. An exception or a cancellation ends
only its own search. Texts longer than the context follow the rule of `engines`; the beams of a prompt have the same
length, so they are shortened together. Beams are compared by the log-probabilities after the processors, normalised again.
Equal sums are ordered by beam, then by logit (a sum may round the difference away), then by token id. So the result
depends on the logits only, and one beam is greedy decoding.

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
from lilliput.decoding.engines import Engine, EngineRows, append_rows, prefill
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

    Only the processors of a strategy are used. Sampled beams depend on the seed of their request, not on the batch.
    """
    active: list[Search] = []  # the searches of `rows` and `logits`, in their order
    unread = [Search(request, end) for request in requests]  # later: those whose view has reached the context
    searches = list(unread)
    rows: EngineRows | None = None
    logits: Tensor | None = None  # (B, V)
    while active or unread:
        if unread and (begun := begin(engine, unread)):
            new, new_logits, new_rows = begun
            logits, rows = append_rows(logits, rows, new_logits, new_rows)
            active = active + new
        unread = []
        if rows is None or logits is None:
            break
        advance(active, logits)
        unfinished = [search for search in active if search.beams]
        active = [search for search in unfinished if search.viewed <= engine.context]
        unread = [search for search in unfinished if search.viewed > engine.context]
        if not active:
            rows, logits = None, None
            continue
        beams = [beam for search in active for beam in search.beams]
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
        """The number of tokens of each beam that the engine reads for the next logits."""
        return len(self.beams[0].text.ids) - self.start

    def interrupt(self, finish: Finish, error: Exception | None = None) -> None:
        """End the search without a result."""
        self.request.finish, self.request.error = finish, error
        for group in self.groups:
            group.beams = []

    def conclude(self) -> None:
        """Set the result of the request, unless the search was interrupted."""
        if self.request.finish is None:
            self.request.hypotheses = best_hypotheses(self.groups, self.settings.n_best)
            self.request.finish = self.request.hypotheses[0].finish

    def extend(self, scores: TokenScores, row: int) -> None:
        """Extend every group by one token. `row` is the engine's first row of this search; `scores` has its rows only.

        Diverse beam search (Vijayakumar et al. 2016): groups choose in turn, and a token loses `diversity` for each time that
        an earlier group took it at this step. Scores exclude this penalty, so texts of all groups are comparable.
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
    """Read the beams' views. Return the searches that continue, or None if there are none; interrupt the others."""
    for search in searches:
        if search.request.cancelled:
            search.interrupt("cancelled")
    active = [search for search in searches if search.beams]
    if not active:
        return None
    views = [search.views for search in active]
    try:
        logits, rows = prefill(engine, [view for own in views for view in own])
    except Exception:
        for search in active:
            try:
                prefill(engine, search.views)
            except Exception as error:
                search.interrupt("error", error)
        if all(search.beams for search in active):
            raise  # no single search causes the exception
        return begin(engine, active)
    for search, own in zip(active, views, strict=True):
        search.start = len(search.beams[0].text.ids) - len(own[0])
    return active, logits, rows


def advance(searches: Sequence[Search], logits: Tensor) -> None:
    """Extend the beams of all searches by one token, or end them. Searches with equal strategies are scored together."""
    counts = [len(search.beams) for search in searches]
    firsts = list(itertools.accumulate(counts, initial=0))

    def score(places: Sequence[int]) -> list[TokenScores]:
        """Return the scores of searches that share a strategy."""
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

    A log-probability is a logit minus its row's norm. Not computed by torch: for 40,960 numbers (10 beams, vocabulary
    4,096) torch starts threads, which then spin on cores that the engine's own threads need. Next to a busy process a
    logsumexp took 52 ms with two threads and 0.07 ms with one.
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
        """Return the log-probabilities of these tokens after the processors, and the model's own.

        Never above 0, not even by rounding: the bound that ends a search early requires it.
        """
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
    """Yield (rows, tokens) by decreasing base[row] + keys[row, token], without those of -inf.

    Equal sums are ordered by row, then by decreasing key, then by token. The first arrays have at least `wanted` entries;
    more are computed only on demand. `peaks` are the largest logits of sets of tokens: the k-th largest peak is a lower bound
    of the k best sums, so few numbers have to be sorted.
    """
    best, done = (peaks + base[:, None]).ravel(), 0
    while True:
        whole = wanted >= best.size
        least = -np.inf if whole else np.partition(best, best.size - wanted)[best.size - wanted]
        # First in the keys' own precision with a slightly lower limit, then exactly: faster than all in float64.
        low = np.maximum(least - base - 1e-6 * (1 + np.abs(base) + abs(least)), np.finfo(keys.dtype).min)
        found = np.flatnonzero(keys >= low.astype(keys.dtype)[:, None])
        rows, tokens = np.divmod(found, keys.shape[1])
        own = keys[rows, tokens]
        totals = base[rows] + own
        order = np.lexsort((-own, rows, -totals))[done : np.count_nonzero(totals >= least)]
        yield rows[order], tokens[order]
        if whole:
            return
        done += len(order)
        wanted = 2 * max(wanted, done)


def draw_arrival_times(beams: Sequence[Beam], logprobs: Doubles, generator: torch.Generator) -> Doubles:
    """Draw an arrival time for each continuation (N, V) of sampled beams; the first `width` texts to arrive are the sample.

    Stochastic beam search (Kool et al. 2019). If every text arrives at an exponential time whose rate is the text's
    probability, the first texts to arrive are a sample without replacement. The earliest child of a beam arrives at the
    beam's own time. Exponential times are memoryless, so the delays of the other children after that are those of a race
    among the children alone. (The paper's Gumbel numbers are minus the logarithms of these times.) Times above 1e308 are inf.
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
    """Yield the children of the beams, best first. `row` is the engine's row of the first beam."""
    for places, ids in best:
        compared, own = scores.logprobs(places, ids)
        times: list[float] = [0.0] * len(ids) if arrivals is None else arrivals[places, ids].tolist()
        for place, id_, after, before, time in zip(places.tolist(), ids.tolist(), compared, own, times, strict=True):
            yield beams[place].extend(row + place, id_, after, before, time)
