"""The length, time and memory of a run, estimated from timed steps, evaluations and one checkpoint.

Owns: the measurement and the estimate. Does not own: timing steps (`step_timing`), the data (`estimate_data`), estimates by
formula, which replace the measurement where steps may not be timed (`cost_estimate`).

The time is that of training with its checkpoints and evaluations, the final one included. Starting the program, preparing
the text and generating samples are not part of it. The memory is the peak of the process.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lilliput.data.corpora import STORYBOOK
from lilliput.data.progress import Report, silent
from lilliput.devices import peak_memory, prepare_machine, reset_peak_memory
from lilliput.evaluation.generated_stories import storybook_floor
from lilliput.model.counting import count
from lilliput.model.transformer import weights
from lilliput.settings.loading import config_to_dict, replace
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import save_checkpoint
from lilliput.storage.run_folders import RunFolder
from lilliput.storage.state_format import take_apart
from lilliput.training.cost_estimate import may_time_steps, refuse_too_large, tensor_bytes, token_seconds
from lilliput.training.estimate_data import EstimateData
from lilliput.training.objectives import Split
from lilliput.training.process_group import World
from lilliput.training.run_evaluation import SAMPLE_BATCH, EvaluationPlan
from lilliput.training.speed_choice import choose_by_products, choose_speed
from lilliput.training.step_timing import Candidate, Trial, Work, open_trial, time_in_turns

MANY = 16  # micro-batches of a turn, because rows differ in length; fewer if steps are slow
TURN = 0.3  # seconds
SAMPLED = 1000  # rows whose lengths are read
EVALUATING = 0.4  # seconds of timed evaluations of a split
FLOOR_STORIES = 50  # whose floor is timed


@dataclass(frozen=True)
class RunEstimate:
    """`config` has the chosen precision and threads. Values that the text determines are None if it is not known.

    `evaluation` is the part of `seconds` for evaluations. `memory`: bytes.
    """

    config: Config
    steps: int | None
    tokens: int | None
    epochs: float | None
    seconds: float | None
    evaluation: float
    memory: int
    notes: list[str]


@dataclass(frozen=True)
class Costs:
    """Seconds of a step, a checkpoint, an evaluation during training, and the final evaluation; bytes of the process."""

    step: float
    save: float
    sample: float
    final: float
    memory: int


def estimate_run(data: EstimateData, device: torch.device, processes: int, report: Report = silent) -> RunEstimate:
    """Choose precision and threads as the run would, measure its costs, and compute its length.

    For several processes, of which only the first calls this, the costs are computed by formula.
    """
    config, world = data.config, World()
    prepare_machine(config.train.threads)
    if processes == 1:
        refuse_too_large(config, device)
        choice = choose_speed(Work(config, data.objective, data.splits["train"], device), world, report)
    else:
        choice = choose_by_products(config, device, world, config.train.threads)
    config = choice.applied(config)
    notes = [note for note in (choice.note, data.note) if note]
    if may_time_steps() and processes == 1:
        prepare_machine(choice.threads)
        costs = measure_costs(config, data, device, report)
    else:
        costs = compute_costs(config, device)
    return combine(config, data, costs, notes)


def compute_costs(config: Config, device: torch.device) -> Costs:
    """Return the costs by formula: the FLOPs of full rows, and the memory of tensors next to that of this process."""
    tokens = config.train.batch * config.train.accumulate * config.model.context
    memory = (peak_memory(device) or 0) + tensor_bytes(config, count(config.model, config.vectors))
    return Costs(tokens * token_seconds(config), 0.0, 0.0, 0.0, memory)


# Measuring ------------------------------------------------------------------------------------------------------------


def measure_costs(config: Config, data: EstimateData, device: torch.device, report: Report) -> Costs:
    """Take steps, evaluate and save, as the run does; all other memory of this process is needed by the run too."""
    reset_peak_memory(device)
    candidate = Candidate(config.train.precision, config.train.threads or torch.get_num_threads())
    work = Work(config, data.objective, data.splits["train"], device)
    with open_trial(work, report) as trial:
        rows = work.train.rows
        longest = rows.by_length(rows.sample(SAMPLED, config.seed))[: config.train.batch]
        trial.step(candidate.precision, longest)  # needs the most memory
        once = trial.once(candidate).step(1)
        turn = partial(trial.turn, micro_batches=max(1, min(MANY, int(TURN / once))))
        step = time_in_turns([candidate], turn)[candidate].step(config.train.accumulate)
        sample, final = time_evaluations(trial, config, data)
        save = time_checkpoint(trial)
        memory = peak_memory(device)
    if memory is None:  # the system does not report it
        memory = compute_costs(config, device).memory
    return Costs(step, save, sample, final, memory)


def time_evaluations(trial: Trial[Any], config: Config, data: EstimateData) -> tuple[float, float]:
    """Return the seconds of an evaluation during training and of the final one, 0 if the text is not known."""
    samples = EvaluationPlan(config, data.splits).samples
    sample = sum(len(rows) * row_seconds(trial, data.splits[name], SAMPLE_BATCH) for name, rows in samples.items())
    if data.scale is None:
        return sample, 0.0
    whole = [split for name, split in data.splits.items() if name != "train"]
    batch = config.train.batch
    final = sum(len(split.rows) * data.scale * row_seconds(trial, split, batch) for split in whole)
    return sample, final + floor_seconds(config, len(data.splits["validation"].rows) * data.scale)


def row_seconds(trial: Trial[Any], split: Split[Any], batch: int) -> float:
    """Return the seconds to evaluate a row in batches of this size."""
    chosen = split.rows.sample(min(len(split.rows), MANY * batch), trial.work.config.seed)
    parts = [chosen[first : first + batch] for first in range(0, len(chosen), batch)]
    rows, took = 0, 0.0
    for number, part in enumerate(cycle(parts)):
        began = time.perf_counter()
        trial.work.objective.measure(trial.model, split, iter([split.rows.batch(part)]))
        if number:  # the first batch is slow, and the longest
            rows, took = rows + len(part), took + time.perf_counter() - began
        if took > EVALUATING or number == len(parts):
            return took / rows
    raise AssertionError("a split has rows")


def floor_seconds(config: Config, stories: float) -> float:
    """Return the seconds to compute the entropy floor of the storybook's validation split."""
    if config.data.source != STORYBOOK:
        return 0.0
    began = time.perf_counter()
    storybook_floor(replace(config, {"data.documents": FLOOR_STORIES}))
    return (time.perf_counter() - began) * stories / FLOOR_STORIES


