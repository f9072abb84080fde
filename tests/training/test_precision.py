"""Mixed precision: losses and gradients close to those of float32, and the loss scale of float16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.small_runs import abandon, assert_equal_tensors, small_config, timeless, train_small
from helpers.tiny_models import VARIANTS, draw_ids, gradients, name_variant, tiny_model
from helpers.user_errors import refused
from lilliput.evaluation.evaluate import evaluate
from lilliput.model.language_loss import Nats, language_loss
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import VectorSettings
from lilliput.training.events import Evaluated, Stepped
from lilliput.training.precision import FIRST_SCALE, PATIENCE, Precision, build_precision

CPU = torch.device("cpu")
# Half a unit in the last place of 8 and 11 bits. A forward pass of 3 layers rounds about twenty times.
ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
HALVES = pytest.mark.parametrize("dtype", list(ROUNDING), ids=["bfloat16", "float16"])


def packed_loss(model: Transformer, precision: Precision) -> Nats:
    """Return the loss of two rows: two documents with padding, and a single document."""
    ids = draw_ids(2, 12)
    doc = torch.tensor([[1] * 5 + [2] * 5 + [0] * 2, [1] * 12])
    pos = torch.tensor([[*range(5), *range(5), -1, -1], [*range(12)]])
    targets = ids.roll(-1, dims=1).where(doc != 0, -100)
    with precision.casting():
        return language_loss(model, ids, targets, pos, doc)


def gradient_of(loss: Tensor, model: Transformer) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients(model)


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the relative distance of two gradients."""
    difference = math.fsum((found[name] - grad).double().square().sum().item() for name, grad in wanted.items())
    return math.sqrt(difference / math.fsum(grad.double().square().sum().item() for grad in wanted.values()))


# The gradient of relu is not continuous, and rounding switches units on or off: its variants are compared with gelu instead.
SMOOTH = [case | {"feed_forward": "gelu"} for case in VARIANTS if case["feed_forward"] == "relu"]


@HALVES
@pytest.mark.parametrize("case", [*VARIANTS, *SMOOTH], ids=name_variant)
def test_every_variant_is_close_to_float32(case: dict[str, Any], dtype: torch.dtype) -> None:
    model = tiny_model(**case).float()
    exact, rounded = packed_loss(model, Precision(CPU, torch.float32)), packed_loss(model, Precision(CPU, dtype))
    assert rounded.goal.dtype is rounded.nats.dtype is torch.float32
    assert rounded.goal.item() != exact.goal.item()  # it did compute in 16 bits
    assert rounded.goal.item() == pytest.approx(exact.goal.item(), rel=2 * ROUNDING[dtype])
    wanted, found = gradient_of(exact.goal, model), gradient_of(rounded.goal, model)
    assert found.keys() == wanted.keys()
    assert all(grad.dtype is torch.float32 and torch.isfinite(grad).all() for grad in found.values())
    if case["feed_forward"] != "relu":
        assert distance(found, wanted) < 50 * ROUNDING[dtype]


@HALVES
@pytest.mark.parametrize("task", ["classifier", "both"])
def test_label_logits_are_float32(task: str, dtype: torch.dtype) -> None:
    model = tiny_model(task=task, classes=3).float()
    ids = draw_ids(4, 12)
    exact = label_logits(model, ids)
    with Precision(CPU, dtype).casting():
        rounded = label_logits(model, ids)
    assert rounded.dtype is torch.float32 and not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.0, atol=40 * ROUNDING[dtype])


def label_logits(model: Transformer, ids: Tensor) -> Tensor:
    now = model.begin(ids, None, None)
    head = model.head.label if model.settings.task == "both" else model.head  # type: ignore[union-attr]
    logits: Tensor = head(model.trunk(ids, now), now)
    return logits


def test_the_residual_stream_is_always_float32() -> None:
    """Also where it starts with a product, the projection of word vectors."""
    vectors = VectorSettings(source="x.vec", width=8, frozen=False)
    model = tiny_model(vectors=vectors, qk_norm=True).float()
    seen: list[torch.dtype] = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, out: seen.extend((inputs[0].dtype, out.dtype)))
    packed_loss(model, Precision(CPU, torch.bfloat16))
    assert set(seen) == {torch.float32}


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_float32_and_float64_are_not_cast(name: str) -> None:
    precision = build_precision(name, CPU)
    with precision.casting():
        assert not torch.is_autocast_enabled("cpu")
    assert precision.weights_dtype is precision.dtype is getattr(torch, name)
    assert precision.scale == 1.0 and precision.note is None
    assert precision.accept(torch.tensor(math.inf))  # the loop raises the error
    assert precision.scale == 1.0


def test_bfloat16_needs_no_scale() -> None:
    precision = Precision(CPU, torch.bfloat16)
    assert precision.weights_dtype is torch.float32
    assert precision.accept(torch.tensor(math.nan)) and precision.scale == 1.0


