"""Tests of the table of transformers classes: each holds the models of its row, and others are refused by setting."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers.exported_models import BY_CLASS, Case, case_name, cases, exact_model, random_ids
from helpers.tiny_models import tiny_model
from helpers.user_errors import refused
from lilliput.exporting.portability import choose_class
from lilliput.exporting.stock_classes import STOCK_CLASSES
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import VectorSettings

IN_DOUBLE = {"GPT-2": 1e-11, "OPT": 1e-11, "GPT-NeoX": 2e-6, "Starcoder2": 2e-6}  # rotary angles are float32 there


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_stock(model: Transformer, dtype: torch.dtype) -> Any:
    """Return the model as the stock class reads it; no tensor may be missing or left over."""
    from transformers import AutoConfig, AutoModelForCausalLM

    stock = choose_class(model)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(stock.model_type, **ids, **stock.config(model))
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    assert kind.__name__ == stock.architecture
    tensors = {name: tensor.contiguous().clone() for name, tensor in stock.tensors(model).items()}
    found, info = kind.from_pretrained(None, config=config, state_dict=tensors, output_loading_info=True, dtype=dtype)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return found.eval()


@torch.inference_mode()
def largest_difference(model: Transformer, other: Any) -> float:
    return max(float((model(ids) - other(ids).logits).abs().max()) for ids in random_ids(model))


@pytest.mark.parametrize(("name", "case"), cases(BY_CLASS), ids=case_name)
def test_logits_of_the_stock_class(name: str, case: Case) -> None:
    model = exact_model(case)
    assert choose_class(model).name == name
    assert largest_difference(model, load_stock(model, torch.float32)) < 1e-4
    if name in IN_DOUBLE:
        model.double()
        assert largest_difference(model, load_stock(model, torch.float64)) < IN_DOUBLE[name]


def test_every_class_and_every_part_of_its_row_is_tested() -> None:
    assert {stock.name for stock in STOCK_CLASSES} == BY_CLASS.keys()
    for stock in STOCK_CLASSES:
        models = [exact_model(case) for case in BY_CLASS[stock.name]]
        blocks: list[Any] = [model.blocks[0] for model in models]
        assert {type(model.positions) for model in models} == {*stock.positions}, stock.name
        assert {type(block.feed_forward.inner) for block in blocks} == {*stock.feed_forwards}, stock.name
        assert stock.norm_placement in {type(block.attention) for block in blocks}, stock.name


def test_greedy_decoding_with_a_cache_of_windows() -> None:
    model = exact_model(BY_CLASS["Qwen3"][0])
    other, ids = load_stock(model, torch.float32), torch.tensor([[3, 1, 4]])
    found = other.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=18, do_sample=False, eos_token_id=None
    )
    with torch.inference_mode():
        for _ in range(18):
            ids = torch.cat((ids, model(ids)[:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(found, ids)


@pytest.mark.parametrize("projection", [True, False])
def test_word_vectors_become_one_embedding(projection: bool) -> None:
    width = 10 if projection else 16
    vectors = VectorSettings(source="x", width=width, projection=projection, frozen=True, rows=4)
    model = tiny_model(1, vectors, norm="rms", positions="rotary").float()
    assert largest_difference(model, load_stock(model, torch.float32)) < 1e-4


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"norm_placement": "post"}, {"model.norm_placement"}),
        ({"norm": "rms", "norm_placement": "post"}, {"model.norm_placement"}),
        ({"norm": "rms", "bias_head": True}, {"model.bias_head"}),
        ({"norm": "rms", "soft_cap": 3.0}, {"model.soft_cap"}),
        ({"norm": "rms", "value_embeddings": "ends"}, {"model.value_embeddings"}),
        ({"norm": "rms", "final_norm": False}, {"model.final_norm"}),
        ({"norm": "rms", "qk_norm": True, "window": (3, 4, None)}, {"model.window"}),
        ({"norm": "layer-unbiased"}, {"model.norm"}),
        ({"norm": "layer", "positions": "learned", "head_dim": 6}, {"model.head_dim"}),
        ({"norm": "rms", "soft_cap": 3.0, "bias_head": True}, {"model.soft_cap", "model.bias_head"}),
        ({"norm": "rms", "task": "both", "classes": 2}, {"model.task"}),
    ],
    ids=str,
)
def test_a_refusal_names_the_settings(changes: Case, names: set[str]) -> None:
    error = refused(lambda: choose_class(tiny_model(**{"positions": "rotary"} | changes)))
    assert error.code == "export.unsupported" and error.setting in names
    assert all(f"{name} " in error.what and f"{name} to " in error.fix for name in names)


def test_the_settings_of_the_fix_make_the_model_portable() -> None:
    """Change what the error names, until nothing is refused."""
    changes: Case = {
        "norm": "layer-unbiased",
        "positions": "rotary",
        "soft_cap": 2.0,
        "bias_head": True,
        "qk_norm": True,
    }
    error = refused(lambda: choose_class(tiny_model(**changes)))
    values: dict[str, Any] = {"none": None, "true": True, "false": False}
    for part in error.fix.removeprefix("set ").partition(", and train")[0].split(", "):
        name, _, value = part.partition(" to ")
        value = value.partition(" or ")[0]
        changes[name.removeprefix("model.")] = values.get(value, value)
    choose_class(tiny_model(**changes))


def test_a_part_of_a_plugin_is_refused() -> None:
    model = exact_model(BY_CLASS["Apertus"][0])

    class ScaledNorm(type(model.norm)):  # type: ignore[misc]
        """A subclass of a supported part may compute anything."""

    model.norm.__class__ = ScaledNorm
    error = refused(lambda: choose_class(model))
    assert error.setting == "model.norm" and "ScaledNorm" in error.what
