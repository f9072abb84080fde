"""Recomputation changes only the saved tensors: gradients are equal bit for bit, with dropout on."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from helpers.small_runs import assert_equal_tensors, small_config, timeless, train_small
from helpers.tiny_models import VARIANTS, assert_same, draw, draw_ids, gradients, name_variant, tiny_model
from lilliput.errors import UserError
from lilliput.kernels.openmp import find_openmp_parallel
from lilliput.kernels.training_attention import attend_compiled
from lilliput.model import attention, recompute
from lilliput.model.attention import Capture, PassState
from lilliput.model.recompute import measure_kept, run_recomputed, use_compile, use_recompute
from lilliput.model.transformer import Part, Transformer

KINDS = ("block", "feed-forward")
POS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, -1], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
DOC = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 3, 0], [1] * 9])
STATE = PassState(draw_ids(1, 1), True, None, None, None, None)  # for parts that do not use it

Learned = dict[str, Tensor]


def learn(model: Transformer, precision: torch.dtype | None = None, micro_batches: int = 2) -> Learned:
    """Return outputs, gradients summed over micro-batches of packed rows, and the final random state."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    found: Learned = {}
    for number in range(micro_batches):
        with torch.autocast("cpu", precision, enabled=precision is not None):
            found[f"output {number}"] = out = model(draw_ids(2, 9, seed=number), POS, DOC)
        out.float().square().sum().backward()
    return found | gradients(model) | {"random state": torch.get_rng_state()}


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", VARIANTS, ids=name_variant)
def test_gradients_equal_the_plain_pass(case: dict[str, Any], kind: Any, every: int) -> None:
    model = tiny_model(dropout=0.2, **case).train()
    plain = learn(model)
    use_recompute(model, kind, every)
    assert_equal_tensors(learn(model), plain)
    use_recompute(model, None, 1)
    assert_equal_tensors(learn(model), plain)


def compiled_model(monkeypatch: pytest.MonkeyPatch, **case: Any) -> tuple[Transformer, list[float]]:
    """Return a model that uses compiled attention and dropout, in float32, and the list of its calls of attention."""
    calls: list[float] = []

    def recorded(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, dropout: float) -> Tensor:
        calls.append(dropout)
        return attend_compiled(q, k, v, starts, dropout)

    monkeypatch.setattr(attention, "attend_compiled", recorded)
    return tiny_model(dropout=0.2, **(case | {"head_dim": 16})).train().float(), calls


