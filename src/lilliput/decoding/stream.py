"""The only loop that writes. A generator: `generate` drains it, the command line prints it, a server sends it.

Owns: rows that end and leave, waiting ones that take their places, and the rule for texts longer than the
context. Does not own: what a token is in text (`data.tokenizers`), how it is chosen (`processors`), or how
logits are computed (`engines`).

The rule for long texts: a row whose view has reached the context goes on from the last half of it, read anew.
So the cost of the slide is paid once in context / 2 tokens, a row's text depends on that row alone, and no
position is ever beyond the context. A prompt longer than the context is read in the same way: its last
half-context is seen.

B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lilliput.decoding.engines import Engine, EngineRows
from lilliput.decoding.processors import GREEDY, Draws, Strategy, choose
from lilliput.decoding.row_history import RowHistory
from lilliput.kernels.logit_statistics import logit_statistics

Finish = Literal["end", "stop", "length"]


class StopRule(Protocol):
    """Of one row: is told each token but the end-of-text, in order, and says when the text is complete."""

    def push(self, id_: int) -> bool: ...


@dataclass(frozen=True)
class Request:
    """A text to be written: at most `tokens` tokens after the prompt (at least one id)."""

    prompt: Sequence[int]
    tokens: int
    strategy: Strategy = GREEDY
    seed: int = 0
    stop: StopRule | None = None
    alternatives: int | None = None  # how many of the likeliest tokens to tell with each token, and its entropy


class Written(NamedTuple):
    """One token of one row; rows are numbered in the order of their requests. A tuple: see `hypotheses.Beam`.

    `logprob` is the model's own, before processors; `finish` is told with the row's last token. `entropy` (nats) and
    `alternatives` (ids and their logprobs, the likeliest first) are the model's own, too, and only told on request.
    """

    row: int
    id: int
    logprob: float
    finish: Finish | None
    entropy: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


class Line:
    """A row that is being written. The engine sees its text from `start` on."""

    def __init__(self, row: int, request: Request) -> None:
        assert request.prompt, "an empty prompt begins with the end-of-text token"
        assert request.tokens >= 1, "at least a token"
        self.row, self.request, self.start = row, request, 0
        self.text = RowHistory(list(request.prompt), len(request.prompt), request.tokens)
        self.draws = Draws(request.seed)

    @property
    def view(self) -> list[int]:
        return self.text.ids[self.start :]

    @property
    def viewed(self) -> int:
        return len(self.text.ids) - self.start


def stream(
    engine: Engine, requests: Iterable[Request | None], end: int | None = None, batch: int | None = None
) -> Iterator[Written]:
    """Write all requests, at most `batch` at a time: a row that ends leaves its place to the next request.

    Requests are taken when there is room for them, not before. One of None says that none is waiting at the moment: the loop
    goes on with the rows it has, and asks again after their next token. Who sends None knows whether anybody is still
    writing, and waits itself if nobody is.
    """
    assert batch is None or batch >= 1, "at least a row at a time"
    waiting = Waiting(requests)
    lines: list[Line] = []  # those that `rows` and `logits` are about, in their order
    unread: list[Line] = []  # new ones, and those that slid
    rows: EngineRows | None = None
    logits: Tensor | None = None  # (B, V)
    while True:
        unread += waiting.take(None if batch is None else batch - len(lines) - len(unread))
        if unread:
            begun, new = begin(engine, unread)
            if rows is None or logits is None:
                rows, logits = new, begun
            else:
                rows.join(new)
                logits = torch.cat((logits, begun))
            lines, unread = lines + unread, []
        if rows is None or logits is None:
            if waiting.ended:
                return
            continue
        tokens = take_tokens(lines, logits, end)
        going = [place for place, token in enumerate(tokens) if token.finish is None]
        yield from sorted(tokens, key=attrgetter("row"))
        on = [place for place in going if lines[place].viewed <= engine.context]
        unread = [lines[place] for place in going if lines[place].viewed > engine.context]
        if len(on) < len(lines):
            lines = [lines[place] for place in on]
            if not on:
                rows, logits = None, None
                continue
            rows.reorder(on)
        logits = rows.step([line.text.ids[-1:] for line in lines])


class Waiting:
    """Requests that nobody has begun to write."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self.requests = iter(requests)
        self.begun = 0
        self.ended = False

    def take(self, room: int | None) -> list[Line]:
        """As many as there is room for (None: all) and are waiting now."""
        taken: list[Line] = []
        while not self.ended and (room is None or len(taken) < room):
            try:
                request = next(self.requests)
            except StopIteration:
                self.ended = True
                break
            if request is None:
                break
            taken.append(Line(self.begun, request))
            self.begun += 1
        return taken


def begin(engine: Engine, lines: Sequence[Line]) -> tuple[Tensor, EngineRows]:
    """Read the lines' views; of those that are too long the start moves."""
    views = [line.view for line in lines]
    logits, rows = read(engine, views)
    for line, view in zip(lines, views, strict=True):
        line.start = len(line.text.ids) - len(view)
    return logits, rows


def read(engine: Engine, views: Sequence[list[int]]) -> tuple[Tensor, EngineRows]:
    """Prefill. A view longer than the context is cut to its last half-context; one that several rows share is read once."""
    keep = max(1, engine.context // 2)
    for view in views:
        if len(view) > engine.context:
            del view[:-keep]
    places: dict[tuple[int, ...], int] = {}
    shared = [places.setdefault(tuple(view), len(places)) for view in views]
    logits, rows = engine.prefill(list(places))
    if len(places) < len(views):
        rows.reorder(shared)
        logits = logits[shared]
    return logits, rows


def take_tokens(lines: Sequence[Line], logits: Tensor, end: int | None) -> list[Written]:
    """The next token of each line, which is added to its text."""
    texts, strategies = [line.text for line in lines], [line.request.strategy for line in lines]
    values = logits.cpu().numpy()
    found = logit_statistics(values)
    chosen = choose(strategies, texts, logits, [line.draws for line in lines], found.peaks)
    logprobs = found.logprobs(values, np.arange(len(chosen)), chosen).tolist()
    tokens = []
    for place, (line, id_) in enumerate(zip(lines, chosen, strict=True)):
        line.text.ids.append(id_)
        finish = find_finish(line, id_, end)
        wanted = line.request.alternatives
        entropy, others = (None, ()) if wanted is None else look(logits[place], wanted)
        tokens.append(Written(line.row, id_, logprobs[place], finish, entropy, others))
    return tokens


def find_finish(line: Line, id_: int, end: int | None) -> Finish | None:
    """The end wins over a stop rule, and that over the length."""
    if id_ == end:
        return "end"
    if line.request.stop is not None and line.request.stop.push(id_):
        return "stop"
    return "length" if line.text.left == 0 else None


def look(logits: Tensor, alternatives: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The entropy in nats of one row's distribution (V), and its likeliest tokens with their logprobs."""
    logprobs = logits.cpu().double().log_softmax(dim=0)  # on the CPU: not every device has float64
    entropy = torch.special.entr(logprobs.exp()).sum().item()
    best = logprobs.topk(min(alternatives, len(logprobs)))
    return entropy, tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
