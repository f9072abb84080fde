"""What any model must bring, what is refused, and how tokens are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lilliput.errors import UserError
from lilliput.interpret import Attention, attention_of
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
def test_what_cannot_be_seen_is_shown(token: str, shown: str) -> None:
    assert label(token) == shown


def even(count: int, heads: int = 2) -> np.ndarray:
    return np.full((heads, count, count), 1.0 / count)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"tokens": [], "weights": [even(3)]}, "there is no attention to show"),
        ({"weights": []}, "there is no attention to show"),
        ({"weights": [even(4)]}, r"layer 0 has the shape (2, 4, 4), and (heads, 3, 3) is needed"),
        ({"weights": [even(3)[0]]}, r"layer 0 has the shape (3, 3), and (heads, 3, 3) is needed"),
        ({"layers": [4, 7, 9]}, "there are 3 layers, and 2 are needed"),
        ({"heads": [1]}, "layer 0 has 2 heads, and 1 are named"),
        ({"ids": [1]}, "there are 1 ids, and 3 are needed"),
        ({"visible": [np.ones((3, 3), bool)] * 3}, "`visible` has 3 masks for 2 layers"),
        ({"visible": [np.ones((2, 3), bool)]}, "`visible` of layer 0 has the shape (2, 3), and (3, 3) is needed"),
        ({"visible": [np.tri(3, dtype=bool)]}, "layer 0 looks at what it may not see"),
        ({"padding": np.array([False, False, True])}, "layer 0 looks at what it may not see"),
        ({"padding": np.array([True])}, "`padding` has the shape (1,), and (3,) is needed"),
        ({"weights": [even(3), even(3) * 9], "layers": [5, 6]}, "layer 6 has weights that are not between 0 and 1"),
        ({"weights": [even(3) * np.nan]}, "layer 0 has weights that are not between 0 and 1"),
        ({"weights": [even(3), even(3) * 1.2]}, "layer 1 has rows whose weights sum to more than 1"),
        ({"layers": [4, 4]}, "a layer is named twice: 4, 4"),
        ({"heads": [1, 1]}, "a head is named twice: 1, 1"),
        ({"prompt": 4}, "`prompt` is 4, of 3 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as raised:
        Attention(**({"tokens": ["a", "b", "c"], "weights": [even(3), even(3)]} | parts))
    assert told in raised.value.what


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 2, (1, None)])
def test_sight_is_the_models_own_predicate(causal: bool, window: Any) -> None:
    padding = [False, False, False, False, True]
    real = torch.tensor([[1, 1, 1, 1, 0]])
    pos = torch.tensor([[0, 1, 2, 3, -1]])
    windows = window if isinstance(window, tuple) else (window, window)
    sights = [visible(pos, pos, real, real, causal, one)[0].numpy() for one in windows]
    weights = [sight / np.maximum(1, sight.sum(axis=1, keepdims=True)) for sight in sights]
    found = attention_of(list("abcd."), [one[None, None] for one in weights], causal, window, padding)
    for place, sight in enumerate(sights):
        assert np.array_equal(found.sight(place), sight)
        assert np.array_equal(found.weights[place][0], weights[place])


def test_tensors_of_any_kind_are_taken() -> None:
    graph = torch.softmax(torch.zeros(1, 2, 3, 3, requires_grad=True), dim=-1)
    for weights in (graph, graph[0].bfloat16(), graph.detach().double(), graph.detach().numpy()):
        found = attention_of(["a", "b", "a"], [weights])
        assert np.allclose(found.weights[0], 1 / 3, atol=1e-2)
    assert found.kinds.tolist() == [0, 1, 0]
    with pytest.raises(UserError, match="there are 2 texts in one batch"):
        attention_of(["a", "b", "a"], [torch.cat((graph, graph))])
