"""Requests for text, and their results as text.

Owns: `TextRequest`, `Piece` (one token) and `Sample` (a finished text). Does not own: the model and its settings
(`writer`), the loop (`stream`), or incremental decoding (`stop_strings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from lilliput.decoding.beam_hypotheses import Hypothesis
from lilliput.decoding.engines import Engine
from lilliput.decoding.requests import NO_TOKEN, Finish, Request, Token
from lilliput.decoding.stop_strings import IncrementalDecoder
from lilliput.settings.tree import GenerateSettings


@dataclass(frozen=True)
class Alternative:
    """A likely token as text, with its log-probability before processors."""

    id: int
    token: str
    logprob: float


@dataclass(frozen=True)
class Piece:
    """One token, and the text that became certain with it (may be empty: half a character, or the beginning of a stop string).

    `finish` is set on the last piece of a row. A row that is cancelled or fails ends with a piece without a token: `id` is
    NO_TOKEN, `token` is empty, and `error` is the exception. `entropy` (nats) and `alternatives` (likeliest first) are
    present on request.
    """

    row: int
    text: str
    id: int
    token: str
    logprob: float
    finish: Finish | None
    entropy: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    error: Exception | None = None

    @property
    def probability(self) -> float:
        """The probability of the token before processors."""
        return math.exp(self.logprob)


@dataclass(frozen=True)
class Sample:
    """A finished text, without the stop string that ended it.

    `tokens` counts all generated tokens, including end-of-text and the stop string; `logprob` is the sum over them, before
    processors. `score` is the score of a beam search. `error` is the exception that ended the row, if `finish` is "error".
    """

    prompt: str
    text: str
    tokens: int
    logprob: float
    finish: Finish
    score: float | None = None
    pieces: tuple[Piece, ...] = field(default=(), repr=False)
    error: Exception | None = None


@dataclass(eq=False, kw_only=True)
class TextRequest(Request):
    """A request for text, made by `Writer.request`. It can be streamed once.

    `prompt_text` is the prompt as text. `samples` holds the result when the request has ended: one sample, or the best
    hypotheses of a beam search, best first.
    """

    prompt_text: str
    settings: GenerateSettings
    engine: Engine
    decoder: IncrementalDecoder
    pieces: list[Piece] = field(default_factory=list, init=False, repr=False)
    samples: list[Sample] = field(default_factory=list, init=False, repr=False)

    def read_token(self, token: Token) -> Piece:
        """Return a token of this request as text. The last one completes the request."""
        if self.beams is not None:
            push_token(self.decoder, token)
        piece = as_piece(self.decoder, token)
        self.pieces.append(piece)
        if piece.finish is not None and self.hypotheses:
            self.samples = [self.read_hypothesis(hypothesis) for hypothesis in self.hypotheses]
        elif piece.finish is not None:
            self.samples = [as_sample(self.prompt_text, self.pieces)]
        return piece

    def read_hypothesis(self, hypothesis: Hypothesis) -> Sample:
        decoder = IncrementalDecoder(self.decoder.tokenizer, self.prompt, self.settings.stop)
        pieces, last = [], len(hypothesis.ids) - 1
        for place, (id_, logprob) in enumerate(zip(hypothesis.ids, hypothesis.logprobs, strict=True)):
            token = Token(0, id_, logprob, hypothesis.finish if place == last else None)
            push_token(decoder, token)
            pieces.append(as_piece(decoder, token))
        return replace(as_sample(self.prompt_text, pieces), score=hypothesis.score)


def push_token(decoder: IncrementalDecoder, token: Token) -> None:
    """Push the token of a beam search, unless it is end-of-text. (The sampling loop pushes tokens through the stop rule.)"""
    if token.id not in (NO_TOKEN, decoder.tokenizer.end):
        decoder.push(token.id)


def as_piece(decoder: IncrementalDecoder, token: Token) -> Piece:
    name = decoder.tokenizer.token
    return Piece(
        token.row,
        decoder.flush() if token.finish else decoder.take(),
        token.id,
        "" if token.id == NO_TOKEN else name(token.id),
        token.logprob,
        token.finish,
        token.entropy,
        tuple(Alternative(id_, name(id_), logprob) for id_, logprob in token.alternatives),
        token.error,
    )


def as_sample(prompt: str, pieces: Sequence[Piece]) -> Sample:
    """Join the pieces of a row that has ended."""
    last = pieces[-1]
    assert last.finish is not None
    tokens = tuple(piece for piece in pieces if piece.id != NO_TOKEN)
    text, logprob = "".join(piece.text for piece in pieces), sum(piece.logprob for piece in tokens)
    return Sample(prompt, text, len(tokens), logprob, last.finish, pieces=tokens, error=last.error)


def collect(prompts: Sequence[str], pieces: Iterable[Piece]) -> list[Sample]:
    """Join a stream of pieces to one sample per row."""
    rows: list[list[Piece]] = [[] for _ in prompts]
    for piece in pieces:
        rows[piece.row].append(piece)
    return [as_sample(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]