def time_checkpoint(trial: Trial[Any]) -> float:
    """Return the seconds to write a checkpoint, which is removed again."""
    states = {"optimizer": trial.optimizer.state_dict(), "average": trial.average and trial.average.state_dict()}
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        skeleton, tensors = take_apart(states)
        save_checkpoint(
            RunFolder(Path(folder)),
            0,
            model=weights(trial.model),
            state=tensors,
            state_json=skeleton,
            config=config_to_dict(trial.work.config),
            tokenizer_json="{}",
        )
        return time.perf_counter() - began


# The estimate ---------------------------------------------------------------------------------------------------------


def combine(config: Config, data: EstimateData, costs: Costs, notes: list[str]) -> RunEstimate:
    """Return the length of the run and its time, from the budget and the costs."""
    train, rows, batch = config.train, data.splits["train"].rows, config.train.batch
    epoch = None if data.scale is None else math.ceil(len(rows) * data.scale / batch) / train.accumulate
    tokens = batch * train.accumulate * float(rows.sizes(rows.sample(SAMPLED, config.seed)).mean())  # of a step
    every = epoch if config.evaluate.every == "epoch" else float(config.evaluate.every)
    every = every or math.inf
    pace = costs.step + (costs.save + costs.sample) / every + costs.save / train.save_every
    limit = min((one for one in (train.minutes, train.max_minutes) if one is not None), default=math.inf)
    most = max(1, int(60 * limit / pace)) if limit < math.inf else None  # steps within the limit
    steps: int | None = train.steps
    if train.tokens is not None:
        steps = math.ceil(train.tokens / tokens)
    elif train.epochs is not None:
        steps = None if epoch is None else max(1, math.ceil(train.epochs * epoch - 1e-9))
    elif train.minutes is not None:
        steps = most
    if steps is None:
        return RunEstimate(config, None, None, None, None, 0.0, costs.memory, notes)
    by_time = train.minutes is not None or (most is not None and most < steps)
    steps = min(steps, most or steps)
    evaluations = int(steps / every) + sum(at <= steps for at in config.evaluate.at) + (steps % every > 0)
    evaluating = evaluations * costs.sample + costs.final
    saves = evaluations + steps // train.save_every
    if by_time:  # only the last evaluations come after the limit
        seconds = 60 * limit + costs.save + costs.sample + costs.final
    else:
        seconds = steps * costs.step + saves * costs.save + evaluating
    epochs = None if epoch is None else steps / epoch
    return RunEstimate(config, steps, round(steps * tokens), epochs, seconds, evaluating, costs.memory, notes)
