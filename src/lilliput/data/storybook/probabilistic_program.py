"""Programs that write text by chance, and what can be asked of them.

A program is a chain of scenes. A scene is a plain function `scene(teller, facts) -> (facts, next scene or
None)`: it draws through the one interface `teller.choose(options, weights)`, writes with `teller.say(...)`,
and hands what later scenes need to them in `facts`, a hashable value that it never changes in place. The same
scenes run under handlers:

- `sample`, `samples`  texts drawn with a `random.Random`;
- `score`  the exact log-probability of a text, summed over all its derivations, or where it leaves the program;
- `enumerate_texts`  every text with its probability, for programs that are small, or made small by `narrow`.

`score` is dynamic programming. Inside a scene the derivations are found by replay: the scene runs again for
every choice that could still lead to the text, and is dropped at the first piece that does not match. Between
scenes, states with equal (position, next scene, facts) are merged with log-sum-exp. So a choice that shows
late costs one live state until it shows, and nothing is approximated.

This module owns the handlers and knows nothing about stories; the book is storybook.py.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

Option = TypeVar("Option")
Facts = TypeVar("Facts", bound=Hashable)

EXPECTED_LIMIT = 8  # continuations that a failed score names


class ChoiceHandler(ABC):
    """What a scene talks to. A handler says what a choice and a piece of text mean."""

    @abstractmethod
    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        """Draw one of the options, uniformly or in proportion to the weights."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Append to the text."""

    def draw(self, options: tuple[str, ...]) -> str:
        """Choose one of the texts and write it at once."""
        text = self.choose(options)
        self.write(text)
        return text

    def say(self, *pieces: str | tuple[str, ...]) -> list[str]:
        """Write the pieces in order; a tuple is a uniform choice among its texts. Returns the texts that were drawn."""
        drawn = []
        for piece in pieces:
            if isinstance(piece, str):
                self.write(piece)
            else:
                drawn.append(self.draw(piece))
        return drawn


class Scene(Protocol[Facts]):
    """A part of a program. Its name tells a reader where a text broke."""

    @property
    def __name__(self) -> str: ...

    def __call__(self, teller: ChoiceHandler, facts: Facts, /) -> tuple[Facts, Scene[Facts] | None]: ...


@dataclass(frozen=True)
class Program(Generic[Facts]):
    """Where a text begins: the first scene, and the facts before anything was told."""

    first: Scene[Facts]
    facts: Facts


@dataclass(frozen=True)
class TextScore:
    """The judgement of one text: a log-probability in nats, or the place where it leaves the program.

    `position` is the farthest character offset to which some text of the program agrees. `expected` holds a few of the
    continuations allowed there, cut at the end of a word; the empty string stands for the end of the text. `scene` is
    where it broke.
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
    """Weights as probabilities."""
    if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all zero: {weights}")
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


@lru_cache(maxsize=1024)
def _steps(weights: tuple[float, ...]) -> tuple[float, ...]:
    """Running sums of the probabilities; the last that is not zero reaches 1 whatever the rounding."""
    shares = _shares(weights)
    last = max(index for index, share in enumerate(shares) if share)
    return (*accumulate(shares[:last]), *(1.0 for _ in shares[last:]))


def _check(options: Sequence[Option], weights: Sequence[float] | None) -> None:
    if not options or (weights is not None and len(weights) != len(options)):
        raise ValueError(f"{len(options)} options with {'no' if weights is None else len(weights)} weights")


class Sampler(ChoiceHandler):
    """Draws from a generator. Uses `random()` alone, whose sequence Python promises to keep for a given seed."""

    def __init__(self, generator: random.Random) -> None:
        self._random = generator.random
        self._pieces: list[str] = []

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        if weights is None and options:
            return options[int(self._random() * len(options))]
        _check(options, weights)
        assert weights is not None
        return options[bisect_right(_steps(tuple(weights)), self._random())]

    def write(self, text: str) -> None:
        self._pieces.append(text)

    def take(self) -> str:
        """The text written so far; the next one begins empty."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


def samples(program: Program[Facts], generator: random.Random) -> Iterator[str]:
    """Texts of the program without end."""
    teller = Sampler(generator)
    while True:
        facts, scene = program.first(teller, program.facts)
        while scene is not None:
            facts, scene = scene(teller, facts)
        yield teller.take()


def sample(program: Program[Facts], generator: random.Random) -> str:
    """One text of the program."""
    return next(samples(program, generator))


class _MismatchError(Exception):
    """A derivation that cannot lead to the text."""


