"""The torch engine compared with the model without cache; its work is counted, because times are noisy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.engine_operations import check_operations, uncached
from helpers.tiny_models import VARIANTS, assert_same, draw_ids, name_variant, tiny_model
from lilliput.decoding.engines import torch_engine as eager
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.model import attention
from lilliput.model.attention import Capture
from lilliput.model.attention_mask import Visibility
from lilliput.model.kv_cache import LayerCache


class Work:
    """(rows, tokens, keys, whether there was a mask) of each call of attention, and the number of storage moves."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int, bool]] = []
        self.moves = 0

    def take(self) -> set[tuple[int, int, int, bool]]:
        calls, self.calls = set(self.calls), []
        return calls


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    found, attend, use = Work(), attention.attend, LayerCache.use

    def watched(q: Tensor, k: Tensor, v: Tensor, sight: Visibility, dropout: float, learns: bool) -> Tensor:
        found.calls.append((len(q), q.shape[2], k.shape[2], sight.mask is not None))
        return attend(q, k, v, sight, dropout, learns)

    def moved(layer: LayerCache, held: Tensor) -> None:
        found.moves += 1
        use(layer, held)

    monkeypatch.setattr(attention, "attend", watched)
    monkeypatch.setattr(LayerCache, "use", moved)
    return found


def texts_of(*lengths: int) -> list[list[int]]:
    return [draw_ids(length, seed=length).tolist() for length in lengths]


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_any_operations_equal_the_model_without_cache(case: dict[str, Any]) -> None:
    check_operations(TorchEngine, tiny_model(**case), seed=VARIANTS.index(case), number=40)


def test_the_random_operations_cover_all_kinds() -> None:
    done: Counter[str] = Counter()
    for seed in range(3):
        done += check_operations(TorchEngine, tiny_model(window=(4, None), layers=2), seed, number=40)
    assert set(done) == {"step", "steps", "reorder", "truncate", "refused", "join", "pick", "prefill"}
    assert min(done.values()) > 3


@pytest.mark.parametrize("window", [1, 2, 5, (5, None)])
def test_a_window_with_unequal_texts_that_join_and_leave(window: Any) -> None:
    """Texts much longer than the window, in unequal and single steps: no key is dropped too early or seen too late."""
    model = tiny_model(window=window, context=64, positions="rotary", kv_heads=2)
    engine, texts = TorchEngine(model), texts_of(17, 2, 6)
    _, rows = engine.prefill(texts)
    for at in range(18):
        if at == 6:
            late = texts_of(1, 9)
            rows.join(engine.prefill(late)[1])
            texts += late
        if at == 12:
            rows.reorder([3, 4, 1])
            texts = [texts[3], texts[4], texts[1]]
        new = [draw_ids(1 + (row + at) % 4 if at % 3 else 1, seed=100 * at + row).tolist() for row in range(len(texts))]
        texts = [[*text, *ids] for text, ids in zip(texts, new, strict=True)]
        assert_same(rows.step(new), uncached(model, texts))


def test_rows_of_unequal_lengths_are_truncated() -> None:
    model, texts = tiny_model(), texts_of(9, 4, 6)
    _, rows = TorchEngine(model).prefill(texts)
    rows.truncate(5)
    assert rows.lengths == [5, 4, 5]
    assert_same(rows.step([[1], [2], [3]]), uncached(model, [[*text[:5], row + 1] for row, text in enumerate(texts)]))


def test_a_step_requires_a_token_for_every_row() -> None:
    _, rows = TorchEngine(tiny_model()).prefill([[1], [2]])
    for ids in ([[1]], [[1], []]):
        with pytest.raises(AssertionError, match="every row"):
            rows.step(ids)


# Amount of work.


def test_no_mask_where_none_is_needed(work: Work) -> None:
    """Neither for texts of equal length, nor for the prefill of unequal ones, nor when all are equal again."""
    engine = TorchEngine(tiny_model(context=64))
    _, rows = engine.prefill(texts_of(7, 3, 5))
    assert work.take() == {(3, 7, 7, False)}
    rows.step([[1], [2], [3]])
    assert work.take() == {(3, 1, 8, True)}
    rows.step([[1], [2] * 5, [3] * 3])
    assert work.take() == {(3, 5, 9, True)}
    assert rows.lengths == [9, 9, 9]
    rows.step([[1], [2], [3]])
    assert work.take() == {(3, 1, 10, False)}


