"""Hypotheses of a beam search: which beams continue, which have ended, and when no better one can come.

Owns: `BeamSettings`; `Hypothesis`, a finished text; and the two ways to select the next beams,
`BestBeams` and `SampledBeams`. Does not own: logits, rows and the loop (`beam_search`), or the order of the
continuations, which are given best first.

A text is compared by score / length ^ alpha: the score is the sum of its tokens' log-probabilities after the
processors, the length the number of generated tokens, an end-of-text token included. The prompt counts in
neither.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lilliput.decoding.requests import Finish
from lilliput.decoding.row_history import RowHistory

EarlyStop = Literal["bound", "first", "never"]
# Given a prompt's ids and those after it: the text of the latter up to a stop string, and whether there is one.
StopCheck = Callable[[Sequence[int], Sequence[int]], tuple[str, bool]]


@dataclass(frozen=True)
class BeamSettings:
    """`width` beams a prompt, at most `tokens` tokens each, compared with `alpha`; the `n_best` hypotheses are returned.

    `groups` of equal size avoid each other's tokens by `diversity` (`beam_search.Search`); or the beams are a `sample`
    (`SampledBeams`). A search ends early: by "bound" when no unfinished beam can become better than the hypotheses that will be
    returned, which changes nothing but the time (but a group that has ended no longer affects other groups); by "first"
    when as many hypotheses have ended as there are beams; or "never". `stops` finds stop strings.
    """

    width: int
    tokens: int
    alpha: float = 1.0
    early_stop: EarlyStop = "bound"
    groups: int = 1
    diversity: float = 0.5
    sample: bool = False
    n_best: int = 1
    stops: StopCheck | None = None

    def __post_init__(self) -> None:
        assert min(self.width, self.tokens, self.groups, self.n_best) >= 1
        assert abs(self.alpha) <= 10, "beyond, length ^ alpha leaves the range of numbers"
        assert self.n_best <= self.width, "no more texts are found than there are beams"
        assert self.width % self.groups == 0, "groups are of equal size"
        assert not self.sample or self.groups == 1, "a draw without replacement finds different texts by itself"


@dataclass(frozen=True)
class Hypothesis:
    """A finished text: the generated ids only, the end-of-text token included if it ended with one.

    `logprobs` are the model's own, before processors, and `logprob` is their sum. Hypotheses are compared by `score`:
    after processors and divided by length ^ alpha. Those of equal `key` are duplicates (`Ending.key`).
    """

    ids: tuple[int, ...]
    logprob: float
    score: float
    finish: Finish
    logprobs: tuple[float, ...]
    key: str | tuple[int, ...]


class Beam(NamedTuple):
    """An unfinished text. `row` is the engine's row of the text without its last token.

    A tuple: every step makes `width` of them, and it takes a frozen dataclass longer to be made.
    """

    text: RowHistory
    row: int = 0
    score: float = 0.0  # sum of the log-probabilities after processors
    logprobs: tuple[float, ...] = ()  # the model's own
    arrival: float = 0.0  # of drawn beams: the earlier the better (`beam_search.draw_arrival_times`)

    def extend(self, row: int, id_: int, compared: float, own: float, arrival: float) -> Beam:
        text = RowHistory([*self.text.ids, id_], self.text.prompt, self.text.tokens)
        return Beam(text, row, self.score + compared, (*self.logprobs, own), arrival)

    def ended(self, finish: Finish, key: str | tuple[int, ...], alpha: float) -> Hypothesis:
        ids = tuple(self.text.ids[self.text.prompt :])
        return Hypothesis(ids, sum(self.logprobs), normalise(self.score, len(ids), alpha), finish, self.logprobs, key)


def normalise(score: float, length: int, alpha: float) -> float:
    return score / math.pow(length, alpha)


def reach(score: float, written: int, tokens: int, alpha: float) -> float:
    """The most that a beam can come to after at least one more token, and at most `tokens` in all.

    No log-probability is above 0, so the score falls or stays. Divided by length ^ alpha, a score that stays is best at the
    greatest length if alpha is positive and at the least if it is negative; length ^ alpha is monotone between.
    """
    return max(normalise(score, written + 1, alpha), normalise(score, tokens, alpha))


@dataclass(frozen=True)
class Ending:
    """What ends the texts of a search."""

    end: int | None
    stops: StopCheck | None

    def __call__(self, text: RowHistory) -> Finish | None:
        if text.ids[-1] == self.end:
            return "end"
        if self.stops is not None and self.stops(text.ids[: text.prompt], text.ids[text.prompt :])[1]:
            return "stop"
        return "length" if text.left == 0 else None

    def key(self, text: RowHistory) -> str | tuple[int, ...]:
        """What distinguishes texts: their ids, or their text before a stop string, where there are stop strings."""
        ids = tuple(text.ids[text.prompt :])
        return ids if self.stops is None else self.stops(text.ids[: text.prompt], ids)[0]


@dataclass
class HypothesisPool:
    """Finished hypotheses, the best first, of equals the earlier found; of duplicates only the best."""

    texts: list[tuple[float, Hypothesis]] = field(default_factory=list)  # (value, text): the higher the better

    def add(self, value: float, text: Hypothesis) -> None:
        alike = [entry for entry in self.texts if entry[1].key == text.key]
        if all(entry[0] < value for entry in alike):
            self.texts = [entry for entry in self.texts if entry not in alike]
            insort(self.texts, (value, text), key=lambda entry: -entry[0])

    def count_from(self, value: float) -> int:
        """How many have this value or a higher one."""
        return bisect_right(self.texts, -value, key=lambda entry: -entry[0])

    def keep(self, most: int) -> None:
        del self.texts[most:]


class BeamGroup(ABC):
    """Beams that compete with each other, and those of them that have ended. No beams remain when its search is over."""

    def __init__(self, settings: BeamSettings, ending: Ending, beam: Beam) -> None:
        self.settings, self.ending = settings, ending
        self.width = settings.width // settings.groups
        self.beams, self.pool = [beam], HypothesisPool()
        self.finished = 0

    def take(self, children: Iterable[Beam]) -> list[int]:
        """Some of the beams' children, which come best first, take their places. Gives the tokens of those taken."""
        self.beams, taken = self.choose(children)
        return taken

    def finish(self, beam: Beam, finish: Finish) -> None:
        text = beam.ended(finish, self.ending.key(beam.text), self.settings.alpha)
        self.pool.add(self.value(beam, text), text)
        self.finished += 1

    @abstractmethod
    def choose(self, children: Iterable[Beam]) -> tuple[list[Beam], list[int]]:
        """The next beams, and the tokens of these and of the texts that went into the pool."""

    @abstractmethod
    def value(self, beam: Beam, text: Hypothesis) -> float:
        """What places in the pool are held by: the higher the better."""


