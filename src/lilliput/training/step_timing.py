"""The time of real training steps on this machine.

Owns: a second model with the settings of a run, which takes steps only to be timed, and timing several candidates
(precision, threads) in turns. Does not own: the candidates and the choice among them (`speed_choice`), estimates of a whole
run (`run_estimate`), the steps that train (`loop`).

The second model has its own weights, optimizer (with learning rate 0) and batches, and the state of torch's generators is
restored: a run is the same, bit for bit, whether its steps were timed before or not.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple

import torch

from lilliput.data.batches import AnyBatch, Batches
from lilliput.data.packed_windows import Integers
from lilliput.data.progress import Report, silent
from lilliput.devices import reset_peak_memory
from lilliput.model.recompute import use_recompute
from lilliput.model.transformer import build_model
from lilliput.settings.tree import Config
from lilliput.training.model_setup import load_kernels
from lilliput.training.objectives import Objective, Split, weigh
from lilliput.training.optimizers import build_optimizer, clip_gradients, gradient_norm, scale_gradients
from lilliput.training.precision import Precision, build_precision
from lilliput.training.process_group import World
from lilliput.training.weight_averaging import Average

TURNS = 7  # of each candidate: the median ignores three disturbed ones
TURN_SECONDS = 0.15
LONGEST = 6.0  # seconds after which no further round of turns begins
HOPELESS = 5.0  # a candidate whose first step takes this multiple of the shortest takes no turn
CLEARLY = 1.5  # a candidate whose time is this multiple of the shortest takes no more turns
FEW = 2  # micro-batches of a comparison: in bfloat16, oneDNN keeps about 12 MB of code for each shape of a batch
OWN_CORE = 0.9  # share of the time in which the main thread runs if no other program needs its core


class Candidate(NamedTuple):
    """Values of train.precision and train.threads."""

    precision: str
    threads: int


@dataclass(frozen=True)
class StepTime:
    """Seconds of the two parts of a step."""

    micro_batch: float  # reading, forward and backward pass of one micro-batch
    update: float  # norm of the gradient, clipping, optimizer, average

    def step(self, accumulate: int) -> float:
        return accumulate * self.micro_batch + self.update


@dataclass(frozen=True)
class Timing:
    """`times` has only the first candidate if the others were not worth it. `busy`: other programs needed the cores, so the
    times are not those of this machine at another moment."""

    times: Mapping[Candidate, StepTime]
    busy: bool


@dataclass(frozen=True)
class Work(Generic[AnyBatch]):
    """What a run computes."""

    config: Config
    objective: Objective[AnyBatch]
    train: Split[AnyBatch]
    device: torch.device


class Trial(Generic[AnyBatch]):
    """A model that takes training steps only to be timed."""

    def __init__(self, work: Work[AnyBatch], report: Report) -> None:
        config, self.work, self.report = work.config, work, report
        self.batches = Batches(work.train.rows, config.train.batch, config.seed)
        self.model = build_model(config.model, config.vectors, seed=config.seed)
        if config.train.precision == "float64":
            self.model.to(torch.float64)
        use_recompute(self.model, config.train.recompute, config.train.recompute_every)
        self.model.to(work.device).train()
        self.optimizer = build_optimizer(config.optimizer, self.model)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0  # the same operations, and the loss stays finite
        average = config.optimizer.average
        self.average = Average(self.model, average) if average is not None else None
        self.precisions: dict[str, Precision] = {}
        self.wall = self.cpu = 0.0  # seconds of all turns, and of their main thread

    def precision(self, name: str) -> Precision:
        if name not in self.precisions:
            self.precisions[name] = build_precision(name, self.work.device)
            load_kernels(self.model, self.precisions[name], World(), self.report)
        return self.precisions[name]

    def once(self, candidate: Candidate) -> StepTime:
        """Return the time of a single step, after one that prepares the kernels of a type."""
        torch.set_num_threads(candidate.threads)
        if candidate.precision not in self.precisions:
            self.step(candidate.precision, self.batches.at(0))
        return self.step(candidate.precision, self.batches.at(0))

    def turn(self, candidate: Candidate, micro_batches: int) -> StepTime:
        """Take a step with each of the first micro-batches of the run, repeatedly for TURN_SECONDS; return the mean times."""
        torch.set_num_threads(candidate.threads)
        took: list[StepTime] = []
        began, cpu = time.perf_counter(), time.thread_time()
        while not took or time.perf_counter() - began < TURN_SECONDS:
            took += [self.step(candidate.precision, self.batches.at(position)) for position in range(micro_batches)]
        self.wall, self.cpu = self.wall + time.perf_counter() - began, self.cpu + time.thread_time() - cpu
        return StepTime(statistics.fmean(one.micro_batch for one in took), statistics.fmean(one.update for one in took))

    def step(self, name: str, rows: Integers) -> StepTime:
        """Take one step with one micro-batch, with the operations of `loop.Trainer.update`."""
        work, precision = self.work, self.precision(name)
        began = time.perf_counter()
        batch = work.train.rows.batch(rows)
        with precision.casting():
            losses = work.objective.losses(self.model, batch)
        goal = weigh(losses.goal, batch.counts, work.objective.weights)
        (goal * precision.scale).backward()  # type: ignore[no-untyped-call]
        losses.nats.tolist()  # waits for the device
        middle = time.perf_counter()
        if precision.scale != 1.0:
            scale_gradients(self.model, 1.0 / precision.scale)
        norm, clip = gradient_norm(self.model), work.config.optimizer.clip
        if clip is not None:
            clip_gradients(self.model, norm, clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update(1)
        self.optimizer.zero_grad()
        norm.item()
        return StepTime(middle - began, time.perf_counter() - middle)

    @property
    def busy(self) -> bool:
        return self.cpu < OWN_CORE * self.wall


@contextmanager
def open_trial(work: Work[AnyBatch], report: Report = silent) -> Iterator[Trial[AnyBatch]]:
    """Build a trial; restore torch's threads and generators at its end."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng([work.device] if work.device.type == "cuda" else []):
        try:
            yield Trial(work, report)
        finally:
            torch.set_num_threads(threads)


