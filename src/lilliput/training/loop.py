"""The loop: a generator of events. It prints nothing and opens no file but through the run.

Owns: the order of things (update, save, evaluate, keep the best, test, end), the budget, the clock, stopping, and refusing
numbers that are not finite. Does not own: what is learned (`objectives`), what is done with the events (`observers`), how it
all is made or resumed (`session`), the order of the data (`data.batches`).

A checkpoint comes before its evaluation, so that a kill in the evaluation costs only the evaluation: a resumed run redoes it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from lilliput.checkpoints import Checkpoint, save_checkpoint
from lilliput.config import config_to_dict
from lilliput.data.batches import AnyBatch, Batches
from lilliput.data.prepare.token_files import Prepared
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, load_weights, weights
from lilliput.runs import Run
from lilliput.settings import Config
from lilliput.training.events import Evaluated, Event, Figures, Finished, Saved, Stepped, Tested
from lilliput.training.objectives import Objective, Split
from lilliput.training.optimizers import build_optimizer, clip_gradients, gradient_norm
from lilliput.training.schedules import learning_rate
from lilliput.training.state import describe_machine, put_together, random_seed, take_apart

SAMPLE_BATCH = 16  # rows of the sample at once: no setting, so that the figure does not depend on one


class Trainer(Generic[AnyBatch]):
    """Everything of a run that changes. Iterate over `events()`; call `stop()` to end after the current update."""

    def __init__(
        self,
        config: Config,
        model: Transformer,
        objective: Objective[AnyBatch],
        splits: Mapping[str, Split[AnyBatch]],
        prepared: Prepared,
        run: Run,
        floor: Callable[[], float | None],
    ) -> None:
        self.config, self.model, self.objective, self.prepared = config, model, objective, prepared
        self.run, self.floor, self.tests = run, floor, dict(splits)
        self.train, self.validation = self.tests.pop("train"), self.tests.pop("validation")
        self.tokenizer_json = prepared.tokenizer.to_json()
        self.optimizer = build_optimizer(config.optimizer, model)
        self.batches = Batches(self.train.rows, config.train.batch, config.seed)
        self.sample = self.validation.rows.sample(config.evaluate.rows, config.seed)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.best: tuple[float, int] | None = None  # (loss on the sample, step)
        self.ended = self.stopping = False
        self.clock = time.monotonic()  # when the run would have begun, had it never paused
        self.pace = 0.0  # seconds of the last update

    def stop(self) -> None:
        self.stopping = True

    def events(self) -> Iterator[Event]:
        self.clock = time.monotonic() - self.seconds
        self.model.train()
        if self.step:
            yield from self.close_step(saved=True)  # what a kill may have cut off
        while not self.ended and not self.stopping:
            yield self.update()
            self.ended = self.done()
            yield from self.close_step(saved=False)
        if self.ended:
            yield from self.judge()
        yield Finished(self.step, self.tokens, self.elapsed(), interrupted=not self.ended)

    def elapsed(self) -> float:
        self.seconds = time.monotonic() - self.clock
        return self.seconds

    def progress(self) -> float:
        """Share of the budget that is used up."""
        budget = self.config.train
        if budget.steps is not None:
            return self.step / budget.steps
        if budget.tokens is not None:
            return self.tokens / budget.tokens
        assert budget.minutes is not None
        return self.elapsed() / (60 * budget.minutes)

    def done(self) -> bool:
        if self.config.train.minutes is not None and self.step:
            # An update that would end after the budget is not begun; half of one either way is the best that can be had.
            return self.elapsed() + self.pace / 2 >= 60 * self.config.train.minutes
        return self.progress() >= 1.0

    def update(self) -> Stepped:
        """One optimizer step over `accumulate` micro-batches, weighted by what they count (tokens, or documents): exactly the
        gradient of one big batch."""
        began = time.monotonic()
        progress = self.progress()
        micro_batches = [next(self.batches) for _ in range(self.config.train.accumulate)]
        tokens, count = sum(batch.tokens for batch in micro_batches), sum(batch.count for batch in micro_batches)
        self.step += 1
        loss = 0.0
        for number, batch in enumerate(micro_batches):
            torch.manual_seed(random_seed(self.config.seed, self.step, number, rank=0))
            part = self.objective.nats(self.model, batch) / count
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        norm = gradient_norm(self.model)
        if not math.isfinite(loss) or not torch.isfinite(norm):
            raise self.not_finite(loss, micro_batches)
        if self.config.optimizer.clip is not None:
            clip_gradients(self.model, norm, self.config.optimizer.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config.schedule, group["peak"], self.step, progress)
        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tokens += tokens
        self.pace = time.monotonic() - began
        speed = tokens / max(self.pace, 1e-9)
        return Stepped(
            self.step,
            loss,
            lr,
            norm.item(),
            self.tokens,
            min(1.0, self.progress()),
            self.elapsed(),
            speed,
            peak_memory(),
        )

    def close_step(self, saved: bool) -> Iterator[Event]:
        """What follows an update: the checkpoint (unless it is `saved` already), its evaluation, the best, making room."""
        evaluation_due = self.ended or self.step % self.config.evaluate.every == 0
        save_due = evaluation_due or self.step % self.config.train.save_every == 0
        if save_due or self.stopping:
            checkpoint = self.last() if saved else self.save()
            if save_due:  # one made by stopping is not told: the log is as if undisturbed
                yield Saved(self.step, checkpoint.name)
        if evaluation_due and (self.ended or not self.stopping):
            found = self.objective.measure(
                self.model, self.validation, self.validation.rows.cut(self.sample, SAMPLE_BATCH)
            )
            yield self.evaluated(found, whole=False, weights=self.step)
            if self.best is None or found.loss < self.best[0]:
                self.best = (found.loss, self.step)
                self.run.mark_best(self.last())
        if save_due:
            self.run.prune(self.config.train.keep)

    def judge(self) -> Iterator[Event]:
        """The whole validation split and every test set, each token once, with the weights that are kept as best."""
        judged = self.step
        if self.best is not None and self.best[1] != self.step and (best := self.run.best) is not None:
            load_weights(self.model, best.load_model())
            judged = best.step
        yield self.evaluated(self.measure_whole(self.validation), whole=True, weights=judged)
        for name, split in self.tests.items():
            found = self.measure_whole(split)
            self.must_be_finite(found.loss, f"loss on test {name}")
            yield Tested(step=self.step, name=name, weights=judged, **asdict(found))

    def measure_whole(self, split: Split[AnyBatch]) -> Figures:
        return self.objective.measure(self.model, split, split.rows.in_order(self.config.train.batch))

    def evaluated(self, found: Figures, whole: bool, weights: int) -> Evaluated:
        self.must_be_finite(found.loss, "validation loss")
        floor = self.floor() if whole else None
        return Evaluated(step=self.step, whole=whole, weights=weights, floor=floor, **asdict(found))

    def must_be_finite(self, loss: float, what: str) -> None:
        if not math.isfinite(loss):
            hint = "a lower optimizer.lr; older checkpoints are kept"
            raise UserError(f"step {self.step}: the {what} is {loss}", str(self.run.folder), hint)

    def last(self) -> Checkpoint:
        last = self.run.last
        assert last is not None
        return last

    def save(self) -> Checkpoint:
        if spoilt := self.spoilt_weight():  # by the update itself; what is on disk is still good, and stays
            raise UserError(f"step {self.step}: the {spoilt} is not finite; it was not saved", None, self.way_back())
        skeleton, tensors = take_apart(self.state_dict())
        return save_checkpoint(
            self.run,
            self.step,
            model=weights(self.model),
            state=tensors,
            state_json=skeleton,
            config=config_to_dict(self.config),
            tokenizer_json=self.tokenizer_json,
            labels=self.objective.labels,
        )

    def resume(self, checkpoint: Checkpoint) -> list[str]:
        """Take up a checkpoint's state; tells what makes a bit-for-bit continuation impossible."""
        load_weights(self.model, checkpoint.load_model())
        state = put_together(checkpoint.state_json(), checkpoint.load_state())
        if state["data"] != self.prepared.fingerprint:
            raise UserError(
                f"the training data has changed since {checkpoint.name}: going on would not be the same run",
                self.config.data.source,
                f"the old data, or --name NEW --from {self.run.name}",
            )
        self.load_state_dict(state)
        return [
            f"the run was trained with {name} {then}, now it is {now}: it goes on, but not bit for bit"
            for name, now in describe_machine().items()
            if (then := state["machine"].get(name)) != now
        ]

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.elapsed(),
            "ended": self.ended,
            "best": self.best,
            "batches": self.batches.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "machine": describe_machine(),
            "data": self.prepared.fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.ended, self.best = state["ended"], state["best"]
        self.batches.load_state_dict(state["batches"])
        self.optimizer.load_state_dict(state["optimizer"])

    def not_finite(self, loss: float, batches: list[AnyBatch]) -> UserError:
        """Told before the weights are touched: they, and the last checkpoint, are as good as before."""
        named = ((f"gradient of {name}", p.grad) for name, p in self.model.named_parameters() if p.grad is not None)
        # Any gradient is spoilt by a weight that is; of sound gradients only the sum of squares can overflow.
        tensor = self.spoilt_weight() or first_not_finite(named) or "norm of all gradients"
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the {tensor} is not finite"
        rows = np.concatenate([batch.rows for batch in batches])
        told = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        where = f"first in the {tensor}; training rows {told}"
        return UserError(f"step {self.step}: {what}; the update was not made", where, self.way_back())

    def spoilt_weight(self) -> str | None:
        return first_not_finite((f"weight {name}", p) for name, p in self.model.named_parameters())

    def way_back(self) -> str:
        if (last := self.run.last) is None:
            return "a lower optimizer.lr or optimizer.clip"
        return f"--from {last.folder} --name NEW with a lower optimizer.lr: that checkpoint is good"


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    return next((name for name, tensor in tensors if not torch.isfinite(tensor).all()), None)


def peak_memory() -> int | None:
    """The most memory that this process has held, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
