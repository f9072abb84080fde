"""Hypotheses of a beam search: which beams continue, which have ended, and when a search is over.

Owns: `BeamSettings`; `Hypothesis`, a finished text; and `BestBeams` and `SampledBeams`, which select the next beams.
Does not own: logits, rows and the loop, or the order of the continuations (`beam_search`).

Texts are compared by score / length ^ alpha. The score is the sum of the tokens' log-probabilities after the
processors; the length is the number of generated tokens, including end-of-text. The prompt counts in neither.
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
# Receives the ids of a prompt and those after it. Returns the text of the latter before a stop string, and whether one was found.
StopCheck = Callable[[Sequence[int], Sequence[int]], tuple[str, bool]]


@dataclass(frozen=True)
class BeamSettings:
    """`width` beams per prompt, at most `tokens` tokens each; the `n_best` hypotheses are returned.

    `groups`: groups of equal size, which avoid each other's tokens by `diversity` (`Search.extend`).
    `sample`: the beams are a random sample (`SampledBeams`). `stops` finds stop strings.
    `early_stop`: "bound" ends a search when no unfinished beam can beat the hypotheses to be returned, which saves time and
    does not change the result (except that a group that has ended no longer affects other groups); "first" ends it when
    `width` hypotheses have ended; "never" runs to the token limit.
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
        assert abs(self.alpha) <= 10, "length ^ alpha must not overflow"
        assert self.n_best <= self.width, "a search finds at most `width` texts"
        assert self.width % self.groups == 0, "groups are of equal size"
        assert not self.sample or self.groups == 1, "sampled beams have no groups"


@dataclass(frozen=True)
class Hypothesis:
    """A finished text: the generated ids, including end-of-text if it ended with that token.

    `logprobs` are the model's own, before processors; `logprob` is their sum. Hypotheses are compared by `score`:
    after processors and divided by length ^ alpha. Two with the same `key` are duplicates (`Ending.key`).
    """

    ids: tuple[int, ...]
    logprob: float
    score: float
    finish: Finish
    logprobs: tuple[float, ...]
    key: str | tuple[int, ...]


class Beam(NamedTuple):
    """An unfinished text. `row` is the engine's row of the text without its last token.

    A tuple because a frozen dataclass takes longer to create, and each step creates `width` beams.
    """

    text: RowHistory
    row: int = 0
    score: float = 0.0  # sum of the log-probabilities after processors
    logprobs: tuple[float, ...] = ()  # the model's own
    arrival: float = 0.0  # of sampled beams: earlier is better (`beam_search.draw_arrival_times`)

    def extend(self, row: int, id_: int, compared: float, own: float, arrival: float) -> Beam:
        text = RowHistory([*self.text.ids, id_], self.text.prompt, self.text.tokens)
        return Beam(text, row, self.score + compared, (*self.logprobs, own), arrival)

    def ended(self, finish: Finish, key: str | tuple[int, ...], alpha: float) -> Hypothesis:
        ids = tuple(self.text.ids[self.text.prompt :])
        return Hypothesis(ids, sum(self.logprobs), normalise(self.score, len(ids), alpha), finish, self.logprobs, key)


def normalise(score: float, length: int, alpha: float) -> float:
    return score / math.pow(length, alpha)


def upper_bound(score: float, generated: int, tokens: int, alpha: float) -> float:
    """Return the highest normalised score that a beam can reach with at least one more token and at most `tokens` in all.

    Log-probabilities are never positive, so the score cannot rise. length ^ alpha is monotone, so a score that stays the
    same is best at the largest length (alpha > 0) or at the smallest (alpha < 0).
    """
    return max(normalise(score, generated + 1, alpha), normalise(score, tokens, alpha))


@dataclass(frozen=True)
class Ending:
    """The conditions that end a text of a search."""

    end: int | None
    stops: StopCheck | None

    def __call__(self, text: RowHistory) -> Finish | None:
        if text.ids[-1] == self.end:
            return "end"
        if self.stops is not None and self.stops(text.ids[: text.prompt], text.ids[text.prompt :])[1]:
            return "stop"
        return "length" if text.left == 0 else None

    def key(self, text: RowHistory) -> str | tuple[int, ...]:
        """Return what identifies a text: its ids or, if there are stop strings, its text before the stop string."""
        ids = tuple(text.ids[text.prompt :])
        return ids if self.stops is None else self.stops(text.ids[: text.prompt], ids)[0]


