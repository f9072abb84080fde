"""The loop: a generator of events. It prints nothing and opens no file but through the run.

Owns: the order of update, save, evaluation, keeping the best, tests and end; stopping; the contents of a
checkpoint. Does not own: what is learned (`objectives`), what is done with the events (`observers`), how the
parts are built (`session`), the order of the data (`data.batches`), the clock (`budget`), the processes
(`process_group`, `distributed`).

A checkpoint is saved before its evaluation, so that a kill during the evaluation costs only the evaluation: a
resumed run repeats it.

Every process runs the same loop over its own rows, and all must make the same decisions: what depends on a
clock or a signal is therefore agreed on, together with the sums that an update needs anyway. Only the first
process writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lilliput.data.batches import AnyBatch, Batches
from lilliput.data.prepare.token_files import Prepared
from lilliput.devices import known_flops
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, weights
from lilliput.settings.loading import config_to_dict
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import Checkpoint, save_checkpoint, step_name
from lilliput.storage.run_folders import Run
from lilliput.storage.state_format import describe_machine, peak_memory, put_together, random_seed, take_apart
from lilliput.training.budget import Budget
from lilliput.training.distributed import Parallel
from lilliput.training.events import Evaluated, EvaluationFigures, Event, Finished, Saved, Stepped, Tested
from lilliput.training.finite_checks import check_loss, check_weights, update_error
from lilliput.training.objectives import Objective, Split, weigh
from lilliput.training.optimizers import (
    build_optimizer,
    clip_gradients,
    gradient_norm,
    parameters_by_state,
    scale_gradients,
)
from lilliput.training.precision import Precision
from lilliput.training.process_group import World
from lilliput.training.schedules import learning_rate
from lilliput.training.sharded_tensors import deal_state, deal_weights, gather, share_looks
from lilliput.training.training_warnings import Advisor
from lilliput.training.weight_averaging import Average

SAMPLE_BATCH = 16  # rows of the sample at once: no setting, so that the figure does not depend on one

Answer = TypeVar("Answer")


class Trainer(Generic[AnyBatch]):
    """Everything of a run that changes. Iterate over `events()`; call `stop()` to end after the current update or batch."""

    def __init__(
        self,
        config: Config,
        world: World,
        model: Transformer,
        parallel: Parallel,
        precision: Precision,
        objective: Objective[AnyBatch],
        splits: Mapping[str, Split[AnyBatch]],
        prepared: Prepared,
        run: Run,
        floor: Callable[[], float | None],
    ) -> None:
        self.config, self.world, self.model, self.parallel, self.precision = config, world, model, parallel, precision
        self.objective, self.prepared, self.run, self.floor, self.tests = objective, prepared, run, floor, dict(splits)
        self.train, self.validation = self.tests.pop("train"), self.tests.pop("validation")
        self.tokenizer_json = prepared.tokenizer.to_json()
        self.optimizer = build_optimizer(config.optimizer, model)
        self.average = Average(model, config.optimizer.average) if config.optimizer.average is not None else None
        self.advisor = Advisor(config)
        self.batches = Batches(self.train.rows, config.train.batch, config.seed, world.rank, world.processes)
        self.sample = self.validation.rows.sample(config.evaluate.rows, config.seed)
        self.step, self.tokens, self.budget = 0, 0, Budget(config.train)
        self.rows: list[int] = []  # of the last update, in all processes
        self.best: tuple[float, int] | None = None  # (loss on the sample, step)
        self.waited = 0  # evaluations since the best
        self.stop_requested = False  # in this process; `stopping` is what all agreed on
        self.stopping = self.ended = self.early = False
        self.late = False  # an evaluation now would use up the budget
        self.machine = describe_machine(world.processes, precision.device, precision.dtype)
        self.operations = model.count().flops_per_token
        self.peak = known_flops(precision.device, precision.dtype) * world.processes

    def stop(self) -> None:
        self.stop_requested = True
        self.stopping = self.world.processes == 1

    def agree_to_stop(self) -> bool:
        self.stopping = self.stopping or self.world.total([self.stop_requested])[0] > 0
        return self.stopping

    def events(self) -> Iterator[Event]:
        for event in self.training_events():
            yield event
            yield from self.advisor.check(event, self.rows)

    def training_events(self) -> Iterator[Event]:
        self.budget.start()
        self.model.train()
        nothing = self.train.rows.batch(np.zeros(0, np.int64))
        self.parallel.settle(lambda model: self.objective.losses(model, nothing).goal.sum())
        if self.step:
            yield from self.finish_step(saved=True)  # a kill may have cut it off
        while not self.ended and not self.stopping:
            yield self.update()
            yield from self.finish_step(saved=False)
        complete = self.ended and (yield from self.evaluate_whole_splits())
        yield Finished(self.step, self.tokens, self.budget.elapsed(), not complete, self.early)

    # One update --------------------------------------------------------------------------------------------------------

    def update(self) -> Stepped:
        """One optimizer step over `accumulate` micro-batches, weighted by what they count (tokens, or documents), in all
        processes: exactly the gradient of one big batch."""
        budget, world = self.budget, self.world
        budget.begin_update()
        micro_batches, self.rows = [], []
        for _ in range(self.config.train.accumulate):
            micro_batches.append(next(self.batches))
            self.rows += self.batches.taken.tolist()
        own = [sum(parts) for parts in zip(*((batch.tokens, *batch.counts) for batch in micro_batches), strict=True)]
        gone = budget.progress(self.step, self.tokens) if world.first else 0.0
        gone, *sums = world.total([gone, *own])
        tokens, *counts = map(int, sums)
        self.step += 1
        parts = [self.forward_backward(number, batch, counts) for number, batch in enumerate(micro_batches)]
        nats = torch.stack(parts).sum(dim=0, dtype=torch.float64).tolist()
        forecast = budget.forecast() if world.first else (False, False)
        requested, last, late, *nats = world.total([self.stop_requested, *forecast, *nats])
        loss = weigh(torch.tensor(nats, dtype=torch.float64), counts, self.objective.weights).item()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.schedule, group["peak"], self.step, gone)
        norm, clip = self.apply_gradients(loss), self.config.optimizer.clip
        self.tokens += tokens
        speed = tokens / max(budget.end_update(), 1e-9)
        gone = budget.progress(self.step, self.tokens)
        self.stopping = self.stopping or requested > 0
        self.ended, self.late = last > 0 or (self.config.train.minutes is None and gone >= 1.0), late > 0
        return Stepped(
            self.step,
            loss,
            self.optimizer.param_groups[0]["lr"],
            norm,
            self.tokens,
            1.0 if self.ended else min(1.0, gone),
            budget.elapsed(),
            speed,
            peak_memory(),
            clipped=norm is not None and clip is not None and norm > clip,
            skipped=norm is None,
            share_of_peak=speed * self.operations / self.peak,
        )

    def forward_backward(self, number: int, batch: AnyBatch, counts: list[int]) -> Tensor:
        """Run forward and backward of a micro-batch; return its nats (K,)."""
        torch.manual_seed(random_seed(self.config.seed, self.step, number, self.world.rank))
        with self.parallel.exchanging(last=number + 1 == self.config.train.accumulate):
            with self.precision.casting():
                losses = self.parallel.learn(partial(self.objective.losses, batch=batch))
            goal = weigh(losses.goal, counts, self.objective.weights)
            (goal * (self.precision.scale * self.parallel.share)).backward()  # type: ignore[no-untyped-call]
        return losses.nats

    def apply_gradients(self, loss: float) -> float | None:
        """Clip the gradients and step the optimizer; return their norm before clipping. None: they overflowed, and no step
        was made."""
        if self.precision.scale != 1.0:
            scale_gradients(self.model, 1.0 / self.precision.scale)
        norm, clip = gradient_norm(self.model), self.config.optimizer.clip
        accepted, size = self.precision.accept(norm), norm.item()
        if not math.isfinite(loss) or (accepted and not math.isfinite(size)):
            raise update_error(self.step, loss, self.model, self.rows, self.run)
        if accepted:
            if clip is not None:
                clip_gradients(self.model, norm, clip)
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.step)
        self.optimizer.zero_grad()
        return size if accepted else None

    # What follows it ---------------------------------------------------------------------------------------------------

    def finish_step(self, saved: bool) -> Iterator[Event]:
        """Do what follows an update: save (unless `saved`), evaluate, keep the best, remove old checkpoints."""
        evaluation_due = self.ended or (self.step % self.config.evaluate.every == 0 and not self.late)
        save_due = evaluation_due or self.step % self.config.train.save_every == 0
        if save_due:  # a request to stop does not wait for all that follows and another update
            self.agree_to_stop()
        if (save_due or self.stopping) and not saved:
            self.save()
        if save_due:  # a checkpoint made by stopping is not logged: the log is that of an uninterrupted run
            yield Saved(self.step, step_name(self.step))
        if evaluation_due and (self.ended or not self.stopping):
            with self.budget.evaluating():
                batches = self.validation.rows.cut(self.sample, SAMPLE_BATCH, self.world.rank, self.world.processes)
                found = self.measure(self.validation, batches)
                yield self.evaluated(found, whole=False, weights=self.step)
            self.keep_best(found.loss)
        if save_due and self.world.first:
            self.run.prune(self.config.train.keep)

    def keep_best(self, loss: float) -> None:
        patience, self.waited = self.config.train.patience, self.waited + 1
        if self.best is None or loss < self.best[0]:
            self.best, self.waited = (loss, self.step), 0
            if self.world.first:
                self.run.mark_best(self.last_checkpoint())
        if patience is not None and self.waited >= patience and not self.ended:
            self.ended = self.early = True

    def evaluate_whole_splits(self) -> Generator[Event, None, bool]:
        """Evaluate the best weights on the whole validation split and every test set, each token once. Return False if it was
        stopped; a resumed run repeats it."""
        best = self.run.best if self.world.first and self.best is not None else None
        others = best is not None and (best.step != self.step or self.average is not None)
        loaded: int | None = self.world.share(best.step if best and others else None)
        if loaded is not None:
            deal_weights(self.world, self.model, best.load_model() if best else {})
            self.average = None  # the model holds what is kept
        evaluated_step = self.step if loaded is None else loaded
        if (whole := self.measure_whole(self.validation)) is None:
            return False
        yield self.evaluated(whole, whole=True, weights=evaluated_step)
        for name, split in self.tests.items():
            if (found := self.measure_whole(split)) is None:
                return False
            check_loss(self.step, f"loss on test {name}", found.loss, self.run)
            yield Tested(step=self.step, name=name, weights=evaluated_step, **asdict(found))
        return True

    def measure_whole(self, split: Split[AnyBatch]) -> EvaluationFigures | None:
        """Return None if it was stopped. The processes agree after every batch, and so stop after the same one; never before
        the first: nothing has no figures."""

        def until_stopped() -> Iterator[AnyBatch]:
            for batch in split.rows.in_order(self.config.train.batch, self.world.rank, self.world.processes):
                yield batch
                if self.agree_to_stop():
                    return

        found = self.measure(split, until_stopped())
        return None if self.stopping else found

    def measure(self, split: Split[AnyBatch], batches: Iterable[AnyBatch]) -> EvaluationFigures:
        """Evaluate over all processes together, each with its part of every batch."""
        return self.use(lambda model: self.objective.measure(model, split, batches, self.world.total))

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Run `work` with the weights as they would be saved now, without learning. All processes must call this.

        In the type of the weights, whatever the precision of training: the figures must be those that an evaluation of the
        checkpoint gives on any machine.
        """
        with self.averaged():
            return self.parallel.use(work)

    def averaged(self) -> AbstractContextManager[None]:
        return self.average.applied() if self.average is not None else nullcontext()

    def evaluated(self, found: EvaluationFigures, whole: bool, weights: int) -> Evaluated:
        check_loss(self.step, "validation loss", found.loss, self.run)
        floor = self.floor() if whole and self.world.first else None
        return Evaluated(step=self.step, whole=whole, weights=weights, floor=floor, **asdict(found))

    def last_checkpoint(self) -> Checkpoint:
        last = self.run.last
        assert last is not None
        return last

    # Saving and resuming -----------------------------------------------------------------------------------------------

    def save(self, run: Run | None = None) -> None:
        """Save a checkpoint, gathered from all processes and written by the first."""
        check_weights(self.step, self.model, self.run)
        with self.averaged():
            skeleton, tensors = take_apart(self.state_dict())
            model, state = gather(self.world, weights(self.model)), gather(self.world, tensors)
            if self.world.first:
                save_checkpoint(
                    run or self.run,
                    self.step,
                    model=model,
                    state=state,
                    state_json=skeleton,
                    config=config_to_dict(self.config),
                    tokenizer_json=self.tokenizer_json,
                    labels=self.objective.labels,
                )

    def resume(self, checkpoint: Checkpoint | None) -> list[str]:
        """Load a checkpoint, which the first process reads; return notes on what prevents a bit-for-bit continuation."""
        skeleton = self.world.share(checkpoint.state_json() if checkpoint else None)
        state = put_together(skeleton, share_looks(self.world, checkpoint.load_state() if checkpoint else {}))
        if state["data"] != self.prepared.fingerprint:
            raise UserError(
                f"the training data has changed since {step_name(state['step'])}: it would not be the same run",
                self.config.data.source,
                fix="restore the data",
                code="data.changed",
                setting="data.source",
            )
        deal_weights(self.world, self.model, checkpoint.load_model() if checkpoint else {})
        self.load_state_dict(state)
        return [
            f"the run was trained with {name} {then}, now it is {now}: it continues, but not bit for bit"
            for name, now in self.machine.items()
            if (then := state["machine"].get(name, now)) != now
        ]

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.budget.elapsed(),
            "pause": self.budget.pause,
            "late": self.late,
            "ended": self.ended,
            "best": self.best,
            "waited": self.waited,
            "batches": self.batches.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "precision": self.precision.state_dict(),
            "advisor": self.advisor.state_dict(),
            "machine": self.machine,
            "data": self.prepared.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.tokens, self.budget.seconds = state["step"], state["tokens"], state["seconds"]
        self.budget.pause, self.late = state.get("pause", 0.0), state.get("late", False)  # older checkpoints lack them
        self.ended, self.best, self.waited = state["ended"], state["best"], state["waited"]
        self.batches.load_state_dict(state["batches"])
        self.optimizer.load_state_dict(deal_state(self.world, state["optimizer"], parameters_by_state(self.optimizer)))
        if self.average is not None:
            self.average.load_state_dict(deal_state(self.world, state["average"], self.average.state_dict()))
        self.precision.load_state_dict(state["precision"])
        self.advisor.load_state_dict(state["advisor"])
