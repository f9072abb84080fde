"""Round trips of states through tensors and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.tiny_models import draw_ids, tiny_model
from lilliput.storage.state_format import describe_machine, put_together, random_seed, take_apart

tensors = st.integers(0, 3).map(lambda n: torch.arange(n, dtype=torch.float64))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9) | tensors
keys = st.integers(0, 9) | st.text("abc:", min_size=1, max_size=3)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@given(state=st.dictionaries(st.text("abcdef", min_size=1), states, max_size=4))
def test_round_trip_of_any_state(state: dict[str, Any]) -> None:
    skeleton, found = take_apart(state)
    assert same(put_together(json.loads(json.dumps(skeleton)), found), state)


def test_a_string_like_the_name_of_a_tensor_stays_a_string() -> None:
    state = {"a": torch.ones(2), "b": "tensor:a", "c": {"tensor": "a"}, "d": {"dict": [1], "tuple": 2}}
    skeleton, found = take_apart(state)
    assert list(found) == ["a"]
    assert same(put_together(skeleton, found), state)


def test_colliding_names_are_errors() -> None:
    with pytest.raises(AssertionError, match="two tensors"):
        take_apart({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}})


def test_values_outside_json_are_errors() -> None:
    with pytest.raises(AssertionError, match=r"x\.y.*JSON"):
        take_apart({"x": {"y": object()}})


def test_an_optimizer_resumes_bit_for_bit() -> None:
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(draw_ids(2, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    one, two = tiny_model(), tiny_model()
    first = torch.optim.AdamW(one.parameters(), lr=1e-2, betas=(0.9, 0.95), fused=True)
    for _ in range(3):
        step(one, first)
    skeleton, found = take_apart(first.state_dict())
    skeleton, found = json.loads(json.dumps(skeleton)), {name: tensor.clone() for name, tensor in found.items()}
    two.load_state_dict(one.state_dict())
    second = torch.optim.AdamW(two.parameters(), lr=1.0, fused=True)
    second.load_state_dict(put_together(skeleton, found))
    for _ in range(3):
        step(one, first)
        step(two, second)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_seeds_of_dropout_are_all_different_and_accepted() -> None:
    """Also if seed and step are swapped: another seed must not give the masks of another step."""
    seeds = {
        random_seed(*parts)
        for parts in [
            (s, n, m, r) for s in (0, 1, 2, 3, 2**32 - 1) for n in range(40) for m in range(5) for r in range(4)
        ]
    }
    assert len(seeds) == 5 * 40 * 5 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.Generator().manual_seed(max(seeds))
    assert random_seed(1, 2, 3, 4) == random_seed(1, 2, 3, 4)


def test_the_machine_is_described_in_json() -> None:
    described = describe_machine(3, torch.device("cpu"), torch.bfloat16)
    assert json.loads(json.dumps(described)) == described
    assert described["threads"] == torch.get_num_threads()
    assert described["torch"] == torch.__version__
    assert described["processes"] == 3
    assert (described["device"], described["precision"]) == ("cpu", "bfloat16")
