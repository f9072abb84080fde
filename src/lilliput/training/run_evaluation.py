"""The evaluations of a run: which steps, which rows, and the metrics over all processes.

Owns: `EvaluationPlan`, the steps (`evaluate.every`, `evaluate.at`), the length of an epoch in steps, and the fixed samples of
rows. All are functions of the settings and the data, so that a resumed run evaluates the same steps on the same rows. And
`Evaluator`, which measures samples and whole splits. Does not own: when the loop evaluates, which checkpoint is the best
(`loop`), or how a metric is computed (`objectives`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from lilliput.data.batches import AnyBatch
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import Config
from lilliput.training.events import EvaluationFigures
from lilliput.training.objectives import Objective, Split
from lilliput.training.process_group import World

SAMPLE_BATCH = 16  # rows of a sample per batch: not a setting, so that the metrics do not depend on one
UseWeights = Callable[[Callable[[Transformer], EvaluationFigures]], EvaluationFigures]


class EvaluationPlan:
    """`samples` has the rows of each split that an evaluation during training measures."""

    def __init__(self, config: Config, splits: Mapping[str, Split[Any]]) -> None:
        self.settings, seed = config.evaluate, config.seed
        train = splits["train"].rows
        self.epoch_steps = math.ceil(len(train) / config.train.batch) / config.train.accumulate
        self.samples: dict[str, NDArray[np.int64]] = {}
        for name, split in splits.items():
            if name == "train":
                wanted = self.settings.train_rows
            elif name == "validation":
                wanted = self.settings.rows
            else:
                wanted = (self.settings.test_rows or len(split.rows)) if self.settings.tests else None
            if wanted is not None:
                rows = split.rows
                self.samples[name] = (
                    rows.sample(wanted, seed) if wanted < len(rows) else rows.by_length(np.arange(len(rows)))
                )

    def epoch(self, step: int) -> float:
        """Return the number of epochs that have been trained after `step`."""
        return step / self.epoch_steps

    def steps(self, epochs: float) -> int:
        """Return the number of steps of a budget in epochs."""
        return max(1, math.ceil(epochs * self.epoch_steps - 1e-9))

    def due(self, step: int) -> bool:
        """Return whether the run is evaluated after `step`: 0 is before the first one."""
        if step in self.settings.at:
            return True
        if step == 0:
            return False
        if self.settings.every == "epoch":
            return math.floor(self.epoch(step) + 1e-9) > math.floor(self.epoch(step - 1) + 1e-9)
        return step % self.settings.every == 0


class Evaluator(Generic[AnyBatch]):
    """`use` runs a function of the model with the weights that would be saved now; `stopped` returns, in all processes alike,
    whether the run is to stop."""

    def __init__(
        self,
        world: World,
        objective: Objective[AnyBatch],
        splits: Mapping[str, Split[AnyBatch]],
        plan: EvaluationPlan,
        use: UseWeights,
        stopped: Callable[[], bool],
    ) -> None:
        self.world, self.objective, self.splits, self.plan = world, objective, splits, plan
        self.use, self.stopped = use, stopped

    def measure_samples(self) -> dict[str, EvaluationFigures]:
        """Return the metrics of every sample of the plan, by split."""
        return {name: self.measure_rows(name, rows) for name, rows in self.plan.samples.items()}

    def measure_rows(self, name: str, rows: NDArray[np.int64]) -> EvaluationFigures:
        split, world = self.splits[name], self.world
        return self.measure(split, split.rows.cut(rows, SAMPLE_BATCH, world.rank, world.processes))

    def measure_whole(self, name: str, batch: int) -> EvaluationFigures | None:
        """Evaluate each token of a split once; return None if stopped. The processes agree after every batch, and so stop
        after the same one."""
        split, interrupted = self.splits[name], False

        def until_stopped() -> Iterator[AnyBatch]:
            nonlocal interrupted
            for part in split.rows.in_order(batch, self.world.rank, self.world.processes):
                yield part
                if interrupted := self.stopped():
                    return

        metrics = self.measure(split, until_stopped())
        return None if interrupted else metrics

    def measure(self, split: Split[AnyBatch], batches: Iterable[AnyBatch]) -> EvaluationFigures:
        """Evaluate over all processes together, each with its part of every batch."""
        return self.use(lambda model: self.objective.measure(model, split, batches, self.world.total))
