"""Averaged weights: the formula, applying and removing them, state, frozen and sharded weights."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from helpers.tiny_models import assert_same, draw, tiny_model
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import VectorSettings
from lilliput.storage.state_format import put_together, take_apart
from lilliput.training.weight_averaging import Average


def disturb(model: nn.Module, seed: int) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += draw(*weight.shape, seed=seed)


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_holds(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def averaged(seed: int = 0, **changes: object) -> tuple[Transformer, Average]:
    """Return a model and its average after three steps."""
    model = tiny_model(seed=seed, **changes)  # type: ignore[arg-type]
    average = Average(model, 0.9)
    for step in (1, 2, 3):
        disturb(model, step)
        average.update(step)
    return model, average


def test_it_equals_its_formula_with_a_lower_decay_at_first() -> None:
    model = tiny_model()
    average, expected = Average(model, 0.9), copied(model)
    for step in range(1, 101):
        disturb(model, step)
        average.update(step)
        decay = min(0.9, (1 + step) / (10 + step))  # 2/11, 3/12, ... 0.9 from step 80 on
        assert (decay == 0.9) == (step >= 80)
        now = copied(model)
        expected = {name: decay * expected[name] + (1 - decay) * now[name] for name in expected}
    with average.applied():
        for name, weight in model.named_parameters():
            assert_same(weight.detach(), expected[name])


def test_the_model_gets_its_own_weights_back_also_after_an_exception() -> None:
    model, average = averaged()
    own = copied(model)
    addresses = {name: weight.data_ptr() for name, weight in model.named_parameters()}
    with average.applied():
        applied = copied(model)
        assert not torch.equal(applied["head.project.weight"], own["head.project.weight"])
    assert_holds(model, own)
    with pytest.raises(RuntimeError, match="in the middle"), average.applied():
        raise RuntimeError("in the middle")
    assert_holds(model, own)
    with average.applied():
        assert_holds(model, applied)
    assert addresses == {name: weight.data_ptr() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("inside", [False, True])
def test_a_resumed_average_is_bit_identical(inside: bool) -> None:
    """The model of a checkpoint is the average; its state, taken inside or outside the context, has the model's own weights."""

    def keep() -> tuple[str, dict[str, Tensor]]:
        skeleton, tensors = take_apart(average.state_dict())
        return json.dumps(skeleton), {name: tensor.clone() for name, tensor in tensors.items()}

    model, average = averaged(tied=True)
    with average.applied():
        saved, state = copied(model), keep()
    if not inside:
        state = keep()
    other = tiny_model(seed=5, tied=True)
    another = Average(other, 0.9)
    other.load_state_dict(saved)
    another.load_state_dict(put_together(json.loads(state[0]), state[1]))
    assert_holds(other, copied(model))
    for step in (4, 5):
        for trained, its_average in ((model, average), (other, another)):
            disturb(trained, step)
            its_average.update(step)
    assert_holds(other, copied(model))
    with average.applied(), another.applied():
        assert_holds(other, copied(model))


def test_frozen_weights_are_not_copied() -> None:
    model, average = averaged(vectors=VectorSettings(width=9))
    assert not model.embedding.table.weight.requires_grad
    assert average.others.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    address = model.embedding.table.weight.data_ptr()
    with average.applied():
        assert model.embedding.table.weight.data_ptr() == address


def test_applied_weights_cannot_be_applied_again_or_updated() -> None:
    model, average = averaged()
    own = copied(model)
    with average.applied():
        with pytest.raises(AssertionError, match="already"), average.applied():
            pass
        with pytest.raises(AssertionError, match="does not hold its own"):
            average.update(4)
    assert_holds(model, own)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_sharded_weights_have_the_same_average() -> None:
    mesh = init_device_mesh("cpu", (1,))

    class Two(nn.Module):
        def __init__(self, sharded: bool) -> None:
            super().__init__()
            for name, shape, place in (("a", (6, 4), Shard(0)), ("b", (5,), Replicate())):
                weight = draw(*shape)
                setattr(self, name, nn.Parameter(distribute_tensor(weight, mesh, [place]) if sharded else weight))

    def train(sharded: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model = Two(sharded)
        average = Average(model, 0.9)
        for step in (1, 2):
            with torch.no_grad():
                for weight in model.parameters():
                    weight *= 1.5
            average.update(step)
        with average.applied():
            applied = {name: whole(weight) for name, weight in model.named_parameters()}
        return applied, {name: whole(weight) for name, weight in model.named_parameters()}

    def whole(weight: Tensor) -> Tensor:
        return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()

    for sharded, plain in zip(train(True), train(False), strict=True):
        assert all(torch.equal(sharded[name], plain[name]) for name in plain)
