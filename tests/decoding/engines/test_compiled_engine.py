"""The numba engine compared with the model for all variants; equal logits in any batch, bit for bit."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.engine_operations import check_operations
from helpers.tiny_models import VARIANTS, assert_same, draw_ids, name_variant, tiny_model, tiny_settings
from lilliput.decoding.engines.compiled_engine import NumbaEngine
from lilliput.decoding.engines.compiled_weights import refusal
from lilliput.decoding.engines.selection import choose_engine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.errors import UserError
from lilliput.kernels.decoding_pass.compiled_function import MachineCode
from lilliput.kernels.decoding_pass.layout import CHUNK
from lilliput.kernels.machine_load import MachineLoad, machine_load
from lilliput.model.transformer import Transformer, build_model
from lilliput.settings.tree import GenerateSettings, VectorSettings

ROUNDING = 1e-5  # of float32 logits of size one
# An odd width of heads that are together the widest vector of a pass.
WIDE = {"head_dim": 37, "positions": "sinusoidal", "norm": "layer-unbiased", "norm_placement": "post"}


def half_as_precise(model: Transformer) -> Transformer:
    return copy.deepcopy(model).float()


def builder(threads: int) -> Callable[[Transformer], NumbaEngine]:
    return lambda model: NumbaEngine(half_as_precise(model), threads)


@pytest.mark.parametrize("case", [*VARIANTS, WIDE], ids=name_variant)
def test_any_operations_equal_the_model_without_cache(case: dict[str, Any]) -> None:
    """Float32 with cache against float64 without: prefill, steps of one and several tokens, and moved rows."""
    done = check_operations(builder(1), tiny_model(**case), seed=3, number=40, tolerance=ROUNDING)
    assert done.keys() >= {"step", "steps", "reorder", "truncate", "join", "pick", "prefill"}


@pytest.mark.parametrize("window", [4, (3, None), (20, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_any_operations_on_ring_buffers_that_have_wrapped(window: Any, seed: int) -> None:
    """Contexts longer than a window and a pass: truncating to overwritten keys is an error, and they are never read."""
    model = tiny_model(context=120, window=window, positions="rotary", layers=2)
    done = check_operations(builder(1), model, seed, number=120, tolerance=2 * ROUNDING)
    assert done["truncate"] and done["join"]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    """Token by token, with pauses in which worker threads sleep, and growing memory and tables."""
    for case in VARIANTS[::5]:
        model = half_as_precise(tiny_model(context=90, **case))
        views = [draw_ids(n, seed=n).tolist() for n in (1, 70, 9, 3, 12, 2, 5)]
        one, several = NumbaEngine(model, 1), NumbaEngine(model, threads)
        (expected, rows), (logits, others) = one.prefill(views), several.prefill(views)
        assert torch.equal(logits, expected)
        for step in range(12):
            if step % 5 == 4:
                time.sleep(0.05)
            new = [[(step + row) % 17] for row in range(len(views))]
            assert torch.equal(others.step(new), rows.step(new))


class ChangingLoad(MachineLoad):
    """Another number of undisturbed threads at each pass."""

    def __init__(self) -> None:
        super().__init__(lambda: None, cpus=3)
        self.counts = itertools.cycle([3, 1, 1, 2, 3, 3, 2, 1, 3, 2])

    def undisturbed(self, threads: int) -> int:
        return next(self.counts)


def test_fewer_threads_on_a_busy_machine_do_not_change_a_bit() -> None:
    """Also after pauses in which worker threads sleep, and when memory and tables grow."""
    model = half_as_precise(tiny_model(context=90))
    views = [draw_ids(n, seed=n).tolist() for n in (1, 70, 9, 3, 12, 2, 5)]
    one, several = NumbaEngine(model, 1), NumbaEngine(model, 3)
    several.team.load = ChangingLoad()
    (expected, rows), (logits, others) = one.prefill(views), several.prefill(views)
    assert torch.equal(logits, expected)
    seen = set()
    for step in range(20):
        if step % 7 == 6:
            time.sleep(0.05)
        new = [[(step + row) % 17] for row in range(len(views))]
        assert torch.equal(others.step(new), rows.step(new))
        seen.add(several.team.active)
    assert seen == {1, 2, 3}


def test_a_given_number_of_threads_is_kept_on_a_busy_machine() -> None:
    model = half_as_precise(tiny_model())
    assert NumbaEngine(model, 2).team.load is None
    assert NumbaEngine(model).team.load is machine_load()


@pytest.mark.parametrize("quantise", [None, "int8"])
def test_a_row_is_the_same_in_any_batch_bit_for_bit(quantise: Any) -> None:
    """Alone and with up to twelve others, which covers every tile size; read at once and token by token."""
    model = half_as_precise(tiny_model(dim=48, heads=4, hidden=40, context=80, vocab_size=50, feed_forward="swiglu"))
    engine = NumbaEngine(model, 1, quantise)
    views = [draw_ids(n, seed=n, vocab_size=50).tolist() for n in (1, 75, 9, 3, 40, 33, 2, 21, 8, 64, 5, 7, 11)]
    alone = [engine.prefill([view])[0][0] for view in views]
    for rows in range(2, len(views) + 1):
        logits, _ = engine.prefill(views[:rows])
        assert all(torch.equal(logits[row], alone[row]) for row in range(rows))
    for rows in range(1, len(views) + 1):
        _, held = engine.prefill([view[:-1] or [0] for view in views[:rows]])
        logits = held.step([view[-1:] for view in views[:rows]])
        assert all(torch.equal(logits[row], alone[row]) for row in range(1, rows))
    _, slowly = engine.prefill([views[4][:1]])
    for id_ in views[4][1:]:
        logits = slowly.step([[id_]])
    assert torch.equal(logits[0], alone[4])


def test_texts_of_several_passes_and_windows() -> None:
    """Texts longer than a pass and many times longer than a window."""
    model = tiny_model(context=3 * CHUNK + 7, window=(5, None, 40), positions="learned")
    engine, text = builder(2)(model), draw_ids(3 * CHUNK + 7).tolist()
    logits, rows = engine.prefill([text[:-4]])
    for at in range(len(text) - 4, len(text)):
        assert_same(logits.double(), model(torch.tensor([text[:at]]))[:, -1], ROUNDING)
        logits = rows.step([[text[at]]])
    assert_same(logits.double(), model(torch.tensor([text]))[:, -1], ROUNDING)


def rounded(weight: Tensor) -> Tensor:
    """Return the values of weights quantised to int8 with a scale per output."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scale).round() * scale


