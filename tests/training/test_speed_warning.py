"""The warning about a run that has become slower, with injected speeds."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from lilliput.training.events import Evaluated, Stepped, Warned
from lilliput.training.speed_warning import KIND, SpeedWatch


def stepped(step: int, seconds: float, speed: float) -> Stepped:
    return Stepped(step, 2.0, 1e-3, 0.5, 1000 * step, 0.5, seconds, speed, None, False, False, None)


def run(speeds: Iterable[tuple[float, int]], threads: int = 2, start: float = 0.0) -> list[Warned]:
    """Return the warnings of a session with steps of (tokens/s, tokens)."""
    watch, seconds, warnings = SpeedWatch(threads), start, list[Warned]()
    for step, (speed, tokens) in enumerate(speeds, start=1):
        seconds += tokens / speed
        warnings += watch.check(stepped(step, seconds, speed))
    return warnings


def level(speed: float, seconds: float, tokens: int = 1000) -> list[tuple[float, int]]:
    return [(speed, tokens)] * round(seconds * speed / tokens)


def test_a_lasting_drop_by_more_than_half_warns_once() -> None:
    (warned,) = run(level(10_000, 120) + level(4_000, 600))
    assert warned.kind == KIND
    assert "from 10,000 to 4,000 tokens/s" in warned.text and "OMP_NUM_THREADS=1" in warned.text
    first = 1 + 120 * 10
    assert first + 30 * 4 <= warned.step <= first + 2 * 30 * 4 + 1, "after one or two windows"


def test_the_warning_is_not_repeated_when_the_speed_returns_and_drops_again() -> None:
    assert len(run([*level(9000, 100), *level(900, 100), *level(9000, 100), *level(900, 100)])) == 1


@pytest.mark.parametrize(
    "speeds",
    [
        level(10_000, 400) + level(5_200, 400),
        level(2_000, 100) + level(9_000, 400),
        level(10_000, 100) + level(1_000, 10) + level(10_000, 100),
        level(10_000, 1) + level(1_000, 400),
        level(100, 1_000, tokens=2_000) + level(10, 400, tokens=2_000),  # too few steps
    ],
    ids=["less than half", "faster", "a short drop", "slow from the start", "few steps"],
)
def test_other_changes_give_no_warning(speeds: list[tuple[float, int]]) -> None:
    assert run(speeds) == []


@pytest.mark.parametrize("seed", range(5))
def test_batches_of_different_lengths_give_no_warning(seed: int) -> None:
    """Short batches have a quarter of the tokens and, because of fixed costs, half the speed; pools come in any order."""
    draw = random.Random(seed)
    pools = [[draw.choice([(10_000.0, 4000), (7_000.0, 2000), (5_000.0, 1000)]) for _ in range(32)] for _ in range(60)]
    assert run(step for pool in pools for step in pool) == []
    slower = [(speed / 3, tokens) for pool in pools for speed, tokens in pool]
    assert len(run([*(step for pool in pools for step in pool), *slower])) == 1, (
        "the same batches at a third of the speed"
    )


def test_the_first_step_and_evaluations_do_not_count() -> None:
    watch = SpeedWatch(2)
    assert watch.check(stepped(1, 500.0, 1.0)) == [] and watch.speeds == []
    figures = {"perplexity": None, "bits_per_byte": None, "accuracy": None, "tokens": 9, "documents": None}
    evaluated = Evaluated(step=1, whole=False, weights=1, floor=None, loss=1.0, **figures)  # type: ignore[arg-type]
    assert watch.check(evaluated) == [] and watch.speeds == []


def test_a_single_thread_is_not_advised_again() -> None:
    (warned,) = run(level(10_000, 120) + level(4_000, 300), threads=1)
    assert "close other programs" in warned.text and "OMP_NUM_THREADS" not in warned.text