@pytest.mark.skipif(find_openmp_parallel() is None, reason="torch's OpenMP library was not found")
@pytest.mark.parametrize("case", VARIANTS[:8], ids=name_variant)
def test_gradients_of_compiled_dropout(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed and plain gradients have the same masks; so have those of torch's checkpointing."""
    model, calls = compiled_model(monkeypatch, **case)
    plain = learn(model)
    assert calls == [0.2] * 2 * len(model.blocks)
    for kind in KINDS:
        use_recompute(model, kind, 1)  # type: ignore[arg-type]
        assert_equal_tensors(learn(model), plain)
    use_recompute(model, None, 1)
    for block in model.blocks:
        block.run_block = lambda part, x, state: checkpoint(part, x, state, use_reentrant=False)
    del calls[:]
    assert_equal_tensors(learn(model), plain)
    assert calls == [0.2] * 4 * len(model.blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_an_encoder(kind: Any) -> None:
    model = tiny_model(task="classifier", classes=3, classifier_hidden=8, dropout=0.2, window=4).train()
    plain = learn(model)
    use_recompute(model, kind, 1)
    assert_equal_tensors(learn(model), plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", VARIANTS[:4], ids=name_variant)
def test_gradients_under_autocast(case: dict[str, Any], kind: Any) -> None:
    """The backward pass runs outside of autocast, the recomputation inside."""
    model = tiny_model(dropout=0.2, **case).train().float()
    plain, single = learn(model, torch.bfloat16), learn(model)
    assert not all(torch.equal(plain[name], single[name]) for name in plain)  # autocast has an effect
    use_recompute(model, kind, 1)
    assert_equal_tensors(learn(model, torch.bfloat16), plain)


def test_gradients_equal_torch_checkpointing() -> None:
    model = tiny_model(dropout=0.2).train()
    use_recompute(model, "block", 1)
    ours = learn(model)
    use_recompute(model, None, 1)
    for block in model.blocks:
        block.run_block = lambda part, x, state: checkpoint(part, x, state, use_reentrant=False)
    assert_equal_tensors(learn(model), ours)


@pytest.mark.parametrize("kind", KINDS)
def test_training_run_equals_the_plain_run(kind: str, tmp_path: Path) -> None:
    shape = {"model__layers": "3", "model__dropout": "0.1", "train__accumulate": "2", "train__steps": "4"}
    runs = {
        name: train_small(
            small_config(tmp_path, name, **shape, train__recompute=setting, train__recompute_every=every)
        )[0]
        for name, setting, every in (("plain", "none", "1"), ("again", kind, "1"), ("second", kind, "2"))
    }
    logs = {name: timeless(run) for name, run in runs.items()}
    assert logs["again"] == logs["second"] == logs["plain"]
    kept = {name: run.last.load_model() for name, run in runs.items() if run.last is not None}
    assert_equal_tensors(kept["again"], kept["plain"])
    assert_equal_tensors(kept["second"], kept["plain"])


# Saved tensors.


def test_only_the_input_of_a_block_is_saved() -> None:
    model, ids = tiny_model(positions=None, final_norm=False, layers=4), draw_ids(3, 8)
    stream = 3 * 8 * 16 * 8
    everything = measure_kept(model, lambda: model(ids))
    use_recompute(model, "block", 1)
    ends = ids.nbytes + stream  # saved by the embedding and the head
    assert measure_kept(model, lambda: model(ids)) == ends + 4 * stream
    assert everything > 3 * (ends + 4 * stream)
    one_block = (everything - ends) // 4
    use_recompute(model, "block", 2)
    assert measure_kept(model, lambda: model(ids)) == ends + 2 * stream + 2 * one_block
    use_recompute(model, "feed-forward", 1)
    assert ends + 4 * stream < measure_kept(model, lambda: model(ids)) < everything


@pytest.mark.skipif(find_openmp_parallel() is None, reason="torch's OpenMP library was not found")
def test_compiled_dropout_saves_neither_masks_nor_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = compiled_model(monkeypatch)
    plain, ids = tiny_model(head_dim=16).train().float(), draw_ids(3, 8)
    assert measure_kept(model, lambda: model(ids)) == measure_kept(plain, lambda: plain(ids))


@contextlib.contextmanager
def watched_stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[recompute.Stub]]]:
    """Collect all stubs, with the garbage collector off: unused stubs must be freed by reference counts alone."""
    made: list[weakref.ref[recompute.Stub]] = []

    class Watched(recompute.Stub):
        def __init__(self, segment: recompute.Segment, tensor: Tensor) -> None:
            super().__init__(segment, tensor)
            made.append(weakref.ref(self))

    monkeypatch.setattr(recompute, "Stub", Watched)
    gc.disable()
    try:
        yield made
    finally:
        gc.enable()


def waiting(made: list[weakref.ref[recompute.Stub]]) -> list[recompute.Stub]:
    """Return the live stubs whose tensors were recomputed and not used yet."""
    stubs = [stub for ref in made if (stub := ref()) is not None and stub.tensor is not None]
    assert not any(stub.tensor.requires_grad for stub in stubs if stub.tensor is not None)  # no graph refers to them
    return stubs


def test_one_segment_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(dropout=0.2, layers=4).train()
    use_recompute(model, "block", 1)
    segments_with_tensors = []

    def look(_: Tensor) -> None:
        segments_with_tensors.append(len({id(stub.segment) for stub in waiting(made)}))

    with watched_stubs(monkeypatch) as made:
        for block in model.blocks:
            block.register_forward_hook(lambda _, __, out: out.register_hook(look) and None)
            block.attention.register_forward_hook(lambda _, __, out: out.register_hook(look) and None)
        model(draw_ids(2, 9)).sum().backward()
        # At the end of a block there are no tensors, in its middle those of its attention, and none of other blocks.
        assert segments_with_tensors == [0, 1] * 4
        assert made and not [ref for ref in made if ref() is not None]


def test_retained_graph_keeps_stubs_without_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    use_recompute(model, "block", 1)
    with watched_stubs(monkeypatch) as made:
        loss = model(draw_ids(2, 9)).sum()
        loss.backward(retain_graph=True)
        assert all(ref() is not None for ref in made) and not waiting(made)
    assert loss.requires_grad


def test_deleted_graph_frees_stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    use_recompute(model, "block", 1)
    with watched_stubs(monkeypatch) as made:
        out = model(draw_ids(2, 9))
        assert all(ref() is not None for ref in made)
        del out
        assert not [ref for ref in made if ref() is not None]


def test_last_product_is_not_recomputed() -> None:
    model = tiny_model()
    use_recompute(model, "block", 1)
    begun, done = [], []
    down = model.blocks[1].feed_forward.inner.down
    down.register_forward_pre_hook(lambda *_: begun.append(1))
    down.register_forward_hook(lambda *_: done.append(1))
    model(draw_ids(2, 9)).sum().backward()
    assert (len(begun), len(done)) == (2, 1)


# Passes without recomputation.


def test_no_stubs_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny_model(), draw_ids(2, 9)
    expected = model(ids)
    use_recompute(model, "block", 1)
    with watched_stubs(monkeypatch) as made:
        with torch.no_grad():
            assert torch.equal(model(ids), expected)
        with torch.inference_mode():
            assert torch.equal(model(ids), expected)
        assert not made


def test_cache_and_capture_are_filled_once() -> None:
    model, ids = tiny_model(), draw_ids(2, 9)
    use_recompute(model, "block", 1)
    capture, cache = Capture(), model.new_cache(2)
    model(ids, capture=capture).sum().backward()
    assert {layer: len(weights) for layer, weights in capture.weights.items()} == {0: 1, 1: 1, 2: 1}
    model(ids, cache=cache).sum().backward()
    assert cache.length == 9


# Unusual backward passes.


def test_second_backward_pass() -> None:
    model, ids = tiny_model(dropout=0.2).train(), draw_ids(2, 9)
    twice = []
    for kind in (None, "block"):
        use_recompute(model, kind, 1)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        loss = model(ids).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        twice.append(gradients(model))
    assert_equal_tensors(twice[1], twice[0])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("kind", KINDS)
def test_backward_pass_through_part_of_the_graph(kind: Any) -> None:
    """First for the weights of one layer, then for all."""
    model, ids = tiny_model(dropout=0.2).train(), draw_ids(2, 9)
    some, everything = list(model.blocks[1].parameters()), list(model.parameters())
    found = []
    for chosen in (None, kind):
        use_recompute(model, chosen, 1)
        torch.manual_seed(0)
        loss = model(ids).square().sum()
        found.append([*torch.autograd.grad(loss, some, retain_graph=True), *torch.autograd.grad(loss, everything)])
    for actual, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(actual, expected)


def scale_by(weight: Tensor) -> Part:
    return lambda x, state: (x * weight).sin() * nn.functional.dropout(x, 0.5)


def test_nested_segments() -> None:
    x, weight = draw(4, 5).requires_grad_(), draw(5, seed=1).requires_grad_()
    inner = scale_by(weight)

    def nested(x: Tensor, state: PassState) -> Tensor:
        return inner(run_recomputed(inner, inner(x, state), state), state).exp()

    def deep(x: Tensor, state: PassState) -> Tensor:
        return run_recomputed(nested, x.tanh(), state) * weight

    def straight(x: Tensor, state: PassState) -> Tensor:
        return inner(inner(inner(x.tanh(), state), state), state).exp() * weight

    found = []
    for part in (straight, lambda x, state: run_recomputed(deep, x, state)):
        torch.manual_seed(0)
        found.append(torch.autograd.grad(part(x, STATE).sum(), (x, weight)))
    for actual, expected in zip(found[1], found[0], strict=True):
        assert torch.equal(actual, expected)


def test_input_without_gradient() -> None:
    x, weight = draw(4, 5), draw(5, seed=1).requires_grad_()
    torch.manual_seed(0)
    (expected,) = torch.autograd.grad(scale_by(weight)(x, STATE).sum(), weight)
    torch.manual_seed(0)
    (found,) = torch.autograd.grad(run_recomputed(scale_by(weight), x, STATE).sum(), weight)
    assert torch.equal(found, expected)


def test_exception_during_recomputation_restores_state() -> None:
    x, weight, failing = draw(4, 5).requires_grad_(), draw(5, seed=1).requires_grad_(), [False]

    def part(x: Tensor, state: PassState) -> Tensor:
        y = scale_by(weight)(x, state)
        if failing[0]:
            raise KeyboardInterrupt
        return y.exp()

    torch.manual_seed(0)
    expected = torch.autograd.grad(part(x, STATE).sum(), (x, weight))
    torch.manual_seed(0)
    loss, failing[0] = run_recomputed(part, x, STATE).sum(), True
    state = torch.get_rng_state()
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            torch.autograd.grad(loss, (x, weight), retain_graph=True)
        assert not torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert x.sin().grad_fn is not None and kept_by_hooks(x) == 0
    failing[0] = False
    for actual, wanted in zip(torch.autograd.grad(loss, (x, weight)), expected, strict=True):
        assert torch.equal(actual, wanted)


def kept_by_hooks(x: Tensor) -> int:
    """Return 0 if no hooks are active: then autograd saves the tensor itself."""
    return int(x.sin().grad_fn._saved_self is not x)  # type: ignore[union-attr]


# Errors.


def changing(*parts: Part) -> Part:
    """Return a part that is a different one at each run."""
    turns = iter(parts)
    return lambda x, state: next(turns)(x, state)


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (lambda x, state: x.sin(), "2 tensors were saved, now 1"),
        (lambda x, state: x[:2].sin().exp(), r"\(4, 5\).* was saved, now \(\(2, 5\)"),
        (lambda x, state: x.float().sin().exp(), "float64.* was saved, now .*float32"),
    ],
    ids=["fewer", "another shape", "another dtype"],
)
def test_different_recomputation_is_an_error(again: Part, message: str) -> None:
    x = draw(4, 5).requires_grad_()
    out = run_recomputed(changing(lambda x, state: x.sin().exp(), again), x, STATE)
    with pytest.raises(RuntimeError, match=f"recomputation differs.*{message}"):
        out.sum().backward()