def time_candidates(
    work: Work[AnyBatch], is_worth: Callable[[float, float], bool], report: Report, candidates: Sequence[Candidate]
) -> Timing:
    """Time training steps of each candidate; only of the first one unless `is_worth` returns True for the seconds of its step
    and of the shortest step.

    The memory that this needs does not count in the peak of the process.
    """
    try:
        return try_candidates(work, is_worth, report, candidates)
    finally:
        gc.collect()
        reset_peak_memory(work.device)


def try_candidates(
    work: Work[AnyBatch], is_worth: Callable[[float, float], bool], report: Report, candidates: Sequence[Candidate]
) -> Timing:
    first = candidates[0]
    with open_trial(work, report) as trial:
        # On a busy machine one thread can be a hundred times faster than two, so a single step of each decides the rest.
        once = {one: trial.once(one) for one in candidates if one.precision == first.precision}
        shortest = min(took.step(1) for took in once.values())
        if not is_worth(once[first].step(1), shortest):
            return Timing({first: once[first]}, busy=False)
        once |= {one: trial.once(one) for one in candidates if one not in once}
        left = [one for one in candidates if once[one].step(1) < HOPELESS * shortest]
        turn = partial(trial.turn, micro_batches=FEW if shortest < TURN_SECONDS else 1)
        times = once | time_in_turns(left, turn)
        return Timing({one: times[one] for one in candidates}, trial.busy)


def time_in_turns(
    candidates: Sequence[Candidate],
    turn: Callable[[Candidate], StepTime],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Candidate, StepTime]:
    """Return the median times of each candidate over several turns.

    Candidates alternate, so that other programs slow all of them; one that is clearly slower takes no more turns.
    """
    turns: dict[Candidate, list[StepTime]] = {candidate: [] for candidate in candidates}
    left, began = list(candidates), clock()
    for number in range(TURNS):
        for candidate in left if number % 2 == 0 else reversed(left):
            turns[candidate].append(turn(candidate))
        medians = {candidate: median_time(times) for candidate, times in turns.items()}
        shortest = min(median.step(1) for median in medians.values())
        left = [candidate for candidate in left if medians[candidate].step(1) < CLEARLY * shortest]
        if clock() - began > LONGEST:
            break
    return medians


def median_time(times: Sequence[StepTime]) -> StepTime:
    return StepTime(statistics.median(one.micro_batch for one in times), statistics.median(one.update for one in times))