@pytest.mark.parametrize("case", [*VARIANTS[::3], WIDE], ids=name_variant)
def test_int8_weights_are_the_rounded_weights(case: dict[str, Any]) -> None:
    """Compared with a model of rounded matrices: only the 16-bit activations differ."""
    model = tiny_model(**case)
    views = [draw_ids(n, seed=n).tolist() for n in (1, 20, 9, 3)]
    engine = NumbaEngine(half_as_precise(model), 1, "int8")
    embedded = model.embedding(torch.arange(17)).clone()
    with torch.no_grad():
        head = rounded(model.head.project.weight)
        for module in model.blocks.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(rounded(module.weight))
        model.head.project.weight = torch.nn.Parameter(head)  # a tied embedding is not rounded
    assert torch.equal(model.embedding(torch.arange(17)), embedded)
    logits, _ = engine.prefill(views)
    for row, view in enumerate(views):
        assert_same(logits[row].double(), model(torch.tensor([view]))[0, -1], 2e-3)
    assert engine.packed.bytes.nbytes > sum(weight.numel() for weight in model.blocks.parameters()) / 2


def test_pretrained_vectors_and_both_tasks_are_supported() -> None:
    for model in (
        tiny_model(vectors=VectorSettings(width=10, scaled=True, frozen=False)),
        tiny_model(task="both", classes=3),
    ):
        logits, _ = builder(1)(model).prefill([[1, 2, 3]])
        assert_same(logits.double(), model(torch.tensor([[1, 2, 3]]))[:, -1], ROUNDING)


def test_rows_share_the_memory_of_a_common_prefix() -> None:
    engine = builder(1)(tiny_model(layers=2))
    _, rows = engine.prefill([[1, 2, 3, 4, 5]])
    alone = rows.nbytes
    assert alone == 5 * 2 * 2 * 4 * 8 * 4  # tokens, layers, keys and values, heads, padded head dim, bytes
    rows.reorder([0] * 6)
    assert rows.nbytes == alone
    rows.step([[token] for token in range(6)])
    assert rows.nbytes == alone + 6 * alone // 5


def test_a_window_bounds_the_memory() -> None:
    engine = builder(1)(tiny_model(context=400, window=8))
    _, rows = engine.prefill([[1]])
    for _ in range(399):
        rows.step([[2]])
    assert rows.nbytes <= (8 + CHUNK) * 3 * 2 * 4 * 8 * 4
    assert engine.slots.memory.nbytes <= 4 * (8 + CHUNK) * 3 * 2 * 4 * 8 * 4


def test_handles_and_slots_are_released() -> None:
    engine = builder(1)(tiny_model())
    for _ in range(50):
        _, rows = engine.prefill([[1, 2, 3]] * 4)
        rows.reorder([2, 2, 1])
        other = rows.pick([0, 1])
        rows.join(other)
        rows.step([[5]] * 5)
    size, lines = engine.slots.memory.nbytes, len(engine.slots.held)
    del rows, other
    gc.collect()
    assert sorted(engine.slots.free_handles) == list(range(lines))
    for _ in range(200):
        engine.prefill([[1, 2, 3]] * 5)
    assert (engine.slots.memory.nbytes, len(engine.slots.held)) == (size, lines)


