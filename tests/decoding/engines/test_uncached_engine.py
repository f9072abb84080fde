"""The engine without cache compared with the model; it reads the whole text for every token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.engine_operations import check_operations
from helpers.tiny_models import VARIANTS, draw_ids, name_variant, tiny_model
from helpers.user_errors import refused
from lilliput.decoding.engines.selection import choose_engine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.engines.uncached_engine import UncachedEngine
from lilliput.decoding.processors import GREEDY, Strategy
from lilliput.decoding.requests import Request
from lilliput.decoding.stream import stream
from lilliput.settings.tree import GenerateSettings


@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_any_operations_equal_the_model(case: dict[str, Any]) -> None:
    done = check_operations(UncachedEngine, tiny_model(**case), seed=VARIANTS.index(case), number=25)
    assert not done["refused"]  # all keys are computed again, also with a window


def test_every_token_is_read_again_at_every_step() -> None:
    model, read = tiny_model(), list[tuple[int, ...]]()
    model.embedding.register_forward_hook(lambda module, inputs, output: read.append(tuple(inputs[0].shape)))
    _, rows = UncachedEngine(model).prefill([[1, 2, 3], [4]])
    rows.step([[5], [6]])
    rows.step([[7], [8, 9]])
    assert read == [(2, 3), (2, 4), (2, 5)]
    assert rows.lengths == [5, 4] and rows.nbytes == 0


def test_only_the_last_token_goes_through_the_head() -> None:
    model, read = tiny_model(), list[int]()
    model.head.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].shape[1]))
    _, rows = UncachedEngine(model).prefill([[1, 2, 3], [4]])
    rows.step([[5], [6]])
    assert read == [1, 1]


@pytest.mark.parametrize("strategy", [GREEDY, Strategy(sample=True)], ids=["greedy", "sampled"])
def test_texts_equal_those_of_the_torch_engine(strategy: Strategy) -> None:
    """Also for texts longer than the context."""
    model = tiny_model(window=(5, None), positions="rotary")
    requests = [Request(draw_ids(3 + row, seed=row).tolist(), 40, strategy, seed=row) for row in range(3)]
    texts = [
        [(token.row, token.id) for token in stream(engine, requests)]
        for engine in (TorchEngine(model), UncachedEngine(model))
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 120


def test_a_step_requires_a_token_for_every_row() -> None:
    _, rows = UncachedEngine(tiny_model()).prefill([[1], [2]])
    for ids in ([[1]], [[1], []]):
        with pytest.raises(AssertionError, match="every row"):
            rows.step(ids)


def test_it_is_selected_by_name_and_does_not_support_int8() -> None:
    model = tiny_model().to(torch.float32)
    engine, note = choose_engine(model, GenerateSettings(engine="uncached"))
    assert isinstance(engine, UncachedEngine) and note is None
    error = refused(lambda: choose_engine(model, GenerateSettings(engine="uncached", quantise="int8")))
    assert (error.code, error.setting) == ("setting.conflict", "generate.quantise")