def test_changed_weight_is_an_error() -> None:
    model = tiny_model()
    use_recompute(model, "block", 1)
    out = model(draw_ids(2, 9)).sum()
    with torch.no_grad():
        model.blocks[0].feed_forward.inner.up.weight += 1.0
    with pytest.raises(RuntimeError, match="weights or training mode changed"):
        out.backward()


def test_changed_input_is_an_error() -> None:
    x = draw(4, 5).requires_grad_()
    stream = x * 2.0
    out = run_recomputed(lambda x, state: x.sin(), stream, STATE).sum()
    stream.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


# Compiled.


@pytest.mark.filterwarnings("ignore::Warning:torch")  # torch warns about its own modules
def test_compiled_blocks_have_equal_gradients() -> None:
    """Plain and compiled differ by rounding; compiled and recomputed are equal, with dropout on."""
    ids = draw_ids(2, 9)
    model = tiny_model(layers=2)
    expected, names = learn(model), list(model.state_dict())
    with torch.no_grad():
        first = model(ids, cache=model.new_cache(2))
    use_compile(model)
    assert list(model.state_dict()) == names
    found = learn(model)
    for name, tensor in expected.items():
        assert_same(found[name], tensor, 1e-10)
    with torch.no_grad():
        assert torch.equal(model(ids, cache=model.new_cache(2)), first)  # not compiled: bit for bit
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.2
    model.train()
    plain = learn(model)
    assert not torch.equal(plain["output 0"], found["output 0"])
    for kind in KINDS:
        use_recompute(model, kind, 1)  # type: ignore[arg-type]
        assert_equal_tensors(learn(model), plain)