def learn(model: Transformer, precision: Precision, steps: int, spoil: int | None = None) -> list[float | None]:
    """Return the losses of steps on one batch, None for skipped steps; the gradient of step `spoil` overflows."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float | None] = []
    for step in range(steps):
        loss = packed_loss(model, precision).goal / 22
        optimizer.zero_grad()
        (loss * precision.scale * (1e38 if step == spoil else 1.0)).backward()  # type: ignore[no-untyped-call]
        for weight in model.parameters():
            assert weight.grad is not None
            weight.grad /= precision.scale
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
        accepted = precision.accept(norm)
        losses.append(loss.item() if accepted else None)
        if accepted:
            assert torch.isfinite(norm)
            optimizer.step()
    return losses


@HALVES
def test_it_memorises_one_batch(dtype: torch.dtype) -> None:
    losses = learn(tiny_model(qk_norm=True).float(), Precision(CPU, dtype), 120)
    made = [loss for loss in losses if loss is not None]
    assert made[0] > 2.5 and made[-1] < 0.5 and len(made) >= 110


def test_an_overflow_is_skipped_and_the_run_recovers() -> None:
    model, precision = tiny_model().float(), Precision(CPU, torch.float16)
    precision.scale = 1024.0
    losses = learn(model, precision, 60, spoil=30)
    assert [step for step, loss in enumerate(losses) if loss is None] == [30]
    assert precision.scale == 512.0 and precision.good == 29
    first, before, after, last = losses[0], losses[29], losses[31], losses[59]
    assert first is not None and before is not None and after is not None and last is not None
    assert after == pytest.approx(before, abs=0.2) and last < before < first


def test_the_scale_halves_after_an_overflow_and_doubles_after_patience() -> None:
    precision, fine, overflowed = Precision(CPU, torch.float16), torch.tensor(1.0), torch.tensor(math.inf)
    assert precision.scale == FIRST_SCALE == 65536.0
    assert not precision.accept(overflowed) and not precision.accept(torch.tensor(math.nan))
    assert precision.scale == FIRST_SCALE / 4
    assert all(precision.accept(fine) for _ in range(PATIENCE - 1)) and precision.scale == FIRST_SCALE / 4
    assert precision.accept(fine) and precision.scale == FIRST_SCALE / 2
    precision.accept(fine)
    again = Precision(CPU, torch.float16)
    again.load_state_dict(precision.state_dict())
    assert (again.scale, again.good) == (FIRST_SCALE / 2, 1)


def test_the_scale_does_not_fall_below_one() -> None:
    precision, overflowed = Precision(CPU, torch.float16), torch.tensor(math.inf)
    assert [precision.accept(overflowed) for _ in range(18)] == [False] * 16 + [True] * 2
    assert precision.scale == 1.0


# ---- whole runs


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_16_bit_run_is_close_to_a_32_bit_run(name: str, tmp_path: Path) -> None:
    """In training and evaluation losses; its saved weights are float32."""
    _, exactly = train_small(small_config(tmp_path, "exact", train__precision="float32"))
    rounded, roughly = train_small(small_config(tmp_path, "rounded", train__precision=name))
    for wanted, found in zip(exactly, roughly, strict=True):
        assert type(found) is type(wanted)
        if isinstance(wanted, Stepped | Evaluated) and isinstance(found, Stepped | Evaluated):
            assert found.loss == pytest.approx(wanted.loss, rel=0.01) and found.loss != wanted.loss
    assert rounded.last is not None
    assert {tensor.dtype for tensor in rounded.last.load_model().values()} == {torch.float32}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_16_bit_run_is_evaluated_in_32_bits(name: str, tmp_path: Path) -> None:
    """Its logged loss equals that of an evaluation of its checkpoint."""
    run, events = train_small(small_config(tmp_path, train__precision=name))
    logged = next(event for event in events if isinstance(event, Evaluated) and event.whole)
    found = evaluate(run.folder)
    assert found["tokens"] == logged.tokens
    assert found["loss"] == pytest.approx(logged.loss, rel=1e-6)  # float32 sums in other batches


def test_a_resumed_run_restores_its_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first scale is too large: the first steps are skipped and logged as skipped."""
    monkeypatch.setattr("lilliput.training.precision.FIRST_SCALE", 2.0**20)
    whole, events = train_small(small_config(tmp_path, "whole", train__precision="float16"))
    skipped = [event.step for event in events if isinstance(event, Stepped) and event.skipped]
    assert skipped and skipped == [*range(1, len(skipped) + 1)] and len(skipped) < 8
    assert next(line["gradient_norm"] for line in whole.metrics() if line["event"] == "step") is None
    config = small_config(tmp_path, "left", train__precision="float16")
    assert abandon(config, after=7)
    run, _ = train_small(config, resume=True)
    assert run.last is not None and whole.last is not None
    assert_equal_tensors(run.last.load_model(), whole.last.load_model())
    assert timeless(run) == timeless(whole)


def test_a_type_that_the_device_lacks_is_an_error() -> None:
    assert "float64" in refused(lambda: build_precision("float64", torch.device("mps"))).what
