"""The prefix cache returns the logits of the engine alone, and reads fewer tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from helpers.engine_operations import check_operations, uncached
from helpers.tiny_models import VARIANTS, assert_same, draw_ids, name_variant, tiny_model
from lilliput.decoding.engines.torch_engine import TorchEngine, TorchRows
from lilliput.decoding.prefix_cache import PrefixCache, shared_length
from lilliput.decoding.processors import Strategy
from lilliput.decoding.requests import Request
from lilliput.decoding.stream import stream
from lilliput.model.transformer import Transformer

SYSTEM = draw_ids(10, seed=1).tolist()


class Reading:
    """The number of tokens that the inner engine reads, by call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens: list[int] = []
        step = TorchRows.step

        def counted(rows: TorchRows, ids: Any) -> torch.Tensor:
            self.tokens.append(sum(map(len, ids)))
            return step(rows, ids)

        monkeypatch.setattr(TorchRows, "step", counted)

    def take(self) -> int:
        tokens, self.tokens = sum(self.tokens), []
        return tokens


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


def caching(model: Transformer, min_length: int = 4, max_texts: int = 8, max_bytes: int = 2**20) -> PrefixCache:
    return PrefixCache(TorchEngine(model), max_texts, max_bytes, min_length)


def check(engine: PrefixCache, model: Transformer, views: list[list[int]]) -> None:
    """Compare the logits after the views, and after one or two more tokens."""
    logits, rows = engine.prefill(views)
    assert_same(logits, uncached(model, views))
    assert list(rows.lengths) == [len(view) for view in views]
    new = [[place % 17, 3][: 1 + place % 2] for place in range(len(views))]
    assert_same(rows.step(new), uncached(model, [[*view, *ids] for view, ids in zip(views, new, strict=True)]))


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_logits_equal_those_without_cache(case: dict[str, Any]) -> None:
    """Texts with many shared prefixes, over several calls; windows that can and cannot be truncated."""
    model = tiny_model(**case)
    engine, draw = caching(model, min_length=2, max_texts=4), random.Random(VARIANTS.index(case))
    stems = [draw_ids(n, seed=n).tolist() for n in (12, 7, 3)]
    for _ in range(6):
        views = []
        for _ in range(draw.randint(1, 5)):
            stem = draw.choice(stems)
            tail = [draw.randrange(3) for _ in range(draw.randint(0, 5))]
            views.append([*stem[: draw.randint(1, len(stem))], *tail])
        check(engine, model, views)


@pytest.mark.parametrize("case", [{}, {"window": (3, None), "positions": "rotary"}], ids=["full", "windowed"])
def test_any_operations_on_cached_rows(case: dict[str, Any]) -> None:
    check_operations(lambda model: caching(model, min_length=1), tiny_model(**case), seed=5)


@pytest.mark.parametrize("window", [None, 4])
def test_a_shared_prefix_is_read_once(window: int | None, reading: Reading) -> None:
    model = tiny_model(window=window)
    views = [[*SYSTEM, *draw_ids(1 + n % 3, seed=20 + n).tolist()] for n in range(32)]
    engine = caching(model)
    logits, _ = engine.prefill(views)
    assert reading.take() == 10 + sum(len(view) - 10 for view in views)
    assert_same(logits, uncached(model, views))
    others = [[*SYSTEM, 16, n] for n in range(3)]
    logits, _ = engine.prefill(others)
    assert reading.take() == 6  # also in the next call, and with a window, because the prefix was read separately
    assert_same(logits, uncached(model, others))


def test_two_shared_prefixes_in_one_call(reading: Reading) -> None:
    model, other = tiny_model(), draw_ids(7, seed=2).tolist()
    views = [[*SYSTEM, 1], [*other, 1], [5, 6], [*SYSTEM, 2], [*other, 2, 3]]
    assert_same(caching(model).prefill(views)[0], uncached(model, views))
    assert reading.take() == 10 + 1 + 1 + 7 + 1 + 2 + 2


def test_of_a_longer_text_only_the_new_tokens_are_read(reading: Reading) -> None:
    model, text = tiny_model(), list(SYSTEM)
    engine = caching(model)
    for new in ([1, 2], [3], [4, 5, 6]):
        engine.prefill([text])
        reading.take()
        text += new
        assert_same(engine.prefill([text])[0], uncached(model, [text]))
        assert reading.take() == len(new)
    assert_same(engine.prefill([text])[0], uncached(model, [text]))
    assert reading.take() == 1  # the same text: its last token is read for the logits


def test_a_window_that_cannot_be_truncated_caches_the_prefix(reading: Reading) -> None:
    """One text at a time: the second cannot reuse the prefix and reads it separately; the third reuses it."""
    model = tiny_model(window=4)
    engine, read = caching(model), []
    for n in range(4):
        view = [*SYSTEM, n, 3, n, n]
        assert_same(engine.prefill([view])[0], uncached(model, [view]))
        read.append(reading.take())
    assert read == [14, 14, 4, 4]


def test_a_short_prefix_is_read_again(reading: Reading) -> None:
    engine = caching(tiny_model(), min_length=11)
    for view in ([*SYSTEM, 1], [*SYSTEM, 2], [*SYSTEM, 1, 2]):
        engine.prefill([view])
        assert reading.take() == (len(view) if view != [*SYSTEM, 1, 2] else 1)


def test_the_least_recently_used_text_is_dropped() -> None:
    engine = caching(tiny_model(), max_texts=2)
    one, two, three = ([n, *SYSTEM] for n in (1, 2, 3))
    engine.prefill([one])
    engine.prefill([two])
    engine.prefill([one])
    engine.prefill([three])
    assert list(engine.cached) == [tuple(one), tuple(three)]
    engine.prefill([[n, *SYSTEM] for n in range(9)])
    assert list(engine.cached) == [(7, *SYSTEM), (8, *SYSTEM)]


def test_memory_is_bounded_by_bytes() -> None:
    model = tiny_model()
    _, rows = TorchEngine(model).prefill([SYSTEM])
    engine = caching(model, max_bytes=2 * rows.nbytes)
    for n in range(5):
        engine.prefill([[n, *SYSTEM[1:]]])
        assert 0 < engine.nbytes <= 2 * rows.nbytes
    assert len(engine.cached) == 2
    nothing = caching(model, max_bytes=rows.nbytes - 1)
    check(nothing, model, [SYSTEM, [*SYSTEM, 1]])
    assert not nothing.cached


def test_generated_texts_equal_those_without_cache() -> None:
    """Twice, with texts longer than the context; generation does not change the cached rows."""
    sampling, model = Strategy(sample=True), tiny_model()
    requests = [Request([*SYSTEM, n], tokens=30, strategy=sampling, seed=n) for n in range(3)]
    engine = caching(model)
    expected = list(stream(TorchEngine(model), requests))
    for _ in range(2):
        for mine, other in zip(stream(engine, requests), expected, strict=True):
            assert (mine.row, mine.id) == (other.row, other.id)
            assert abs(mine.logprob - other.logprob) < 1e-12


def test_shared_length() -> None:
    assert [shared_length((1, 2, 3), other) for other in ((), (1, 2, 3), (1, 2), (1, 2, 4, 5), (0,))] == [0, 3, 2, 2, 0]