class _Replayer(ChoiceHandler):
    """Runs a scene once for every sequence of choices that survives, and keeps the present log-probability."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, ...]] = []
        self._path: list[int] = []
        self._depth = 0
        self.logprob = 0.0

    def begin(self) -> None:
        """The present derivation starts over; a handler resets its text here."""

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
        _check(options, weights)
        shares = None if weights is None else _shares(tuple(weights))
        if self._depth == len(self._path):
            self._branch([index for index in range(len(options)) if shares is None or shares[index]])
        index = self._path[self._depth]
        self._depth += 1
        self.logprob += math.log(1 / len(options) if shares is None else shares[index])
        return options[index]

    def _branch(self, indexes: Sequence[int]) -> None:
        """Go on with the first of the indexes and remember the others, to be replayed in order."""
        self._pending.extend((*self._path, index) for index in reversed(indexes[1:]))
        self._path.append(indexes[0])


class _Scorer(_Replayer):
    """Follows a given text. With `diagnose`, notes the farthest place where a derivation left it."""

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
        # Only options that the text goes on with are replayed: a list of 40 words costs one run, not 40.
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
        """The program could go on with `text` here, and the given text does not."""
        if self.position + len(text) < self.farthest:
            return
        given = self._text[self.position : self.position + len(text)]
        pairs = enumerate(zip(text, given, strict=False))
        agreed = next((index for index, (ours, theirs) in pairs if ours != theirs), len(given))
        reach = self.position + agreed
        if reach > self.farthest:
            self.farthest = reach
            self.expected.clear()
            self.broken_scene = self.scene
        if reach == self.farthest and len(self.expected) < EXPECTED_LIMIT:
            rest = text[agreed:]
            end = rest.find(" ", 1)
            self.expected[rest if end < 0 else rest[:end]] = None


def _follow(program: Program[Facts], text: str, scorer: _Scorer) -> float | None:
    """The log-probability of the text, by merging the live states after every scene."""
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
    """log(exp(first) + exp(second)) without leaving the range of floats."""
    low, high = sorted((first, second))
    return high + math.log1p(math.exp(low - high))


def score(program: Program[Facts], text: str) -> TextScore:
    """The exact log-probability of the text, over all derivations, or the place where it leaves the program.

    Looks at the text only as far as the program agrees with it, so that any input, of any length, is safe. A text that
    fails is followed a second time to say where, which keeps the notes out of the usual case.
    """
    logprob = _follow(program, text, _Scorer(text, diagnose=False))
    if logprob is not None:
        return TextScore(logprob)
    scorer = _Scorer(text, diagnose=True)
    _follow(program, text, scorer)
    return TextScore(None, scorer.farthest, tuple(scorer.expected), scorer.broken_scene)


class _Enumerator(_Replayer):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def begin(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def enumerate_texts(program: Program[Facts]) -> dict[str, float]:
    """Every text of the program with its probability, summed over derivations. As costly as the program is large."""
    probabilities: dict[str, list[float]] = {}
    pending: list[tuple[str, float, Scene[Facts], Facts]] = [("", 0.0, program.first, program.facts)]
    while pending:
        text, logprob, scene, facts = pending.pop()
        teller = _Enumerator()
        for new_facts, next_scene in teller.derivations(scene, facts):
            told, total = text + teller.text, logprob + teller.logprob
            if next_scene is None:
                probabilities.setdefault(told, []).append(math.exp(total))
            else:
                pending.append((told, total, next_scene, new_facts))
    return {text: math.fsum(shares) for text, shares in probabilities.items()}


Keep = Callable[[str, int, int], Sequence[int]]


class _Narrowed(ChoiceHandler):
    """Passes on only some options of every choice."""

    def __init__(self, teller: ChoiceHandler, scene: str, keep: Keep) -> None:
        self._teller = teller
        self._scene = scene
        self._keep = keep
        self._count = 0

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        _check(options, weights)
        kept = self._keep(self._scene, self._count, len(options))
        self._count += 1
        kept_weights = None if weights is None else [weights[index] for index in kept]
        return self._teller.choose([options[index] for index in kept], kept_weights)

    def draw(self, options: tuple[str, ...]) -> str:
        kept = self._keep(self._scene, self._count, len(options))
        self._count += 1
        return self._teller.draw(tuple(options[index] for index in kept))

    def write(self, text: str) -> None:
        self._teller.write(text)


def narrow(program: Program[Facts], keep: Keep) -> Program[Facts]:
    """The same program with fewer options: `keep(scene, number of the choice in it, options)` tells which remain."""
    known: dict[Scene[Facts], Scene[Facts]] = {}  # one narrowed scene for each scene, or states would not merge

    def narrowed(scene: Scene[Facts]) -> Scene[Facts]:
        def run(teller: ChoiceHandler, facts: Facts) -> tuple[Facts, Scene[Facts] | None]:
            new_facts, following = scene(_Narrowed(teller, scene.__name__, keep), facts)
            return new_facts, None if following is None else narrowed(following)

        run.__name__ = scene.__name__
        return known.setdefault(scene, run)

    return Program(narrowed(program.first), program.facts)
