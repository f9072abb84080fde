"""The cost of training techniques, each compared with the same work without it, and checks of their equality.

    python benchmarks/techniques.py --json
    python benchmarks/techniques.py --only recompute,loss

accumulation: 1, 2, 4 and 8 micro-batches of equal size per step, on the storybook. Time per token: the same micro-batches in
    one process, order ABBA, median of 11 pairs. Loss at equal tokens (1,600 micro-batches) and at equal steps (200).
recompute: 12 layers with all activations kept, compared with recomputed blocks, feed-forwards or every second block, and with
    torch.utils.checkpoint. Activation bytes are those of saved tensors without weights. Time: one process, order ABBA.
dropout: a step of the default model with dropout 0.2 compared with no dropout: all compiled, with torch's dropout of embedding
    and residuals, and with torch's attention, too. Time: one process, order ABBA, median of 31 pairs. Activation bytes.
precision: a step in 16-bit floats (autocast) compared with float32, of a very small model: slow on processors without support.
compile: a step of compiled blocks compared with plain ones, and the seconds of the first step.
loss: chunked cross-entropy with a head of 50,257 tokens compared with torch's cross-entropy.

Memory is the peak of a separate process (VmHWM, Linux) minus its memory before the model was built. Except for accumulation,
which is whole runs, the allocator has its default settings: Lilliput's setting, which keeps freed memory, would distort the
result (3.7 GB instead of 1.3 GB for plain cross-entropy). "ours" is the technique, "peer" the work without it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from contest import THREADS, contest, median, row, show
from lilliput.devices import choose_device, prepare_machine
from lilliput.errors import UserError
from lilliput.model.heads import LanguageHead
from lilliput.model.language_loss import head_loss, language_loss
from lilliput.model.recompute import measure_kept, use_compile, use_recompute
from lilliput.model.transformer import Transformer, build_model
from lilliput.settings.loading import load_config
from lilliput.settings.tree import Config
from lilliput.training.events import Evaluated, Stepped
from lilliput.training.precision import build_precision
from lilliput.training.session import open_session

Metrics = dict[str, float]
Row = dict[str, Any]

MICRO_BATCHES = (1, 2, 4, 8)
PAIRS, LONGEST, UPDATES = 11, 8, 200
DEEP = {"dim": 192, "layers": 12, "heads": 6, "context": 256, "vocab_size": 2048}
WIDE = {"dim": 256, "layers": 4, "heads": 4, "context": 256, "vocab_size": 2048}
SMALL = {"dim": 64, "layers": 2, "heads": 2, "context": 64, "vocab_size": 256}
ROWS, ROUNDS = 8, 7
DROPOUT, DROPOUT_ROWS, DROPOUT_ROUNDS = 0.2, 16, 31
HEAD, STATES, WIDTH = 50_257, 2048, 256


# Shared by the sections.


def peak_memory() -> int:
    """Return the peak memory in bytes. (ru_maxrss of a child process begins with the value of its parent.)"""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


def settings(**changes: object) -> Config:
    return load_config(None, {name.replace("__", "."): str(value) for name, value in changes.items()})


def make_model(shape: dict[str, int], dropout: float = 0.0) -> Transformer:
    given = {f"model.{name}": str(value) for name, value in shape.items()}
    return build_model(load_config(None, given | {"model.dropout": str(dropout)}).model, seed=1)


def make_step(model: Transformer, rows: int = ROWS) -> Callable[[], float]:
    """Return a function that runs forward and backward as in training, keeps the gradients and returns the loss."""
    size, context = model.settings.vocab_size, model.settings.context
    assert size is not None
    text = torch.randint(size, (rows, context + 1), generator=torch.Generator().manual_seed(0))
    ids, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def step() -> float:
        model.zero_grad()
        loss = language_loss(model, ids, targets, None, None).goal / targets.numel()
        loss.backward()
        return loss.item()

    return step


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each work in each round, after one warm-up. The order is reversed every other round (ABBA)."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name in works if number % 2 else reversed(works):
            took = seconds(works[name])
            if number:
                found[name].append(took)
    return found


def ratio_of_pairs(ours: list[float], peer: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True))


# Accumulation.


@contextmanager
def storybook(folder: str, accumulate: int, steps: int, shape: dict[str, int], name: str) -> Iterator[Iterator[Any]]:
    """Yield the events of a run. The evaluation of the whole validation split at its end is not part of the work."""
    changes: dict[str, object] = {f"model__{key}": value for key, value in shape.items() if key != "vocab_size"}
    changes |= {"data__documents": 6000, "data__cache": f"{folder}/prepared", "log__folder": f"{folder}/runs"}
    changes |= {"train__batch": ROWS, "train__accumulate": accumulate, "train__steps": steps, "name": name}
    changes |= {"train__save_every": 10**6, "evaluate__every": 10**6, "train__threads": THREADS, "schedule__warmup": 20}
    changes |= {"train__device": "cpu", "train__precision": "float32", "log__sample_seconds": "none"}
    with open_session(settings(**changes)) as session, closing(session.events([])) as events:
        yield events


def updates(events: Iterator[Any], count: int) -> list[Stepped]:
    return list(islice((event for event in events if isinstance(event, Stepped)), count))


def accumulation_time() -> Metrics:
    """Compare rounds of LONGEST micro-batches, whatever their number of steps."""
    shape, found = SMALL | {"dim": 128, "heads": 4, "context": 128}, dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for count in MICRO_BATCHES[1:]:
            with (
                storybook(folder, 1, 10**6, shape, f"one-{count}") as one,
                storybook(folder, count, 10**6, shape, f"many-{count}") as many,
            ):
                took = in_turns(
                    {"one": partial(updates, one, LONGEST), "many": partial(updates, many, LONGEST // count)}, PAIRS
                )
                (last,) = updates(one, 1)
            tokens = last.tokens / (LONGEST * (PAIRS + 1) + 1) * LONGEST / 1e6  # millions per round
            found |= {f"{name} {count}": statistics.median(times) / tokens for name, times in took.items()}
            found[f"ratio {count}"] = ratio_of_pairs(took["many"], took["one"])
    return found


def accumulation_memory(count: int) -> Metrics:
    """Return the peak memory. All counts use the same micro-batches, because the longest rows determine the peak."""
    before = peak_memory()
    with tempfile.TemporaryDirectory() as folder, storybook(folder, count, 10**6, WIDE, "memory") as events:
        updates(events, 2 * LONGEST // count)
        return {"memory": peak_memory() - before}


def accumulation_loss() -> Metrics:
    """Return losses on the validation sample, at the same learning rate for all."""
    with tempfile.TemporaryDirectory() as folder:

        @cache  # for the largest count, equal tokens and equal steps are the same run
        def final_loss(count: int, steps: int) -> float:
            with storybook(folder, count, steps, SMALL, f"{count}-{steps}") as events:
                return next(event.loss for event in events if isinstance(event, Evaluated))

        tokens = {f"tokens {count}": final_loss(count, UPDATES * LONGEST // count) for count in MICRO_BATCHES}
        return tokens | {f"updates {count}": final_loss(count, UPDATES) for count in MICRO_BATCHES}


def accumulation() -> list[Row]:
    memory = {count: f"accumulation/memory {count}" for count in MICRO_BATCHES}
    outcomes = contest(__file__, ["accumulation/time", "accumulation/loss", *memory.values()], 1)
    took, loss = outcomes["accumulation/time"][0], outcomes["accumulation/loss"][0]
    peak, rows = {count: outcomes[name][0]["memory"] for count, name in memory.items()}, []
    for count in MICRO_BATCHES[1:]:
        name = f"accumulation, {count} micro-batches"
        paired = {"ratio": took[f"ratio {count}"]}
        rows += [
            row(f"{name}: time", took[f"many {count}"], took[f"one {count}"], "1 micro-batch", "s/M tokens") | paired,
            row(f"{name}: peak memory", peak[count], peak[1], "1 micro-batch", "bytes"),
            row(f"{name}: loss, equal tokens", loss[f"tokens {count}"], loss["tokens 1"], "1 micro-batch", "nats"),
            row(f"{name}: loss, equal steps", loss[f"updates {count}"], loss["updates 1"], "1 micro-batch", "nats"),
        ]
    return rows


# Recomputation.


def use_torch_checkpoint(model: Transformer) -> None:
    from torch.utils.checkpoint import checkpoint

    for block in model.blocks:
        block.run_block = lambda part, x, now: checkpoint(part, x, now, use_reentrant=False)


RECOMPUTED: dict[str, Callable[[Transformer], None]] = {
    "everything kept": lambda model: None,
    "blocks": lambda model: use_recompute(model, "block", 1),
    "every second block": lambda model: use_recompute(model, "block", 2),
    "feed-forwards": lambda model: use_recompute(model, "feed-forward", 1),
    "torch.utils.checkpoint": use_torch_checkpoint,
}


def recompute_memory(kind: str) -> Metrics:
    before = peak_memory()
    model = make_model(DEEP)
    RECOMPUTED[kind](model)
    step = make_step(model)
    step()
    step()
    return {"memory": peak_memory() - before, "activations": saved_bytes(model)}


def saved_bytes(model: Transformer, rows: int = ROWS) -> int:
    """Return the bytes of activations that the trunk keeps for a batch."""
    ids = torch.zeros(rows, model.settings.context, dtype=torch.long)
    return measure_kept(model, lambda: model.trunk(ids, model.begin(ids, None, None)))


def recompute_time() -> Metrics:
    works: dict[str, Callable[[], object]] = {}
    for kind, use in RECOMPUTED.items():
        model = make_model(DEEP)
        use(model)
        works[kind] = make_step(model)
    took = in_turns(works, ROUNDS)
    plain = took["everything kept"]
    medians = {f"time {kind}": statistics.median(times) for kind, times in took.items()}
    return medians | {f"ratio {kind}": ratio_of_pairs(times, plain) for kind, times in took.items()}


def recompute_equality() -> Metrics:
    """Count the numbers of loss and gradients, with dropout, that differ in any bit."""
    found: dict[str, list[Tensor]] = {}
    for kind, use in RECOMPUTED.items():
        model = make_model(DEEP, dropout=0.1)
        use(model)
        torch.manual_seed(0)
        loss = torch.tensor(make_step(model, rows=2)())
        found[kind] = [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
    plain = found["everything kept"]
    metrics: Metrics = {"numbers": sum(tensor.numel() for tensor in plain)}
    for kind, tensors in found.items():
        metrics[kind] = sum(int((a != b).sum()) for a, b in zip(tensors, plain, strict=True))
    return metrics


def recompute() -> list[Row]:
    memory = {kind: f"recompute/memory {kind}" for kind in RECOMPUTED}
    outcomes = contest(__file__, ["recompute/time", "recompute/equality", *memory.values()], 1)
    took, unequal = outcomes["recompute/time"][0], outcomes["recompute/equality"][0]
    plain, rows = "everything kept", []
    for kind in list(RECOMPUTED)[1:]:
        name, ours, peer = f"recompute {kind}", outcomes[memory[kind]][0], outcomes[memory[plain]][0]
        paired = {"ratio": took[f"ratio {kind}"]}
        rows += [
            row(f"{name}: activations", ours["activations"], peer["activations"], plain, "bytes"),
            row(f"{name}: peak memory", ours["memory"], peer["memory"], plain, "bytes"),
            row(f"{name}: time", took[f"time {kind}"], took[f"time {plain}"], plain, "s") | paired,
            row(f"{name}: numbers that differ", unequal[kind], unequal["numbers"], "all numbers", "numbers"),
        ]
    return rows


# Dropout.


def never(*_: Tensor) -> bool:
    return False


# The checks that select compiled code, replaced so that torch computes.
BY_TORCH: dict[str, tuple[str, ...]] = {
    "compiled": (),
    "embedding and residuals by torch": ("lilliput.kernels.dropout.can_drop",),
    "all by torch": ("lilliput.kernels.dropout.can_drop", "lilliput.model.attention.can_attend"),
}


def with_torch(names: tuple[str, ...], work: Callable[[], Any]) -> Any:
    with ExitStack() as replaced:
        for name in names:
            replaced.enter_context(mock.patch(name, never))
        return work()


def dropout_time() -> Metrics:
    plain = make_model(WIDE)
    works: dict[str, Callable[[], object]] = {"none": make_step(plain, DROPOUT_ROWS)}
    found: Metrics = {"activations none": saved_bytes(plain, DROPOUT_ROWS)}
    for kind, names in BY_TORCH.items():
        model = make_model(WIDE, DROPOUT)
        works[kind] = partial(with_torch, names, make_step(model, DROPOUT_ROWS))
        found[f"activations {kind}"] = with_torch(names, partial(saved_bytes, model, DROPOUT_ROWS))
    took = in_turns(works, DROPOUT_ROUNDS)
    found |= {f"time {kind}": statistics.median(times) for kind, times in took.items()}
    return found | {f"ratio {kind}": ratio_of_pairs(times, took["none"]) for kind, times in took.items()}


def dropout() -> list[Row]:
    (found,) = contest(__file__, ["dropout/time"], 1)["dropout/time"]
    rows = []
    for kind in BY_TORCH:
        name, paired = f"dropout {DROPOUT}, {kind}", {"ratio": found[f"ratio {kind}"]}
        rows += [
            row(f"{name}: time", found[f"time {kind}"], found["time none"], "no dropout", "s") | paired,
            row(f"{name}: activations", found[f"activations {kind}"], found["activations none"], "no dropout", "bytes"),
        ]
    return rows


# Precision, compilation, loss.


def precision_time() -> Metrics:
    device = choose_device("auto")
    works: dict[str, Callable[[], object]] = {}
    for name in ("float32", "bfloat16", "float16"):
        try:
            precision = build_precision(name, device)
        except UserError as error:
            print(f"  {error.what}", file=sys.stderr)
            continue
        works[name] = precise_step(make_model(SMALL).to(device), precision.casting)
    took = in_turns(works, 3)
    return {name: statistics.median(times) for name, times in took.items()}


def precise_step(model: Transformer, casting: Callable[[], Any]) -> Callable[[], float]:
    ids = torch.zeros(4, SMALL["context"], dtype=torch.long, device=model.device)

    def step() -> float:
        model.zero_grad()
        with casting():
            loss = language_loss(model, ids, ids, None, None).goal / ids.numel()
        loss.backward()
        return loss.item()  # synchronises with the device

    return step


def precision() -> list[Row]:
    (took,) = contest(__file__, ["precision/time"], 1)["precision/time"]
    wanted = [name for name in took if name != "float32"]
    return [row(f"precision {name}: time", took[name], took["float32"], "float32", "s") for name in wanted]


def compile_time() -> Metrics:
    models = {name: make_model(WIDE) for name in ("plain", "compiled")}
    first = seconds(lambda: use_compile(models["compiled"]))
    works = {name: make_step(model) for name, model in models.items()}
    first += seconds(works["compiled"])
    took = in_turns(dict(works), ROUNDS)
    medians = {name: statistics.median(times) for name, times in took.items()}
    return medians | {"first": first, "ratio": ratio_of_pairs(took["compiled"], took["plain"])}


def compiling() -> list[Row]:
    (took,) = contest(__file__, ["compile/time"], 1)["compile/time"]
    return [
        row("compile: time", took["compiled"], took["plain"], "plain", "s") | {"ratio": took["ratio"]},
        row("compile: time of the first step", took["first"], took["plain"], "plain", "s"),
    ]


def loss_of(kind: str) -> Metrics:
    head = LanguageHead(WIDTH, HEAD, bias=False, soft_cap=None)
    states, targets = torch.randn(STATES, WIDTH, requires_grad=True), torch.randint(HEAD, (STATES,))
    before = peak_memory()

    def step() -> None:
        head.zero_grad()
        states.grad = None
        if kind == "chunked":
            head_loss(head, states, targets).goal.backward()
        else:
            F.cross_entropy(head.project(states), targets, reduction="sum").backward()

    took = in_turns({kind: step}, 3)[kind]
    return {"time": statistics.median(took), "memory": peak_memory() - before}


def loss() -> list[Row]:
    outcomes = contest(__file__, ["loss/chunked", "loss/plain"], 3)
    chunked, plain = outcomes["loss/chunked"], outcomes["loss/plain"]
    return [
        row(f"loss: {name}", median(chunked, metric), median(plain, metric), "plain cross-entropy", unit)
        for name, metric, unit in (("peak memory", "memory", "bytes"), ("time", "time", "s"))
    ]


SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "accumulation": accumulation,
    "recompute": recompute,
    "dropout": dropout,
    "precision": precision,
    "compile": compiling,
    "loss": loss,
}
CONTESTANTS: dict[str, Callable[[], Metrics]] = {
    "accumulation/time": accumulation_time,
    "accumulation/loss": accumulation_loss,
    "recompute/time": recompute_time,
    "recompute/equality": recompute_equality,
    "dropout/time": dropout_time,
    "precision/time": precision_time,
    "compile/time": compile_time,
}


def measure(name: str) -> Metrics:
    section, contestant = name.split("/")
    if name in CONTESTANTS:
        prepare_machine(THREADS)
        return CONTESTANTS[name]()
    torch.set_num_threads(THREADS)
    if section == "loss":
        return loss_of(contestant)
    kind = contestant.removeprefix("memory ")
    return accumulation_memory(int(kind)) if section == "accumulation" else recompute_memory(kind)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help=f"sections, separated by commas [{','.join(SECTIONS)}]"
    )
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        print(json.dumps(measure(options.contestant)))
    else:
        wanted = options.only.split(",")
        if wrong := [name for name in wanted if name not in SECTIONS]:
            parser.error(f"--only must name sections of {', '.join(SECTIONS)} (got {wrong[0]})")
        show([found for name in wanted for found in SECTIONS[name]()], options.json)
