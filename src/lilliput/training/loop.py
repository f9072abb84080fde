"""The loop: a generator of events. It prints nothing and opens no file but through the run.

Owns: the order of things (update, save, evaluate, keep the best, test, end), stopping, what a checkpoint has,
and refusing what is not sound. Does not own: what is learned (`objectives`), what is done with the events
(`observers`), how it all is made or resumed (`session`), the order of the data (`data.batches`), the clock
(`budget`), the processes (`process_group`, `distributed`).

A checkpoint comes before its evaluation, so that a kill in the evaluation costs only the evaluation: a
resumed run redoes it.

Every process goes through the same loop over its own rows, and all of them must come to the same decisions:
what depends on a clock or a signal is therefore agreed on, together with the sums that an update needs
anyway. The first one writes.
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
from lilliput.training.finite_checks import check_loss, check_weights, refuse_update
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
        self.asked = False  # to stop; all do when all have heard of it
        self.stopping = self.ended = self.early = False
        self.late = False  # an evaluation now would use up the budget
        self.machine = describe_machine(world.processes, precision.device, precision.dtype)
        self.operations = model.count().flops_per_token
        self.peak = known_flops(precision.device, precision.dtype) * world.processes

    def stop(self) -> None:
        self.asked = True
        self.stopping = self.world.processes == 1

    def agree_to_stop(self) -> bool:
        self.stopping = self.stopping or self.world.total([self.asked])[0] > 0
        return self.stopping

    def events(self) -> Iterator[Event]:
        for event in self.happenings():
            yield event
            yield from self.advisor.hear(event, self.rows)

    def happenings(self) -> Iterator[Event]:
        self.budget.start()
        self.model.train()
        nothing = self.train.rows.batch(np.zeros(0, np.int64))
        self.parallel.settle(lambda model: self.objective.losses(model, nothing).goal.sum())
        if self.step:
            yield from self.close_step(saved=True)  # what a kill may have cut off
        while not self.ended and not self.stopping:
            yield self.update()
            yield from self.close_step(saved=False)
        judged = self.ended and (yield from self.judge())
        yield Finished(self.step, self.tokens, self.budget.elapsed(), not judged, self.early)

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
        parts = [self.learn(number, batch, counts) for number, batch in enumerate(micro_batches)]
        nats = torch.stack(parts).sum(dim=0, dtype=torch.float64).tolist()
        forecast = budget.forecast() if world.first else (False, False)
        asked, last, late, *nats = world.total([self.asked, *forecast, *nats])
        loss = weigh(torch.tensor(nats, dtype=torch.float64), counts, self.objective.weights).item()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.schedule, group["peak"], self.step, gone)
        norm, clip = self.descend(loss), self.config.optimizer.clip
        self.tokens += tokens
        speed = tokens / max(budget.end_update(), 1e-9)
        gone = budget.progress(self.step, self.tokens)
        self.stopping = self.stopping or asked > 0
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

    def learn(self, number: int, batch: AnyBatch, counts: list[int]) -> Tensor:
        """Forward and backward of a micro-batch; gives its nats (K,)."""
        torch.manual_seed(random_seed(self.config.seed, self.step, number, self.world.rank))
        with self.parallel.exchanging(last=number + 1 == self.config.train.accumulate):
            with self.precision.casting():
                losses = self.parallel.learn(partial(self.objective.losses, batch=batch))
            goal = weigh(losses.goal, counts, self.objective.weights)
            (goal * (self.precision.scale * self.parallel.share)).backward()  # type: ignore[no-untyped-call]
        return losses.nats

    def descend(self, loss: float) -> float | None:
        """What the gradients are there for, and their norm before clipping; None: they overflowed, and nothing was done."""
        if self.precision.scale != 1.0:
            scale_gradients(self.model, 1.0 / self.precision.scale)
        norm, clip = gradient_norm(self.model), self.config.optimizer.clip
        accepted, size = self.precision.accept(norm), norm.item()
        if not math.isfinite(loss) or (accepted and not math.isfinite(size)):
            raise refuse_update(self.step, loss, self.model, self.rows, self.run)
        if accepted:
            if clip is not None:
                clip_gradients(self.model, norm, clip)
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.step)
        self.optimizer.zero_grad()
        return size if accepted else None

    # What follows it ---------------------------------------------------------------------------------------------------

    def close_step(self, saved: bool) -> Iterator[Event]:
        """What follows an update: the checkpoint (unless it is `saved` already), its evaluation, the best, making room."""
        evaluation_due = self.ended or (self.step % self.config.evaluate.every == 0 and not self.late)
        save_due = evaluation_due or self.step % self.config.train.save_every == 0
        if save_due:  # who asks now need not wait for all that follows, and another update
            self.agree_to_stop()
        if (save_due or self.stopping) and not saved:
            self.save()
        if save_due:  # a checkpoint made by stopping is not told: the log is as if undisturbed
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
                self.run.mark_best(self.last())
        if patience is not None and self.waited >= patience and not self.ended:
            self.ended = self.early = True

    def judge(self) -> Generator[Event, None, bool]:
        """The whole validation split and every test set, each token once, with the weights that are kept as best. False: it
        was stopped; resumed, the run is judged again."""
        best = self.run.best if self.world.first and self.best is not None else None
        others = best is not None and (best.step != self.step or self.average is not None)
        judged: int | None = self.world.share(best.step if best and others else None)
        if judged is not None:
            deal_weights(self.world, self.model, best.load_model() if best else {})
            self.average = None  # the model holds what is kept
        judged = self.step if judged is None else judged
        if (whole := self.measure_whole(self.validation)) is None:
            return False
        yield self.evaluated(whole, whole=True, weights=judged)
        for name, split in self.tests.items():
            if (found := self.measure_whole(split)) is None:
                return False
            check_loss(self.step, f"loss on test {name}", found.loss, self.run)
            yield Tested(step=self.step, name=name, weights=judged, **asdict(found))
        return True

    def measure_whole(self, split: Split[AnyBatch]) -> EvaluationFigures | None:
        """None: it was stopped. All processes ask each other after every batch, and so end with the same one; not before the
        first: of nothing there are no figures."""

        def until_stopped() -> Iterator[AnyBatch]:
            for batch in split.rows.in_order(self.config.train.batch, self.world.rank, self.world.processes):
                yield batch
                if self.agree_to_stop():
                    return

        found = self.measure(split, until_stopped())
        return None if self.stopping else found

    def measure(self, split: Split[AnyBatch], batches: Iterable[AnyBatch]) -> EvaluationFigures:
        """Of all processes together, each with its part of every batch."""
        return self.use(lambda model: self.objective.measure(model, split, batches, self.world.total))

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Do something with the model as it would be kept now, without learning from it. All processes must.

        In the type of the weights, whatever the type of products while learning: a figure that is told must be the one that
        anybody finds who judges the checkpoint, on any machine.
        """
        with self.averaged():
            return self.parallel.use(work)

    def averaged(self) -> AbstractContextManager[None]:
        return self.average.applied() if self.average is not None else nullcontext()

    def evaluated(self, found: EvaluationFigures, whole: bool, weights: int) -> Evaluated:
        check_loss(self.step, "validation loss", found.loss, self.run)
        floor = self.floor() if whole and self.world.first else None
        return Evaluated(step=self.step, whole=whole, weights=weights, floor=floor, **asdict(found))

    def last(self) -> Checkpoint:
        last = self.run.last
        assert last is not None
        return last

    # Saving and going on -----------------------------------------------------------------------------------------------

    def save(self, run: Run | None = None) -> None:
        """All of it, gathered from all processes and written by the first."""
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
        """Take up a checkpoint's state, which the first process reads; tells what makes a bit-for-bit continuation
        impossible."""
        skeleton = self.world.share(checkpoint.state_json() if checkpoint else None)
        state = put_together(skeleton, share_looks(self.world, checkpoint.load_state() if checkpoint else {}))
        if state["data"] != self.prepared.fingerprint:
            raise UserError(
                f"the training data has changed since {step_name(state['step'])}: going on would not be the same run",
                self.config.data.source,
                f"the old data, or --name NEW --from {self.run.name}",
            )
        deal_weights(self.world, self.model, checkpoint.load_model() if checkpoint else {})
        self.load_state_dict(state)
        return [
            f"the run was trained with {name} {then}, now it is {now}: it goes on, but not bit for bit"
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