def test_broken_torch_compile_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler\nand much more")

    monkeypatch.setattr(torch, "compile", lambda function: broken)
    with pytest.raises(UserError) as caught:
        use_compile(tiny_model())
    error = caught.value
    assert (error.code, error.setting) == ("device.missing", "train.compile")
    assert "no compiler" in error.what and "much more" not in error.what


# With DDP and FSDP2, in two processes, which run this file as a program.


def shard(model: Transformer) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=True)
    return fully_shard(model)


def replicate(model: Transformer) -> nn.Module:
    return DistributedDataParallel(model)


def compare_in_a_group(rank: int, folder: str) -> None:
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        for distribute in (replicate, shard):
            for kind in KINDS:
                found = []
                for chosen in (None, kind):
                    model = tiny_model(dropout=0.2, tied=True).train()
                    use_recompute(model, chosen, 1)  # type: ignore[arg-type]
                    outer = distribute(model)
                    torch.manual_seed(rank)
                    for seed in range(2):
                        outer(draw_ids(2, 9, seed=2 * seed + rank)).square().sum().backward()
                    local = {name: getattr(grad, "_local_tensor", grad) for name, grad in gradients(model).items()}
                    found.append(local)
                assert_equal_tensors(found[1], found[0])
                print(f"{distribute.__name__} {kind}: equal", flush=True)
    finally:
        torch.distributed.destroy_process_group()


def test_ddp_and_fsdp2_in_two_processes() -> None:
    paths = [str(Path(recompute.__file__).parents[2]), str(Path(__file__).parents[1])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, rank, folder], env=environment, text=True, stdout=subprocess.PIPE
            )
            for rank in "01"
        ]
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    expected = [f"{name} {kind}: equal" for name in ("replicate", "shard") for kind in KINDS]
    assert [output.splitlines() for output in outputs] == [expected, expected]


if __name__ == "__main__":
    compare_in_a_group(int(sys.argv[1]), sys.argv[2])
