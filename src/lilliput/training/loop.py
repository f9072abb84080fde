"""The training loop: a generator of events. It prints nothing, and writes files only through the run.

Owns: the order of steps, checkpoints, evaluations and tests; stopping; the contents of a checkpoint. Does not own:
the losses (`objectives`), the use of events (`observers`), building the parts (`session`), the order of the data
(`data.batches`), the clock (`budget`), the processes (`process_group`, `distributed`).

A checkpoint is saved before its evaluation. If the process is killed during the evaluation, a resumed run
repeats only the evaluation.

Every process runs the same loop over its own rows, and all must make the same decisions. So decisions that depend
on a clock or a signal are exchanged, together with the sums that a step needs anyway. Only the first process writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lilliput.data.batches import AnyBatch, Batches
from lilliput.data.prepare.token_files import Prepared
from lilliput.devices import known_flops, peak_memory, remember_reached
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, weights
from lilliput.settings.loading import config_to_dict
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import Checkpoint, save_checkpoint, step_name
from lilliput.storage.run_folders import RunFolder
from lilliput.storage.state_format import describe_machine, put_together, random_seed, take_apart
from lilliput.training.budget import Budget
from lilliput.training.distributed import Parallel
from lilliput.training.events import Evaluated, Event, Finished, Saved, Stepped, Tested
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
from lilliput.training.run_evaluation import EvaluationPlan, Evaluator
from lilliput.training.schedules import learning_rate
from lilliput.training.sharded_tensors import deal_state, deal_weights, gather, share_shapes
from lilliput.training.speed_warning import SpeedWatch
from lilliput.training.training_warnings import Advisor
from lilliput.training.weight_averaging import Average

Answer = TypeVar("Answer")


class Trainer(Generic[AnyBatch]):
    """The state of a run. Iterate over `events()`; call `stop()` to end after the current step or batch."""

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
        run: RunFolder,
        floor: Callable[[], float | None],
    ) -> None:
        self.config, self.world, self.model, self.parallel, self.precision = config, world, model, parallel, precision
        self.objective, self.prepared, self.run, self.floor = objective, prepared, run, floor
        self.train, self.tests = splits["train"], [name for name in splits if name not in ("train", "validation")]
        self.tokenizer_json = prepared.tokenizer.to_json()
        self.optimizer = build_optimizer(config.optimizer, model)
        self.average = Average(model, config.optimizer.average) if config.optimizer.average is not None else None
        self.advisor = Advisor(config)
        self.speed = SpeedWatch(torch.get_num_threads() if precision.device.type == "cpu" else 1)
        self.batches = Batches(self.train.rows, config.train.batch, config.seed, world.rank, world.processes)
        self.plan = EvaluationPlan(config, splits)
        self.evaluator = Evaluator(world, objective, splits, self.plan, self.use, self.agree_to_stop)
        self.step, self.tokens, self.budget = 0, 0, Budget(config.train, self.plan.steps)
        self.loss: float | None = None  # of the last step
        self.rows: list[int] = []  # of the last step, in all processes
        self.best: tuple[float, int] | None = None  # (loss on the sample, step)
        self.waited = 0  # evaluations since the best
        self.stop_requested = False  # in this process; `stopping` is the decision of all processes
        self.stopping = self.ended = self.early = False
        self.extended = False  # it had ended, and has a larger budget now
        self.late = False  # no time left for an evaluation before the end
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
            yield from self.speed.check(event)

    def training_events(self) -> Iterator[Event]:
        self.budget.start()
        self.model.train()
        nothing = self.train.rows.batch(np.zeros(0, np.int64))
        self.parallel.settle(lambda model: self.objective.losses(model, nothing).goal.sum())
        if self.step:
            yield from self.finish_step(saved=True)  # the process may have been killed before its end
            self.ended, self.waited = self.ended and not self.extended, 0 if self.extended else self.waited
        elif self.plan.due(0):
            yield self.evaluate_samples()
        while not self.ended and not self.stopping:
            yield self.update()
            yield from self.finish_step(saved=False)
        complete = self.ended and (yield from self.evaluate_whole_splits())
        limited_at = self.budget.limited_at(self.step, self.tokens) if self.ended and not self.early else None
        yield Finished(self.step, self.tokens, self.budget.elapsed(), not complete, self.early, limited_at)

    # One step ----------------------------------------------------------------------------------------------------------

    def update(self) -> Stepped:
        """Make one optimizer step over `accumulate` micro-batches in all processes. They are weighted by their number of
        tokens or documents, which gives exactly the gradient of one large batch."""
        budget, world = self.budget, self.world
        budget.begin_update()
        micro_batches, self.rows = [], []
        for _ in range(self.config.train.accumulate):
            micro_batches.append(next(self.batches))
            self.rows += self.batches.taken.tolist()
        own = [sum(parts) for parts in zip(*((batch.tokens, *batch.counts) for batch in micro_batches), strict=True)]
        progress = budget.progress(self.step, self.tokens) if world.first else 0.0
        progress, *sums = world.total([progress, *own])
        tokens, *counts = map(int, sums)
        self.step += 1
        parts = [self.forward_backward(number, batch, counts) for number, batch in enumerate(micro_batches)]
        nats = torch.stack(parts).sum(dim=0, dtype=torch.float64).tolist()
        forecast = budget.forecast() if world.first else (False, False)
        requested, last, late, *nats = world.total([self.stop_requested, *forecast, *nats])
        loss = weigh(torch.tensor(nats, dtype=torch.float64), counts, self.objective.weights).item()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.schedule, group["peak"], self.step, progress)
        norm, clip = self.apply_gradients(loss), self.config.optimizer.clip
        self.tokens, self.loss = self.tokens + tokens, loss
        speed = tokens / max(budget.end_update(self.step), 1e-9)
        progress = budget.progress(self.step, self.tokens)
        self.stopping = self.stopping or requested > 0
        self.ended, self.late = last > 0 or budget.is_complete(self.step, self.tokens), late > 0
        return Stepped(
            self.step,
            loss,
            self.optimizer.param_groups[0]["lr"],
            norm,
            self.tokens,
            1.0 if self.ended else min(1.0, progress),
            budget.elapsed(),
            speed,
            peak_memory(self.precision.device),
            clipped=norm is not None and clip is not None and norm > clip,
            skipped=norm is None,
            share_of_peak=self.share_of_peak(speed),
        )

    def share_of_peak(self, speed: float) -> float:
        """Return tokens per second as a share of the highest known speed, which is raised to a higher speed."""
        reached = speed * self.operations
        if reached > self.peak:
            self.peak = reached
            if self.world.first:
                remember_reached(self.precision.device, self.precision.dtype, reached / self.world.processes)
        return reached / self.peak

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
        """Clip the gradients and step the optimizer. Return the norm before clipping, or None if the gradients overflowed and
        the step was skipped."""
        if self.precision.scale != 1.0:
            scale_gradients(self.model, 1.0 / self.precision.scale)
        norm, clip = gradient_norm(self.model), self.config.optimizer.clip
        accepted, size = self.precision.accept(norm), norm.item()
        if not math.isfinite(loss) or (accepted and not math.isfinite(size)):
            raise update_error(self.step, loss, self.model, self.rows, self.run, self.config)
        if accepted:
            if clip is not None:
                clip_gradients(self.model, norm, clip)
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.step)
        self.optimizer.zero_grad()
        return size if accepted else None

    # Checkpoints and evaluations ---------------------------------------------------------------------------------------

    def finish_step(self, saved: bool) -> Iterator[Event]:
        """After a step: save (unless `saved`), evaluate, keep the best checkpoint, remove old ones."""
        evaluation_due = self.ended or (self.plan.due(self.step) and not self.late)
        save_due = evaluation_due or self.step % self.config.train.save_every == 0
        if save_due:  # stop before the evaluation, not after another step
            self.agree_to_stop()
        if (save_due or self.stopping) and not saved:
            self.save()
        if save_due:  # a checkpoint of a stopped run is not logged, so that the log equals that of an uninterrupted run
            yield Saved(self.step, step_name(self.step))
        if evaluation_due and (self.ended or not self.stopping):
            evaluated = self.evaluate_samples()
            yield evaluated
            self.keep_best(evaluated.loss)
        if save_due and self.world.first:
            self.run.prune(self.config.train.keep)

    def evaluate_samples(self) -> Evaluated:
        """Evaluate the samples of the plan. Only the validation loss decides which checkpoint is the best."""
        with self.budget.evaluating():
            metrics = self.evaluator.measure_samples()
        training, validation = metrics.pop("train", None), metrics.pop("validation")
        check_loss(self.step, "validation loss", validation.loss, self.run)
        return Evaluated(
            step=self.step,
            whole=False,
            weights=self.step,
            floor=None,
            epoch=self.plan.epoch(self.step),
            seconds=self.budget.elapsed(),
            batch_loss=self.loss,
            training=training,
            tests=metrics,
            **vars(validation),
        )

    def keep_best(self, loss: float) -> None:
        patience, self.waited = self.config.train.patience, self.waited + 1
        if self.best is None or loss < self.best[0]:
            self.best, self.waited = (loss, self.step), 0
            if self.world.first and (last := self.run.last):
                self.run.mark_best(last)
        if patience is not None and self.waited >= patience and not self.ended:
            self.ended = self.early = True

    def evaluate_whole_splits(self) -> Generator[Event, None, bool]:
        """Evaluate the best weights on the whole validation split and every test set. Return False if stopped; a resumed run
        repeats it."""
        best = self.run.best if self.world.first and self.best is not None else None
        others = best is not None and (best.step != self.step or self.average is not None)
        loaded: int | None = self.world.share(best.step if best and others else None)
        if loaded is not None:
            deal_weights(self.world, self.model, best.load_model() if best else {})
            self.average = None  # the checkpoint holds averaged weights
        evaluated_step = self.step if loaded is None else loaded
        if (whole := self.evaluator.measure_whole("validation", self.config.train.batch)) is None:
            return False
        check_loss(self.step, "validation loss", whole.loss, self.run)
        floor = self.floor() if self.world.first else None
        yield Evaluated(step=self.step, whole=True, weights=evaluated_step, floor=floor, **vars(whole))
        for name in self.tests:
            if (metrics := self.evaluator.measure_whole(name, self.config.train.batch)) is None:
                return False
            check_loss(self.step, f"loss on test {name}", metrics.loss, self.run)
            yield Tested(step=self.step, name=name, weights=evaluated_step, **vars(metrics))
        return True

    def use(self, work: Callable[[Transformer], Answer]) -> Answer:
        """Run `work` with the weights that would be saved now, without gradients. All processes must call this.

        It computes in the type of the weights, not in train.precision: the results equal those of the saved checkpoint.
        """
        with self.averaged():
            return self.parallel.use(work)

    def averaged(self) -> AbstractContextManager[None]:
        return self.average.applied() if self.average is not None else nullcontext()

    # Saving and resuming -----------------------------------------------------------------------------------------------

    def save(self, run: RunFolder | None = None) -> None:
        """Gather a checkpoint from all processes; the first one writes it."""
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
        """Load a checkpoint, which the first process reads. Return notes on differences that prevent a bit-identical
        continuation."""
        skeleton = self.world.share(checkpoint.state_json() if checkpoint else None)
        state = put_together(skeleton, share_shapes(self.world, checkpoint.load_state() if checkpoint else {}))
        if state["data"] != self.prepared.fingerprint:
            raise UserError(
                f"the training data has changed since checkpoint {step_name(state['step'])}",
                self.config.data.source,
                fix="replace the data with the original, or start a new run",
                code="data.changed",
                setting="data.source",
            )
        deal_weights(self.world, self.model, checkpoint.load_model() if checkpoint else {})
        self.load_state_dict(state)
        return [
            f"{name} has changed from {then} to {now}: the run continues, but not bit-identically"
            for name, now in self.machine.items()
            if (then := state["machine"].get(name, now)) != now
        ]

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            **self.budget.state_dict(),
            "late": self.late,
            "ended": self.ended,
            "loss": self.loss,
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
        self.step, self.tokens, self.late = state["step"], state["tokens"], state.get("late", False)
        self.budget.load_state_dict(state)
        self.ended, self.best, self.waited = state["ended"], state["best"], state["waited"]
        self.loss = state.get("loss")
        self.batches.load_state_dict(state["batches"])
        self.optimizer.load_state_dict(deal_state(self.world, state["optimizer"], parameters_by_state(self.optimizer)))
        if self.average is not None:
            self.average.load_state_dict(deal_state(self.world, state["average"], self.average.state_dict()))
        self.precision.load_state_dict(state["precision"])
        self.advisor.load_state_dict(state["advisor"])
