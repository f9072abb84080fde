"""The choice of the next token of each row.

Owns: grouping of rows by strategy, the random draw (or the likeliest token), and isolation of exceptions to their rows.
Does not own: the processors (`processors`) or the loop (`stream`).

B rows, V vocabulary, K the largest number of tokens left in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from lilliput.decoding.processors import BY_VALUE, Candidates, Filter, Strategy
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.temperatures import RowTemperature, blocks
from lilliput.errors import UserError
from lilliput.kernels.logit_statistics import Values

AHEAD = 16  # uniform numbers drawn at a time
Outcome = TypeVar("Outcome")


def isolate_errors(
    places: Sequence[int], run: Callable[[Sequence[int]], Sequence[Outcome]]
) -> list[Outcome | Exception]:
    """Run once for all places. If that raises, run each place alone and return exceptions for those that fail."""
    try:
        return list(run(places))
    except Exception as error:
        if len(places) == 1:
            return [error]
        return [outcome for place in places for outcome in isolate_errors([place], run)]


def choose(
    strategies: Sequence[Strategy],
    texts: Sequence[RowHistory],
    logits: Tensor,
    draws: Sequence[Draws],
    peaks: Values | None = None,
) -> list[int | Exception]:
    """Return one token for each row of logits (B, V), or the exception that its processors raise.

    Rows with the same strategy object are processed together. `peaks` of the logits (`logit_statistics`) save time.
    """

    def run(places: Sequence[int]) -> list[int]:
        strategy = strategies[places[0]]
        if len(places) == len(texts):
            return choose_group(strategy, texts, logits, draws, peaks)
        own, few = list(places), None if peaks is None else peaks[list(places)]
        return choose_group(strategy, [texts[p] for p in own], logits[own], [draws[p] for p in own], few)

    first = strategies[0]
    if all(strategy is first for strategy in strategies):
        try:
            return [*choose_group(first, texts, logits, draws, peaks)]
        except Exception:
            return isolate_errors(range(len(texts)), run)
    groups: dict[int, list[int]] = {}
    for place, strategy in enumerate(strategies):
        groups.setdefault(id(strategy), []).append(place)
    chosen: dict[int, int | Exception] = {}
    for places in groups.values():
        chosen |= zip(places, isolate_errors(places, run), strict=True)
    return [chosen[place] for place in range(len(texts))]


def choose_group(
    strategy: Strategy, texts: Sequence[RowHistory], logits: Tensor, draws: Sequence[Draws], peaks: Values | None
) -> list[int]:
    """Return one token per row for one strategy. Random numbers are drawn last, so a call that raises can be repeated."""
    shape, rest = logits.shape, strategy.processors
    while rest and not (strategy.sample and all(isinstance(process, BY_VALUE) for process in rest)):
        logits, rest, peaks = rest[0](texts, logits), rest[1:], None
        if logits.shape != shape:
            raise ValueError(f"a logit processor returned shape {tuple(logits.shape)}, expected {tuple(shape)}")
    values = logits.cpu().numpy()
    if not strategy.sample:
        chosen = values.argmax(axis=-1)  # in a row with NaN: the place of the NaN
        if strategy.processors:
            check_finite(values[np.arange(len(values)), chosen])
        ids: list[int] = chosen.tolist()
        return ids
    # The remaining processors do not depend on ids: after a filter they process the kept tokens only.
    candidates = Candidates(values, None, peaks)
    for process in rest:
        if isinstance(process, Filter):
            candidates = process.apply_to_candidates(candidates)
        elif isinstance(process, RowTemperature):  # division keeps the order, so the peaks stay peaks
            peaks, by = candidates.peaks, process.divisors(texts, candidates.values)
            candidates = Candidates(candidates.values / by, candidates.ids, None if peaks is None else peaks / by)
        else:
            candidates = Candidates(process(texts, torch.from_numpy(candidates.values)).numpy(), candidates.ids)
    return draw_tokens(candidates, draws)


def check_finite(largest: Values) -> None:
    """Raise an error unless the largest logit of every row is finite."""
    if not np.isfinite(largest).all():
        fix = "use an earlier checkpoint of the run, or another logit processor"
        raise UserError("the logits after the processors are not finite", fix=fix, code="model.not-finite")


def draw_tokens(candidates: Candidates, draws: Sequence[Draws]) -> list[int]:
    """Draw one token per row by inversion of the cumulative sum in float64, with one uniform number of the row's own.

    The result is the same on every device. A token of probability 0 is never drawn, because the numbers are below 1.
    """
    largest = candidates.values.max(axis=-1, keepdims=True)
    check_finite(largest)
    numbers = [row.next() for row in draws]
    drawn: list[int] = []
    for own in blocks(candidates.values):
        these = slice(len(drawn), len(drawn) + len(own))
        mass = np.exp(np.subtract(own, largest[these], dtype=np.float64)).cumsum(axis=-1)  # (rows, K)
        threshold = mass[:, -1] * numbers[these]
        drawn += np.count_nonzero(mass <= threshold[:, None], axis=-1).tolist()
    if candidates.ids is None:
        return drawn
    chosen: list[int] = candidates.ids[np.arange(len(drawn)), drawn].tolist()
    return chosen


class Draws:
    """Uniform numbers in [0, 1), equal to successive calls of `torch.rand`, but drawn AHEAD at a time."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.ahead: list[float] = []

    def next(self) -> float:
        if not self.ahead:
            self.ahead = torch.rand(AHEAD, dtype=torch.float64, generator=self.generator).tolist()[::-1]
        return self.ahead.pop()
