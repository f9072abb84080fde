"""AttentionMaps: labels of tokens, checks of arrays, masks, and tensors of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from helpers.user_errors import refused
from lilliput.interpret import AttentionMaps, attention_of
from lilliput.interpret.attention_maps import label
from lilliput.model.attention_mask import visible


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the", "·the"),
        ("a b", "a·b"),
        ("\n", "↵"),
        ("\r\n\t", "␍↵→"),
        ("ü日🐝$<|endoftext|>", "ü日🐝$<|endoftext|>"),
        ("\u200b", "<200B>"),
        ("\u00a0", "<00A0>"),
        ("\0", "<0000>"),
        ("", "<empty>"),
    ],
)
def test_labels_show_invisible_characters(token: str, shown: str) -> None:
    assert label(token) == shown


def even(count: int, heads: int = 2) -> np.ndarray:
    return np.full((heads, count, count), 1.0 / count)


@pytest.mark.parametrize(
    ("parts", "code", "facts"),
    [
        ({"tokens": [], "weights": [even(3)]}, "attention.weights", []),
        ({"weights": []}, "attention.weights", []),
        ({"weights": [even(4)]}, "attention.weights", ["layer 0", "(2, 4, 4)", "(heads, 3, 3)"]),
        ({"weights": [even(3)[0]]}, "attention.weights", ["layer 0", "(3, 3)", "(heads, 3, 3)"]),
        ({"layers": [4, 7, 9]}, "attention.weights", ["`layers`", "2", "(got 3)"]),
        ({"heads": [1]}, "attention.weights", ["layer 0", "`heads`", "2", "(got 1)"]),
        ({"ids": [1]}, "attention.weights", ["`ids`", "3", "(got 1)"]),
        ({"visible": [np.ones((3, 3), bool)] * 3}, "attention.weights", ["`visible`", "3", "2"]),
        ({"visible": [np.ones((2, 3), bool)]}, "attention.weights", ["`visible`", "layer 0", "(2, 3)"]),
        ({"visible": [np.tri(3, dtype=bool)]}, "attention.weights", ["layer 0", "mask"]),
        ({"padding": np.array([False, False, True])}, "attention.weights", ["layer 0", "mask"]),
        ({"padding": np.array([True])}, "attention.weights", ["`padding`", "(1,)", "(3,)"]),
        ({"weights": [even(3), even(3) * 9], "layers": [5, 6]}, "attention.weights", ["layer 6", "between 0 and 1"]),
        ({"weights": [even(3) * np.nan]}, "attention.weights", ["layer 0", "between 0 and 1"]),
        ({"weights": [even(3), even(3) * 1.2]}, "attention.weights", ["layer 1", "sum"]),
        ({"layers": [4, 4]}, "attention.selection", ["layer", "4, 4"]),
        ({"heads": [1, 1]}, "attention.selection", ["head", "1, 1"]),
        ({"prompt": 4}, "attention.weights", ["`prompt`", "4", "3"]),
    ],
)
def test_invalid_arrays_are_an_error(parts: dict[str, Any], code: str, facts: list[str]) -> None:
    arguments = {"tokens": ["a", "b", "c"], "weights": [even(3), even(3)]} | parts
    error = refused(lambda: AttentionMaps(**arguments))
    assert error.code == code and all(fact in error.what for fact in facts)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 2, (1, None)])
def test_masks_equal_those_of_the_model(causal: bool, window: Any) -> None:
    padding = [False, False, False, False, True]
    real = torch.tensor([[1, 1, 1, 1, 0]])
    pos = torch.tensor([[0, 1, 2, 3, -1]])
    windows = window if isinstance(window, tuple) else (window, window)
    masks = [visible(pos, pos, real, real, causal, one)[0].numpy() for one in windows]
    weights = [mask / np.maximum(1, mask.sum(axis=1, keepdims=True)) for mask in masks]
    found = attention_of(list("abcd."), [one[None, None] for one in weights], causal, window, padding)
    for place, mask in enumerate(masks):
        assert np.array_equal(found.mask(place), mask)
        assert np.array_equal(found.weights[place][0], weights[place])


def test_tensors_of_any_dtype_and_arrays() -> None:
    graph = torch.softmax(torch.zeros(1, 2, 3, 3, requires_grad=True), dim=-1)
    for weights in (graph, graph[0].bfloat16(), graph.detach().double(), graph.detach().numpy()):
        found = attention_of(["a", "b", "a"], [weights])
        assert np.allclose(found.weights[0], 1 / 3, atol=1e-2)
    assert found.kinds.tolist() == [0, 1, 0]
    error = refused(lambda: attention_of(["a", "b", "a"], [torch.cat((graph, graph))]))
    assert error.code == "attention.weights" and "2" in error.what