class BestBeams(BeamGroup):
    """The best children go on, always as many as the width if there are so many; those that end go into the pool.

    A child that ends counts only where it is among the `width` best of all, and a single beam is content with the first text
    that ends: so width 1 is greedy, which neither ends with a second best token nor goes on with one.
    """

    def choose(self, children: Iterable[Beam]) -> tuple[list[Beam], list[int]]:
        going: list[Beam] = []
        taken: list[int] = []
        for rank, child in enumerate(children):
            finish = self.ending(child.text)
            if finish is None:
                going.append(child)
            elif rank < self.width:
                self.finish(child, finish)
            if finish is None or rank < self.width:
                taken.append(child.text.ids[-1])
            if len(going) == self.width or (child.text.left == 0 and rank + 1 == self.width):
                break
        self.pool.keep(self.settings.n_best)
        return ([] if going and self.is_enough(going) else going), taken

    def value(self, beam: Beam, text: Hypothesis) -> float:
        return text.score

    def is_enough(self, going: Sequence[Beam]) -> bool:
        """Whether the search ends early: see `BeamSettings`."""
        settings = self.settings
        if settings.early_stop == "first" or self.width == 1:
            return self.finished >= self.width
        wanted = min(settings.n_best, self.width)
        if settings.early_stop == "never" or len(self.pool.texts) < wanted:
            return False
        best = max(beam.score for beam in going)
        return self.pool.texts[wanted - 1][0] >= reach(best, going[0].text.written, settings.tokens, settings.alpha)


class SampledBeams(BeamGroup):
    """A sample of `width` texts without replacement (Kool et al. 2019): those that arrive first.

    Texts that have ended hold their places, unless enough others arrive before them; when all places are held by ended texts
    the sample is complete, which is the only rule for its end: another would prefer short texts.
    """

    def choose(self, children: Iterable[Beam]) -> tuple[list[Beam], list[int]]:
        going: list[Beam] = []
        taken: list[int] = []
        for child in children:
            if len(going) + self.pool.count_from(-child.arrival) >= self.width:
                break
            finish = self.ending(child.text)
            if finish is None:
                going.append(child)
            else:
                self.finish(child, finish)
            taken.append(child.text.ids[-1])
        self.pool.keep(self.width)
        return going, taken

    def value(self, beam: Beam, text: Hypothesis) -> float:
        return -beam.arrival


def best_hypotheses(groups: Iterable[BeamGroup], n_best: int) -> list[Hypothesis]:
    """The best hypotheses of all groups, the best first; one that several groups have found counts once, with its best score."""
    found: dict[str | tuple[int, ...], Hypothesis] = {}
    for text in sorted((text for group in groups for _, text in group.pool.texts), key=lambda text: -text.score):
        found.setdefault(text.key, text)
    return list(found.values())[:n_best]
