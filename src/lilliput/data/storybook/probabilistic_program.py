"""Probabilistic programs that generate text: sampling, and exact scoring of a text.

A program is a chain of scenes. A scene is a function `scene(handler, facts) -> (facts, next scene or None)`. It makes
random choices with `handler.choose(options, weights)`, writes text with `handler.say(...)`, and passes values to later
scenes in `facts`, an immutable hashable value. The same scenes run under different handlers:

- `sample`, `samples`: draw texts with a `random.Random`
- `score`: compute the exact log-probability of a text, summed over all derivations, or the position of the mismatch
- `enumeration.enumerate_texts`: list every text of a small program with its probability

`score` uses dynamic programming. Within a scene it replays: the scene runs once for each sequence of choices that can
still produce the text, and stops at the first mismatch. Between scenes, states with equal (position, next scene, facts)
are merged with log-sum-exp. Nothing is approximated.

Does not own: the stories (`storybook`).
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

Option = TypeVar("Option")
Facts = TypeVar("Facts", bound=Hashable)

EXPECTED_LIMIT = 8  # continuations listed in a failed score


class ChoiceHandler(ABC):
    """The interface of a scene: it defines the effect of a choice and of a piece of text."""

    @abstractmethod
    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        """Draw one of the options, uniformly or in proportion to the weights."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Append to the text."""

    def draw(self, options: tuple[str, ...]) -> str:
        """Choose one of the texts and write it."""
        text = self.choose(options)
        self.write(text)
        return text

    def say(self, *pieces: str | tuple[str, ...]) -> list[str]:
        """Write the pieces in order; a tuple is a uniform choice among its texts. Return the chosen texts."""
        drawn = []
        for piece in pieces:
            if isinstance(piece, str):
                self.write(piece)
            else:
                drawn.append(self.draw(piece))
        return drawn


class Scene(Protocol[Facts]):
    """A part of a program. Its name is reported as the place of a mismatch."""

    @property
    def __name__(self) -> str: ...

    def __call__(self, handler: ChoiceHandler, facts: Facts, /) -> tuple[Facts, Scene[Facts] | None]: ...


@dataclass(frozen=True)
class Program(Generic[Facts]):
    """The first scene and its facts."""

    first: Scene[Facts]
    facts: Facts


@dataclass(frozen=True)
class TextScore:
    """The score of a text: a log-probability in nats, or the place of the first mismatch.

    `position` is the length of the longest prefix that a text of the program has. `expected` lists some valid
    continuations, truncated at the end of a word; the empty string is the end of the text. `scene` is the scene of the
    mismatch.
    """

    logprob: float | None
    position: int | None = None
    expected: tuple[str, ...] = ()
    scene: str | None = None

    @property
    def valid(self) -> bool:
        return self.logprob is not None


