"""The only sampling loop, a generator of tokens.

Owns: the rows in progress, the admission of waiting requests, and the end of a row: by its last token, by cancellation or
by an exception, which ends that row only. Does not own: text (`writer`), the choice of a token
(`token_choice`), the steps of a beam search (`beam_search`), or the computation of logits (`engines`).

Rows with equal strategies are processed together. A beam search runs alone until it ends; sampled rows wait for it.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from lilliput.decoding.beam_search import search_requests
from lilliput.decoding.engines import Engine, EngineRows, append_rows, prefill
from lilliput.decoding.requests import NO_TOKEN, Finish, Request, Token
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.token_choice import Draws, choose, isolate_errors
from lilliput.errors import UserError
from lilliput.kernels.logit_statistics import LogitStatistics, Values, logit_statistics


class ActiveRow:
    """A request in progress. The engine reads its text from index `start`."""

    def __init__(self, row: int, request: Request) -> None:
        assert request.prompt, "an empty prompt begins with the end-of-text token"
        assert request.tokens >= 1, "a request is for one token or more"
        self.row, self.request, self.start = row, request, 0
        self.strategy = request.strategy
        self.text = RowHistory(list(request.prompt), len(request.prompt), request.tokens)
        self.draws = Draws(request.seed)
        request.finish, request.error = None, None

    @property
    def view(self) -> list[int]:
        return self.text.ids[self.start :]

    @property
    def viewed(self) -> int:
        return len(self.text.ids) - self.start

    def interrupt(self, finish: Finish, error: Exception | None = None) -> Token:
        """End the row without a token."""
        self.request.finish, self.request.error = finish, error
        return Token(self.row, NO_TOKEN, 0.0, finish, error=error)


def stream(
    engine: Engine, requests: Iterable[Request | None], end: int | None = None, batch: int | None = None
) -> Iterator[Token]:
    """Continue all requests, at most `batch` rows at a time: a row that ends leaves its place to the next request.

    Requests are taken from the iterator only when a row is free. None means that no request is waiting now: the loop
    continues with its rows and tries again after their next token. When no row is in progress, the iterator itself must
    block (`RequestQueue` does).

    A beam search counts as `width` rows. When it has ended, it yields the tokens of its best hypothesis.
    """
    assert batch is None or batch >= 1, "a batch has one row or more"
    waiting = WaitingRequests(requests, batch)
    active: list[ActiveRow] = []  # the rows of `rows` and `logits`, in their order
    unread: list[ActiveRow] = []  # new rows, and those whose view has reached the context
    rows: EngineRows | None = None
    logits: Tensor | None = None  # (B, V)
    while True:
        if not waiting.ended:
            unread += waiting.take_rows(None if batch is None else batch - len(active) - len(unread))
        if unread:
            share_strategies(active, unread)
            begun, interrupted = begin(engine, unread)
            yield from interrupted
            if begun is not None:
                new, new_logits, new_rows = begun
                logits, rows = append_rows(logits, rows, new_logits, new_rows)
                active = active + new
            unread = []
        if not waiting.ended and (searches := waiting.take_searches()):
            yield from search_tokens(engine, searches, end)
        if rows is None or logits is None:
            if waiting.ended:
                return
            continue
        tokens = take_tokens(active, logits, end)
        yield from sorted(tokens, key=attrgetter("row"))
        going = [place for place, token in enumerate(tokens) if token.finish is None]
        on = [place for place in going if active[place].viewed <= engine.context]
        if len(on) < len(active):
            unread = [active[place] for place in going if active[place].viewed > engine.context]
            active = [active[place] for place in on]
            if not on:
                rows, logits = None, None
                continue
            rows.reorder(on)
        logits = rows.step([row.text.ids[-1:] for row in active])


class WaitingRequests:
    """Requests that have not started, in order."""

    def __init__(self, requests: Iterable[Request | None], batch: int | None) -> None:
        self.requests, self.batch = iter(requests), batch
        self.next: Request | None = None  # taken from the iterator, not yet by the loop
        self.taken = 0
        self.exhausted = False

    @property
    def ended(self) -> bool:
        return self.exhausted and self.next is None

    def peek(self) -> Request | None:
        """Return the next request; None if none is waiting now."""
        if self.next is None and not self.exhausted:
            try:
                self.next = next(self.requests)
            except StopIteration:
                self.exhausted = True
        return self.next

    def take(self) -> ActiveRow:
        assert self.next is not None
        request, self.next = self.next, None
        self.taken += 1
        return ActiveRow(self.taken - 1, request)

    def take_rows(self, most: int | None) -> list[ActiveRow]:
        """Take the next waiting requests without beams, at most `most` (None: no limit)."""
        taken: list[ActiveRow] = []
        while (most is None or len(taken) < most) and (request := self.peek()) and request.beams is None:
            taken.append(self.take())
        return taken

    def take_searches(self) -> list[ActiveRow]:
        """Take the next waiting requests with beams: the first one, and more while their beams fit in the batch."""
        taken: list[ActiveRow] = []
        beams = 0
        request = self.next
        while request is not None and request.beams is not None:
            beams += request.beams.width
            if taken and self.batch is not None and beams > self.batch:
                break
            taken.append(self.take())
            request = self.peek()
        return taken


def share_strategies(active: Sequence[ActiveRow], new: Sequence[ActiveRow]) -> None:
    """Replace equal strategies by one object: `choose` compares them by identity at every token."""
    known = list({id(row.strategy): row.strategy for row in active}.values())
    for row in new:
        equal = next((strategy for strategy in known if strategy is row.strategy or strategy == row.strategy), None)
        if equal is None:
            known.append(row.strategy)
        else:
            row.strategy = equal


def begin(
    engine: Engine, new: Sequence[ActiveRow]
) -> tuple[tuple[list[ActiveRow], Tensor, EngineRows] | None, list[Token]]:
    """Read the views of new rows. Return the rows that continue, with their logits, and the last events of the others."""
    interrupted = [row.interrupt("cancelled") for row in new if row.request.cancelled]
    new = [row for row in new if row.request.finish is None]
    if not new:
        return None, interrupted
    views = [row.view for row in new]
    try:
        logits, rows = prefill(engine, views)
    except Exception:
        unreadable = {place: error for place, view in enumerate(views) if (error := find_error(engine, view))}
        if not unreadable:
            raise
        interrupted += [new[place].interrupt("error", error) for place, error in unreadable.items()]
        begun, others = begin(engine, [row for row in new if row.request.finish is None])
        return begun, interrupted + others
    for row, view in zip(new, views, strict=True):
        row.start = len(row.text.ids) - len(view)
    return (list(new), logits, rows), interrupted


def find_error(engine: Engine, view: list[int]) -> Exception | None:
    """Return the exception that reading this view alone raises, or None."""
    try:
        prefill(engine, [view])
    except Exception as error:
        return error
    return None


def take_tokens(active: Sequence[ActiveRow], logits: Tensor, end: int | None) -> list[Token]:
    """Return the next event of each row, and append its token to the row's text."""
    values = logits.cpu().numpy()
    try:
        statistics = logit_statistics(values)
    except Exception:
        return take_isolated_tokens(active, values, end)
    if any(row.request.cancelled for row in active):
        return take_isolated_tokens(active, values, end)
    return choose_tokens(active, values, statistics, end)


