"""Requests for generation, the tokens they return, and a queue that a program can fill while a batch runs.

Owns: `Request`, one prompt of token ids with its settings; `Token`, one event of a row; `RequestQueue`. Does not own: the
loop (`stream`), beam search (`beam_search`) or text (`writer`).
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

from lilliput.decoding.processors import GREEDY, Strategy

if TYPE_CHECKING:
    from lilliput.decoding.beam_hypotheses import BeamSettings, Hypothesis

# Why a row ended: the end-of-text token, a stop string, the token limit, `Request.cancel`, or an exception.
Finish = Literal["end", "stop", "length", "cancelled", "error"]
NO_TOKEN = -1  # the id of an event that ends a row without a token


class StopRule(Protocol):
    """Decides for one row when its text is complete. Receives every token in order, except end-of-text."""

    def push(self, id_: int) -> bool: ...


@dataclass(eq=False)
class Request:
    """Continue a prompt (at least one id) by at most `tokens` tokens.

    With `beams`, the request is a beam search, and `BeamSettings.stops` replaces `stop`. `alternatives` is the number of
    likeliest tokens to return with each token, together with the entropy.

    `finish`, `error` and (for a beam search) `hypotheses`, best first, are set when the request ends.
    """

    prompt: Sequence[int]
    tokens: int
    strategy: Strategy = GREEDY
    seed: int = 0
    stop: StopRule | None = None
    alternatives: int | None = None
    beams: BeamSettings | None = None
    cancelled: bool = field(default=False, init=False)
    finish: Finish | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    hypotheses: list[Hypothesis] = field(default_factory=list, init=False)

    def cancel(self) -> None:
        """End the request before its next token, with finish "cancelled". Any thread may call this."""
        self.cancelled = True


AnyRequest = TypeVar("AnyRequest", bound=Request)


class Token(NamedTuple):
    """One token of one row; rows are numbered in the order of their requests.

    `finish` is set on the last event of a row. A row that is cancelled or fails ends with an event without a token: `id` is
    NO_TOKEN. `logprob`, `entropy` (nats) and `alternatives` (ids and log-probabilities, likeliest first) are computed before
    processors; the last two are present only on request. A tuple, because creating a frozen dataclass takes longer.
    """

    row: int
    id: int
    logprob: float
    finish: Finish | None
    entropy: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    error: Exception | None = None


class RequestQueue(Generic[AnyRequest]):
    """Requests that other threads add while one loop runs.

    An iterable for `stream`. It yields None if no request is waiting and others are in progress, blocks while the loop is
    idle, and ends after `close` when all requests are taken.
    """

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[AnyRequest | None] = queue.SimpleQueue()
        self.running: list[AnyRequest] = []

    def add(self, request: AnyRequest) -> None:
        self.waiting.put(request)

    def close(self) -> None:
        """Accept no more requests."""
        self.waiting.put(None)

    def __iter__(self) -> Iterator[AnyRequest | None]:
        while True:
            self.running = [request for request in self.running if request.finish is None]
            try:
                request = self.waiting.get(block=not self.running)
            except queue.Empty:
                yield None
                continue
            if request is None:
                return
            self.running.append(request)
            yield request
