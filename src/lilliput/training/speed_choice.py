"""The choice of precision and threads of a new run, from the time of its own training steps.

Owns: the candidates, when they are timed, the choice, its note, and the cache of times by machine and shape of the step.
Does not own: timing steps (`step_timing`), or the choice by matrix products (`devices.choose_precision`), which remains for
GPUs, several processes, compiled blocks, and where timing steps is switched off.

The choice is saved in the settings of the run. A resumed run has it there and measures nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from lilliput import __version__
from lilliput.data.progress import Report
from lilliput.devices import WORTH, choose_precision, format_ratio, is_measured, known_flops, recall, remember
from lilliput.settings.loading import replace
from lilliput.settings.tree import Config
from lilliput.training.cost_estimate import may_time_steps
from lilliput.training.process_group import World
from lilliput.training.step_timing import Candidate, StepTime, Timing, Work, time_candidates

SHORTEST = 10.0  # seconds of a run that is worth the seconds of a measurement
ROUNDS = 20  # a measurement takes about two steps of each candidate, which must be at most a tenth of the run
STEPS = "steps"  # in the cache: times by the shape of the step
SHAPES = 100  # kept in the cache, the newest

Times = Mapping[Candidate, StepTime]
Measure = Callable[[Sequence[Candidate]], Timing]


@dataclasses.dataclass(frozen=True)
class SpeedChoice:
    """Values of train.precision and train.threads, and a sentence for the user."""

    precision: str
    threads: int | None
    note: str | None

    def applied(self, config: Config) -> Config:
        return replace(config, {"train.precision": self.precision, "train.threads": self.threads})


def choose_speed(work: Work[Any], world: World, report: Report, measure: Measure | None = None) -> SpeedChoice:
    """Choose precision and threads where the settings leave them open. All processes must call this.

    `measure` times candidates; by default it takes real steps.
    """
    config, train, device = work.config, work.config.train, work.device
    if device.type != "cpu" or world.processes > 1:
        return choose_by_products(config, device, world, train.threads)
    threads = train.threads or torch.get_num_threads()
    if train.compile or not may_time_steps():
        return choose_by_products(config, device, world, threads)
    first = Candidate("float32" if train.precision == "auto" else train.precision, threads)
    candidates, remark = [first], ""
    if train.precision == "auto":
        remark = refuse_bfloat16(device)
        candidates += [] if remark else [Candidate("bfloat16", threads)]
    if train.threads is None and threads > 1:
        candidates.append(Candidate(first.precision, 1))
    if len(candidates) == 1:
        return SpeedChoice(*first, f"using {first.precision}: {remark}" if remark else None)
    is_worth = partial(is_worth_timing, work, len(candidates))
    timing = find_times(work, candidates, measure or partial(time_candidates, work, is_worth, report))
    if len(timing.times) == 1:
        note = f"using {describe(first)}: the run is too short to measure alternatives"
        return SpeedChoice(*first, note if train.precision == "auto" else None)
    chosen = fastest(first, timing.times, train.accumulate)
    note = describe_choice(chosen, timing.times, train.accumulate)
    note += f"; {remark}" if remark else ""
    return SpeedChoice(*chosen, note + ("; the machine is busy" if timing.busy else ""))


def choose_by_products(config: Config, device: torch.device, world: World, threads: int | None) -> SpeedChoice:
    """Choose the precision by the speed of matrix products, which the first process measures; measurements can differ."""
    if config.train.precision != "auto":
        return SpeedChoice(config.train.precision, threads, None)
    found = choose_precision("auto", device) if world.first else None
    name, note = world.share([str(found.dtype).removeprefix("torch."), found.note] if found else None)
    return SpeedChoice(name, threads, note)


def refuse_bfloat16(device: torch.device) -> str:
    """Return why steps in bfloat16 are not tried, or "". If its products are not faster, the steps are not either; and they may
    be a hundred times slower."""
    try:
        ratio = known_flops(device, torch.bfloat16) / known_flops(device, torch.float32)
    except (RuntimeError, TypeError):  # torch raises these for types that the device does not support
        return "this CPU does not support bfloat16"
    return "" if ratio >= WORTH else f"bfloat16 is {format_ratio(ratio)} in products on this CPU"


def is_worth_timing(work: Work[Any], candidates: int, step: float, shortest: float) -> bool:
    """Return whether the run is long enough to measure. `step`: seconds of a step without a choice; `shortest`: of the fastest
    candidate."""
    train = work.config.train
    if train.minutes is not None:
        seconds = 60 * train.minutes
    else:
        rows, batch = len(work.train.rows), train.batch * train.accumulate
        tokens = batch * work.config.model.context
        steps = train.steps or (train.tokens or 0) / tokens or (train.epochs or 0) * math.ceil(rows / batch)
        seconds = steps * train.accumulate * step
    return seconds >= max(SHORTEST, ROUNDS * candidates * shortest)


def fastest(first: Candidate, times: Times, accumulate: int) -> Candidate:
    """Return the fastest candidate if it is clearly faster than the first one, else the first one."""
    best = min(times, key=lambda one: times[one].step(accumulate))
    return best if times[first].step(accumulate) >= WORTH * times[best].step(accumulate) else first


# The note -------------------------------------------------------------------------------------------------------------


def describe_choice(chosen: Candidate, times: Times, accumulate: int) -> str:
    """Return, for example, "using float32 with 2 threads: a training step takes 21 ms; bfloat16 24 ms, 1 thread 35 ms"."""
    others = ", ".join(
        f"{describe(other, chosen)} {milliseconds(time.step(accumulate))}"
        for other, time in times.items()
        if other != chosen
    )
    return f"using {describe(chosen)}: a training step takes {milliseconds(times[chosen].step(accumulate))}; {others}"


def describe(candidate: Candidate, unlike: Candidate | None = None) -> str:
    """Return the candidate in words, or only how it differs from another one."""
    threads = f"{candidate.threads} thread{'s' if candidate.threads > 1 else ''}"
    if unlike is None or (candidate.precision != unlike.precision and candidate.threads != unlike.threads):
        return f"{candidate.precision} with {threads}"
    return threads if candidate.precision == unlike.precision else candidate.precision


def milliseconds(seconds: float) -> str:
    """0.0214 -> "21 ms", with two digits."""
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"


# The cache ------------------------------------------------------------------------------------------------------------


def find_times(work: Work[Any], candidates: Sequence[Candidate], measure: Measure) -> Timing:
    """Return the times of the candidates from the cache, or measure and store them.

    On a busy machine the threads of a small model wait for each other, so its times are neither stored nor replaced by stored
    ones.
    """
    known = recall(work.device).get(STEPS)
    known, shape = known if isinstance(known, dict) else {}, shape_of_step(work.config)
    times = read_times(known.get(shape))
    if all(candidate in times for candidate in candidates) and not is_loaded():
        return Timing({candidate: times[candidate] for candidate in candidates}, busy=False)
    timing = measure(candidates)
    if len(timing.times) > 1 and not timing.busy:
        entry = {
            f"{one.precision} {one.threads}": [t.micro_batch, t.update] for one, t in {**times, **timing.times}.items()
        }
        others = [(name, value) for name, value in known.items() if name != shape]
        remember(work.device, STEPS, dict(others[1 - SHAPES :]) | {shape: entry})
    return timing


def is_loaded() -> bool:
    """Return whether other programs need more than the cores of this machine; False where the system does not report it."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) + 1


def read_times(entry: Any) -> dict[Candidate, StepTime]:
    """Return the times of an entry of the cache; ignore what cannot be one."""
    times: dict[Candidate, StepTime] = {}
    for name, parts in entry.items() if isinstance(entry, dict) else ():
        precision, _, threads = name.partition(" ")
        if threads.isdecimal() and isinstance(parts, list) and len(parts) == 2 and all(map(is_measured, parts)):
            times[Candidate(precision, int(threads))] = StepTime(*parts)
    return times


def shape_of_step(config: Config) -> str:
    """Return a digest of all that determines the time of a step, except the machine and the lengths of the rows."""
    model, vectors, optimizer, train = config.model, config.vectors, config.optimizer, config.train
    shape = {
        "version": __version__,
        "threads": torch.get_num_threads(),
        "model": dataclasses.asdict(model),
        "vectors": [vectors.width, vectors.rows, vectors.frozen, vectors.projection],
        "optimizer": [optimizer.kind, optimizer.clip is None, optimizer.average is None],
        "train": [train.batch, train.recompute, train.recompute_every, train.label_smoothing > 0, train.z_loss > 0],
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