def take_isolated_tokens(active: Sequence[ActiveRow], values: Values, end: int | None) -> list[Token]:
    """As `take_tokens`, but end the rows that are cancelled or whose logits are not finite; the others continue."""
    outcomes = isolate_errors(range(len(active)), partial(check_logits, values))
    events: dict[int, Token] = {}  # of the rows that end without a token
    for place, (row, outcome) in enumerate(zip(active, outcomes, strict=True)):
        if row.request.cancelled:
            events[place] = row.interrupt("cancelled")
        elif isinstance(outcome, Exception):
            events[place] = row.interrupt("error", outcome)
    going = [place for place in range(len(active)) if place not in events]
    if going:
        left = values[going]
        tokens = choose_tokens([active[place] for place in going], left, logit_statistics(left), end)
        events |= zip(going, tokens, strict=True)
    return [events[place] for place in range(len(active))]


def check_logits(values: Values, places: Sequence[int]) -> Sequence[int]:
    """Raise an exception if the logits of these rows are not finite."""
    logit_statistics(values[list(places)])
    return places


def choose_tokens(
    active: Sequence[ActiveRow], values: Values, statistics: LogitStatistics, end: int | None
) -> list[Token]:
    texts, draws = [row.text for row in active], [row.draws for row in active]
    chosen = choose([row.strategy for row in active], texts, torch.from_numpy(values), draws, statistics.peaks)
    ids = [0 if isinstance(id_, Exception) else id_ for id_ in chosen]
    logprobs = statistics.logprobs(values, np.arange(len(ids)), ids).tolist()
    tokens = []
    for place, (row, id_) in enumerate(zip(active, chosen, strict=True)):
        if isinstance(id_, Exception):
            tokens.append(row.interrupt("error", id_))
            continue
        logprob = logprobs[place]
        if logprob != logprob:  # a single NaN, which the statistics of float32 logits do not detect
            what, fix = "the model's logits are not finite", "use an earlier checkpoint of the run"
            tokens.append(row.interrupt("error", UserError(what, fix=fix, code="model.not-finite")))
            continue
        row.text.ids.append(id_)
        try:
            finish = find_finish(row, id_, end)
        except Exception as error:  # raised by a stop rule
            tokens.append(row.interrupt("error", error))
            continue
        if finish is not None:
            row.request.finish = finish
        wanted = row.request.alternatives
        entropy, others = (None, ()) if wanted is None else find_alternatives(values[place], wanted)
        tokens.append(Token(row.row, id_, logprob, finish, entropy, others))
    return tokens


def find_finish(row: ActiveRow, id_: int, end: int | None) -> Finish | None:
    """Return why the row ends, or None. Precedence: end-of-text, stop rule, token limit."""
    if id_ == end:
        return "end"
    if row.request.stop is not None and row.request.stop.push(id_):
        return "stop"
    return "length" if row.text.left == 0 else None


def find_alternatives(logits: Values, wanted: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the entropy (nats) of one row's logits (V), and its likeliest tokens with their log-probabilities."""
    logprobs = torch.from_numpy(logits).double().log_softmax(dim=0)
    entropy = torch.special.entr(logprobs.exp()).sum().item()
    best = logprobs.topk(min(wanted, len(logprobs)))
    return entropy, tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def search_tokens(engine: Engine, searches: Sequence[ActiveRow], end: int | None) -> Iterator[Token]:
    """Run beam searches together. Yield the tokens of each best hypothesis, or an event without a token."""
    search_requests(engine, [row.request for row in searches], end)
    for row in searches:
        request = row.request
        if request.finish in ("cancelled", "error"):
            yield row.interrupt(request.finish, request.error)
            continue
        best = request.hypotheses[0]
        last = len(best.ids) - 1
        for place, (id_, logprob) in enumerate(zip(best.ids, best.logprobs, strict=True)):
            yield Token(row.row, id_, logprob, request.finish if place == last else None)