@dataclass
class HypothesisPool:
    """Finished hypotheses, best first; equal ones in the order they were found. Of duplicates only the best is kept."""

    texts: list[tuple[float, Hypothesis]] = field(default_factory=list)  # (value, text): higher is better

    def add(self, value: float, text: Hypothesis) -> None:
        duplicates = [entry for entry in self.texts if entry[1].key == text.key]
        if all(entry[0] < value for entry in duplicates):
            self.texts = [entry for entry in self.texts if entry not in duplicates]
            insort(self.texts, (value, text), key=lambda entry: -entry[0])

    def count_from(self, value: float) -> int:
        """Count the hypotheses with this value or a higher one."""
        return bisect_right(self.texts, -value, key=lambda entry: -entry[0])

    def keep(self, most: int) -> None:
        del self.texts[most:]


class BeamGroup(ABC):
    """Beams that compete with each other, and their finished hypotheses. A group without beams is finished."""

    def __init__(self, settings: BeamSettings, ending: Ending, beam: Beam) -> None:
        self.settings, self.ending = settings, ending
        self.width = settings.width // settings.groups
        self.beams, self.pool = [beam], HypothesisPool()
        self.finished = 0

    def take(self, children: Iterable[Beam]) -> list[int]:
        """Replace the beams by some of their children, which are ordered best first. Return the tokens of those taken."""
        self.beams, taken = self.choose(children)
        return taken

    def finish(self, beam: Beam, finish: Finish) -> None:
        text = beam.ended(finish, self.ending.key(beam.text), self.settings.alpha)
        self.pool.add(self.value(beam, text), text)
        self.finished += 1

    @abstractmethod
    def choose(self, children: Iterable[Beam]) -> tuple[list[Beam], list[int]]:
        """Return the next beams, and the tokens of these and of the texts added to the pool."""

    @abstractmethod
    def value(self, beam: Beam, text: Hypothesis) -> float:
        """Return the value by which the pool ranks a text; higher is better."""


class BestBeams(BeamGroup):
    """The best `width` unfinished children continue; finished ones are added to the pool.

    A finished child counts only if it is among the `width` best of all children, and a search of width 1 stops at its first
    finished text. So width 1 is greedy decoding: it never takes a token that is not the best.
    """

    def choose(self, children: Iterable[Beam]) -> tuple[list[Beam], list[int]]:
        unfinished: list[Beam] = []
        taken: list[int] = []
        for rank, child in enumerate(children):
            finish = self.ending(child.text)
            if finish is None:
                unfinished.append(child)
            elif rank < self.width:
                self.finish(child, finish)
            if finish is None or rank < self.width:
                taken.append(child.text.ids[-1])
            if len(unfinished) == self.width or (child.text.left == 0 and rank + 1 == self.width):
                break
        self.pool.keep(self.settings.n_best)
        return ([] if unfinished and self.is_enough(unfinished) else unfinished), taken

    def value(self, beam: Beam, text: Hypothesis) -> float:
        return text.score

    def is_enough(self, unfinished: Sequence[Beam]) -> bool:
        """Return whether the search ends early (`BeamSettings.early_stop`)."""
        settings = self.settings
        if settings.early_stop == "first" or self.width == 1:
            return self.finished >= self.width
        wanted = min(settings.n_best, self.width)
        if settings.early_stop == "never" or len(self.pool.texts) < wanted:
            return False
        best, generated = max(beam.score for beam in unfinished), unfinished[0].text.written
        return self.pool.texts[wanted - 1][0] >= upper_bound(best, generated, settings.tokens, settings.alpha)


class SampledBeams(BeamGroup):
    """A sample of `width` texts without replacement (Kool et al. 2019): the texts that arrive first.

    A finished text keeps its place unless `width` others arrive earlier. The search ends when finished texts hold all
    places; any other rule would favour short texts.
    """

    def choose(self, children: Iterable[Beam]) -> tuple[list[Beam], list[int]]:
        unfinished: list[Beam] = []
        taken: list[int] = []
        for child in children:
            if len(unfinished) + self.pool.count_from(-child.arrival) >= self.width:
                break
            finish = self.ending(child.text)
            if finish is None:
                unfinished.append(child)
            else:
                self.finish(child, finish)
            taken.append(child.text.ids[-1])
        self.pool.keep(self.width)
        return unfinished, taken

    def value(self, beam: Beam, text: Hypothesis) -> float:
        return -beam.arrival


def best_hypotheses(groups: Iterable[BeamGroup], n_best: int) -> list[Hypothesis]:
    """Return the best hypotheses of all groups, best first. Of duplicates only the one with the best score is returned."""
    found: dict[str | tuple[int, ...], Hypothesis] = {}
    for text in sorted((text for group in groups for _, text in group.pool.texts), key=lambda text: -text.score):
        found.setdefault(text.key, text)
    return list(found.values())[:n_best]