def test_a_long_row_costs_nothing_after_it_has_left(work: Work) -> None:
    engine = TorchEngine(tiny_model(context=64))
    _, rows = engine.prefill(texts_of(40, 4))
    rows.join(engine.prefill([[1, 2, 3, 4]])[1])
    work.take()
    rows.step([[1], [2], [3]])
    assert work.take() == {(3, 1, 41, True)}
    rows.reorder([1, 2])
    rows.step([[1], [2]])
    assert work.take() == {(2, 1, 6, False)}


def test_rows_longer_than_their_window_need_no_mask(work: Work) -> None:
    _, rows = TorchEngine(tiny_model(window=5, context=64)).prefill(texts_of(12, 3))
    work.take()
    masks = []
    for _ in range(4):
        rows.step([[1], [2]])
        ((_, _, keys, masked),) = work.take()
        assert keys == 5
        masks.append(masked)
    assert masks == [True, False, False, False]  # 4 tokens are shorter than the window, 5 are not


@pytest.mark.parametrize("window", [None, 64])
def test_the_cost_of_a_token_is_constant(window: int | None, work: Work) -> None:
    """Every token reads only the keys that it can see, and storage is moved a few times in total."""
    engine = TorchEngine(
        tiny_model(window=window, context=1024, layers=1, dim=8, heads=2, kv_heads=1, positions="rotary")
    )
    _, rows = engine.prefill(texts_of(8))
    for at in range(9, 1011):
        rows.step([[at % 17]])
        assert work.calls[-1] == (1, 1, at if window is None else min(at, window), False)
    assert work.moves == 1 + (8 if window is None else 4)  # created; then 8, 16, ... 1,024 or the window
    assert rows.nbytes == (1024 if window is None else 64) * 2 * 4 * 8


def test_rows_that_join_and_leave_move_no_storage(work: Work) -> None:
    """Continuous batching: a row that joins reuses the storage of one that left."""
    engine = TorchEngine(tiny_model(context=64, layers=1))
    _, rows = engine.prefill(texts_of(9, 9, 9, 9))
    rows.step([[1]] * 4)
    work.moves = 0
    for at in range(5):
        held = rows.cache.layers[0].held
        rows.reorder([place for place in range(4) if place != at % 4])
        rows.join(engine.prefill(texts_of(9))[1])
        rows.step([[1]] * 4)
        assert rows.cache.layers[0].held is held
    assert work.moves == 2 * 5  # the five new rows: created and filled


def test_a_small_pass_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads is restored, also after a pass that failed."""
    model, threads = tiny_model(), []
    model.embedding.register_forward_hook(lambda module, inputs, output: threads.append(torch.get_num_threads()))
    engine, had = TorchEngine(model), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _, rows = engine.prefill([[1, 2, 3]])
        assert torch.get_num_threads() == 2
        monkeypatch.setattr(eager, "FEW_PRODUCTS", 2 * engine.weights)
        rows.step([[4]])
        rows.step([[4, 5]])
        with pytest.raises(IndexError):
            rows.step([[17]])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(had)
    assert threads == [1, 1, 2]


# Captured attention.


def test_captured_weights_are_ordered_by_row_and_position() -> None:
    """Also if the cache has another order of rows and a ring buffer for a window."""
    model, capture = tiny_model(window=(4, None), positions="rotary", context=64), Capture()
    _, rows = TorchEngine(model, capture).prefill(texts_of(11, 9, 7))
    rows.reorder([2, 0])
    assert rows.where != [0, 1]
    texts = [texts_of(7)[0], texts_of(11)[0]]
    for new in ([[1], [2]], [[3, 4, 5], [6]]):
        rows.step(new)
        texts = [[*text, *ids] for text, ids in zip(texts, new, strict=True)]
        for row, text in enumerate(texts):
            alone, count = Capture(), len(new[row])
            model(torch.tensor([text]), capture=alone)
            for layer in range(3):
                weights = capture.weights[layer][-1][row, :, :count]  # (H, T, K)
                whole = alone.weights[layer][0][0, :, -count:]
                assert_same(weights[weights > 0], whole[whole > 0])  # in order, zeros left out
