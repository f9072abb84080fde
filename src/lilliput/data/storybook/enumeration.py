"""Enumerate the texts of a small probabilistic program, or of a program made small.

Does not own: programs, sampling and scoring (`probabilistic_program`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lilliput.data.storybook.probabilistic_program import (
    ChoiceHandler,
    Facts,
    Option,
    Program,
    Replayer,
    Scene,
    check_options,
)


class _Enumerator(Replayer):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def begin(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def enumerate_texts(program: Program[Facts]) -> dict[str, float]:
    """Return every text of the program with its probability, summed over derivations."""
    probabilities: dict[str, list[float]] = {}
    pending: list[tuple[str, float, Scene[Facts], Facts]] = [("", 0.0, program.first, program.facts)]
    while pending:
        text, logprob, scene, facts = pending.pop()
        enumerator = _Enumerator()
        for new_facts, next_scene in enumerator.derivations(scene, facts):
            longer, total = text + enumerator.text, logprob + enumerator.logprob
            if next_scene is None:
                probabilities.setdefault(longer, []).append(math.exp(total))
            else:
                pending.append((longer, total, next_scene, new_facts))
    return {text: math.fsum(shares) for text, shares in probabilities.items()}


Keep = Callable[[str, int, int], Sequence[int]]


class _Narrowed(ChoiceHandler):
    """Restricts every choice to some of its options."""

    def __init__(self, handler: ChoiceHandler, scene: str, keep: Keep) -> None:
        self._inner = handler
        self._scene = scene
        self._keep = keep
        self._count = 0

    def choose(self, options: Sequence[Option], weights: Sequence[float] | None = None) -> Option:
        check_options(options, weights)
        kept = self._keep(self._scene, self._count, len(options))
        self._count += 1
        kept_weights = None if weights is None else [weights[index] for index in kept]
        return self._inner.choose([options[index] for index in kept], kept_weights)

    def draw(self, options: tuple[str, ...]) -> str:
        kept = self._keep(self._scene, self._count, len(options))
        self._count += 1
        return self._inner.draw(tuple(options[index] for index in kept))

    def write(self, text: str) -> None:
        self._inner.write(text)


def narrow(program: Program[Facts], keep: Keep) -> Program[Facts]:
    """Return the program with fewer options: `keep(scene name, number of the choice, options)` returns the indexes to keep."""
    known: dict[Scene[Facts], Scene[Facts]] = {}  # one narrowed scene per scene, because equal states are merged

    def narrowed(scene: Scene[Facts]) -> Scene[Facts]:
        def run(handler: ChoiceHandler, facts: Facts) -> tuple[Facts, Scene[Facts] | None]:
            new_facts, following = scene(_Narrowed(handler, scene.__name__, keep), facts)
            return new_facts, None if following is None else narrowed(following)

        run.__name__ = scene.__name__
        return known.setdefault(scene, run)

    return Program(narrowed(program.first), program.facts)
