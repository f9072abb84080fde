"""The engine without a cache against the model itself, and that it is what it claims to be: everything read again."""

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
def test_any_operations_are_the_model(case: dict[str, Any]) -> None:
    done = check_operations(UncachedEngine, tiny_model(**case), seed=VARIANTS.index(case), number=25)
    assert not done["refused"]  # a window forgets nothing that is read again


def test_every_token_is_read_again_at_every_step() -> None:
    model, read = tiny_model(), list[tuple[int, ...]]()
    model.embedding.register_forward_hook(lambda module, inputs, output: read.append(tuple(inputs[0].shape)))
    _, rows = UncachedEngine(model).prefill([[1, 2, 3], [4]])
    rows.step([[5], [6]])
    rows.step([[7], [8, 9]])
    assert read == [(2, 3), (2, 4), (2, 5)]
    assert rows.lengths == [5, 4] and rows.nbytes == 0


def test_the_head_is_for_the_last_token_only() -> None:
    model, read = tiny_model(), list[int]()
    model.head.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].shape[1]))
    _, rows = UncachedEngine(model).prefill([[1, 2, 3], [4]])
    rows.step([[5], [6]])
    assert read == [1, 1]


@pytest.mark.parametrize("strategy", [GREEDY, Strategy(sample=True)], ids=["greedy", "drawn"])
def test_texts_are_those_of_the_torch_engine(strategy: Strategy) -> None:
    """Beyond the context, too: the view slides, and is read anew by both."""
    model = tiny_model(window=(5, None), positions="rotary")
    asked = [Request(draw_ids(3 + row, seed=row).tolist(), 40, strategy, seed=row) for row in range(3)]
    texts = [
        [(written.row, written.id) for written in stream(engine, asked)]
        for engine in (TorchEngine(model), UncachedEngine(model))
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 120


def test_a_step_must_give_every_row_a_token() -> None:
    _, rows = UncachedEngine(tiny_model()).prefill([[1], [2]])
    for ids in ([[1]], [[1], []]):
        with pytest.raises(AssertionError, match="every row"):
            rows.step(ids)


def test_it_is_chosen_by_name_and_has_no_weights_of_one_byte() -> None:
    model = tiny_model().to(torch.float32)
    engine, note = choose_engine(model, GenerateSettings(engine="uncached"))
    assert isinstance(engine, UncachedEngine) and note is None
    error = refused(lambda: choose_engine(model, GenerateSettings(engine="uncached", quantise="int8")))
    assert (error.code, error.setting) == ("setting.conflict", "generate.quantise")