def test_worker_threads_end_with_their_engine() -> None:
    before = set(threading.enumerate())  # threads of an earlier test's engine may end meanwhile
    engine = builder(3)(tiny_model())
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    engine.prefill([[1, 2]])
    del engine
    gc.collect()
    for worker in workers:
        worker.join(timeout=120)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("views", [[[1] * 25], [[17]], [[-1]], [[10**10]]])
def test_ids_and_lengths_out_of_bounds_raise_before_compiled_code_runs(views: list[list[int]]) -> None:
    with pytest.raises(IndexError, match="exceeds"):
        builder(1)(tiny_model()).prefill(views)


def test_a_ring_buffer_records_what_it_has_overwritten() -> None:
    """Truncated twice: the second length seems available only if the first is taken for the longest the row ever had."""
    engine = builder(1)(tiny_model(context=90, window=8, layers=1))
    _, rows = engine.prefill([draw_ids(45).tolist()])
    rows.truncate(13)
    other = rows.pick([0])
    for held in (rows, other):
        with pytest.raises(ValueError, match="prefill again"):
            held.truncate(8)


def test_shorter_rows_stay_when_the_others_are_truncated() -> None:
    model = tiny_model()
    _, rows = builder(1)(model).prefill([[1, 2, 3, 4], [5, 6]])
    rows.truncate(3)
    assert rows.lengths == [3, 2]
    logits = rows.step([[7], [8]])
    for row, text in enumerate(([1, 2, 3, 7], [5, 6, 8])):
        assert_same(logits[row].double(), model(torch.tensor([text]))[0, -1], ROUNDING)


class Stopped(BaseException):
    """Like KeyboardInterrupt: not an Exception."""


def test_an_interrupted_pass_restores_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the workers have started: the next pass uses a new team, and the rows are unchanged."""
    engine, text = builder(2)(tiny_model()), [1, 2, 3, 4, 5]
    expected, rows = engine.prefill([text])
    before, old = threading.active_count(), engine.team

    run = MachineCode.run

    def stop(self: MachineCode, numbers: int, seen: int, part: int, parts: int) -> int:
        if part == 0:
            raise Stopped
        return run(self, numbers, seen, part, parts)

    with monkeypatch.context() as patch:
        patch.setattr(MachineCode, "run", stop)
        with pytest.raises(Stopped):
            rows.step([[6, 7]])
    assert rows.lengths == [5]
    assert torch.equal(engine.prefill([text])[0], expected)
    assert engine.team is not old
    assert torch.equal(rows.step([[6]]), engine.prefill([[*text, 6]])[0])
    deadline = time.monotonic() + 120
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before, "a thread of the old team still waits"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_team_of_its_own() -> None:
    engine = builder(2)(tiny_model())
    expected, _ = engine.prefill([[1, 2, 3]])
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(engine.prefill([[1, 2, 3]])[0], expected) else 1)
    deadline = time.monotonic() + 120
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended and os.waitstatus_to_exitcode(status) == 0


def test_unsupported_models() -> None:
    model = tiny_model()
    assert refusal(model) == "the model is in float64, not float32"
    assert refusal(model.float()) is None
    classifier = build_model(tiny_settings(task="classifier", classes=2), seed=1)
    assert refusal(classifier) == "a classifier does not generate text"
    assert refusal(build_model(tiny_settings(), device="meta")) == "the model is on meta"
    with torch.no_grad():
        model.norm.weight[3] = float("nan")
    assert refusal(model) == "some weights of the model are not finite"


def test_the_choice_of_the_engine() -> None:
    double, single = tiny_model(), half_as_precise(tiny_model())
    engine, note = choose_engine(double, GenerateSettings())
    assert isinstance(engine, TorchEngine) and note == "torch engine: the model is in float64, not float32"
    engine, note = choose_engine(single, GenerateSettings())
    assert isinstance(engine, NumbaEngine) and engine.packed.plan.quantised == 0
    engine, note = choose_engine(single, GenerateSettings(quantise="int8"))
    assert isinstance(engine, NumbaEngine) and engine.packed.plan.quantised == 1 and note is None
    assert isinstance(choose_engine(single, GenerateSettings(engine="torch"))[0], TorchEngine)
    for settings in (GenerateSettings(engine="numba"), GenerateSettings(quantise="int8")):
        with pytest.raises(UserError) as found:
            choose_engine(double, settings)
        assert (found.value.code, found.value.setting) == ("model.unsupported", "generate.engine")
    with pytest.raises(UserError) as found:
        choose_engine(single, GenerateSettings(engine="torch", quantise="int8"))
    assert (found.value.code, found.value.setting) == ("setting.conflict", "generate.quantise")