@lru_cache(maxsize=1024)
def _shares(weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return the weights as probabilities."""
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero (got {weights})")
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


@lru_cache(maxsize=1024)
def _steps(weights: tuple[float, ...]) -> tuple[float, ...]:
    """Return the cumulative probabilities. The last nonzero option reaches exactly 1, despite rounding."""
    shares = _shares(weights)
    last = max(index for index, share in enumerate(shares) if share)
    return (*accumulate(shares[:last]), *(1.0 for _ in shares[last:]))


def check_options(options: Sequence[Option], weights: Sequence[float] | None) -> None:
    if not options or (weights is not None and len(weights) != len(options)):
        count = "no" if weights is None else len(weights)
        raise ValueError(f"options must not be empty, with one weight each (got {len(options)} with {count} weights)")


class Sampler(ChoiceHandler):
    """Draws from a generator. Uses only `random()`, whose sequence for a seed Python guarantees."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator.random
        self._pieces: list[str] = []

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        if weights is None and options:
            return options[int(self._random() * len(options))]
        check_options(options, weights)
        assert weights is not None
        return options[bisect_right(_steps(tuple(weights)), self._random())]

    def write(self, text: str) -> None:
        self._pieces.append(text)

    def take(self) -> str:
        """Return the text written so far and clear it."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


def samples(program: Program[Facts], generator: random.Random) -> Iterator[str]:
    """Yield texts of the program without end."""
    sampler = Sampler(generator)
    while True:
        facts, scene = program.first(sampler, program.facts)
        while scene is not None:
            facts, scene = scene(sampler, facts)
        yield sampler.take()


def sample(program: Program[Facts], generator: random.Random) -> str:
    """Return one text of the program."""
    return next(samples(program, generator))


class _MismatchError(Exception):
    """The derivation cannot produce the text."""


class Replayer(ChoiceHandler):
    """Runs a scene once for each sequence of choices without a mismatch; `logprob` is that of the current sequence."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, ...]] = []
        self._path: list[int] = []
        self._depth = 0
        self.logprob = 0.0

    def begin(self) -> None:
        """Reset the text before the next derivation."""

    def derivations(self, scene: Scene[Facts], facts: Facts) -> Iterator[tuple[Facts, Scene[Facts] | None]]:
        self._pending = [()]
        while self._pending:
            self._path = list(self._pending.pop())
            self._depth = 0
            self.logprob = 0.0
            self.begin()
            try:
                yield scene(self, facts)
            except _MismatchError:
                continue

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        check_options(options, weights)
        shares = None if weights is None else _shares(tuple(weights))
        if self._depth == len(self._path):
            self._branch([index for index in range(len(options)) if shares is None or shares[index]])
        index = self._path[self._depth]
        self._depth += 1
        self.logprob += math.log(1 / len(options) if shares is None else shares[index])
        return options[index]

    def _branch(self, indexes: Sequence[int]) -> None:
        """Continue with the first index; queue the others for replay, in order."""
        self._pending.extend((*self._path, index) for index in reversed(indexes[1:]))
        self._path.append(indexes[0])


class _Scorer(Replayer):
    """Matches derivations with a given text. With `diagnose`, records the farthest mismatch."""

    def __init__(self, text: str, diagnose: bool) -> None:
        super().__init__()
        self._text = text
        self._diagnose = diagnose
        self.start = 0
        self.position = 0
        self.scene: str | None = None
        self.farthest = -1
        self.expected: dict[str, None] = {}  # a set that keeps its order
        self.broken_scene: str | None = None

    def begin(self) -> None:
        self.position = self.start

    def write(self, text: str) -> None:
        if not self._text.startswith(text, self.position):
            if self._diagnose:
                self.note(text)
            raise _MismatchError
        self.position += len(text)

    def draw(self, options: tuple[str, ...]) -> str:
        # Only options that match the text are replayed: a list of 40 words costs one run, not 40.
        if self._depth < len(self._path) or not options:
            return super().draw(options)
        matching = []
        for index, option in enumerate(options):
            if self._text.startswith(option, self.position):
                matching.append(index)
            elif self._diagnose:
                self.note(option)
        if not matching:
            raise _MismatchError
        self._branch(matching)
        return super().draw(options)

    def note(self, text: str) -> None:
        """Record a mismatch: the program can continue with `text` here, but the given text does not."""
        if self.position + len(text) < self.farthest:
            return
        given = self._text[self.position : self.position + len(text)]
        pairs = enumerate(zip(text, given, strict=False))
        matched = next((index for index, (ours, theirs) in pairs if ours != theirs), len(given))
        reach = self.position + matched
        if reach > self.farthest:
            self.farthest = reach
            self.expected.clear()
            self.broken_scene = self.scene
        if reach == self.farthest and len(self.expected) < EXPECTED_LIMIT:
            rest = text[matched:]
            end = rest.find(" ", 1)
            self.expected[rest if end < 0 else rest[:end]] = None


def _follow(program: Program[Facts], text: str, scorer: _Scorer) -> float | None:
    """Return the log-probability of the text, merging equal states after every scene."""
    total: float | None = None
    live: dict[tuple[int, Scene[Facts], Facts], float] = {(0, program.first, program.facts): 0.0}
    while live:
        following: dict[tuple[int, Scene[Facts], Facts], float] = {}
        for (start, scene, facts), before in live.items():
            scorer.start = start
            scorer.scene = scene.__name__
            for new_facts, next_scene in scorer.derivations(scene, facts):
                logprob = before + scorer.logprob
                if next_scene is not None:
                    key = (scorer.position, next_scene, new_facts)
                    following[key] = _add(following[key], logprob) if key in following else logprob
                elif scorer.position == len(text):
                    total = logprob if total is None else _add(total, logprob)
                else:
                    scorer.note("")
        live = following
    return total


def _add(first: float, second: float) -> float:
    """Return log(exp(first) + exp(second)) without overflow."""
    low, high = sorted((first, second))
    return high + math.log1p(math.exp(low - high))


def score(program: Program[Facts], text: str) -> TextScore:
    """Return the exact log-probability of the text over all derivations, or the place of the first mismatch.

    The text is read only as far as it matches, so input of any length is safe. Only a text that does not match is
    read a second time, to find the place.
    """
    logprob = _follow(program, text, _Scorer(text, diagnose=False))
    if logprob is not None:
        return TextScore(logprob)
    scorer = _Scorer(text, diagnose=True)
    _follow(program, text, scorer)
    return TextScore(None, scorer.farthest, tuple(scorer.expected), scorer.broken_scene)
