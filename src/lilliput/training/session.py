"""From settings to a trainer that is ready to run, in four steps: resolve, data, model, trainer.

Owns: the order of the steps, resuming from a checkpoint or creating the run's folder at their end, and sessions.
Does not own: the steps themselves (`run_start`, `training_data`, `model_setup`), the loop, the console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from lilliput.data.prepare.token_files import Prepared
from lilliput.data.progress import Report, silent
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.writer import Writer
from lilliput.devices import device_memory, prepare_machine
from lilliput.errors import UserError
from lilliput.evaluation.generated_stories import storybook_floor
from lilliput.model.transformer import Transformer
from lilliput.settings.loading import config_to_dict
from lilliput.settings.tree import Config
from lilliput.storage.environment import describe_hardware, describe_versions
from lilliput.storage.run_folders import RunFolder
from lilliput.training.cost_estimate import refuse_too_large
from lilliput.training.elastic_restart import save_launches
from lilliput.training.events import Event, SessionStarted
from lilliput.training.extension import extend, has_grown
from lilliput.training.first_look import starting_notes, text_notes
from lilliput.training.loop import Trainer
from lilliput.training.model_setup import ModelSetup, set_up_model
from lilliput.training.observers import MetricsFile, Observer
from lilliput.training.process_group import World
from lilliput.training.run_start import ClaimedRun, RunStart, claim_run, resolve_start
from lilliput.training.speed_choice import choose_speed
from lilliput.training.step_timing import Work
from lilliput.training.trackers import build_trackers, need_trackers
from lilliput.training.training_data import TrainingData, load_training_data


@dataclass
class Session:
    """A run about to train. `notes` are sentences for the user."""

    run: RunFolder
    trainer: Trainer[Any]
    prepared: Prepared
    notes: list[str]

    def write_sample(self) -> str:
        """Generate a text with the weights that would be saved now, without n-grams. All processes must call this."""
        config, step = self.trainer.config, self.trainer.step
        prompt, tokenizer = config.generate.prompt, self.prepared.tokenizer
        alone = replace(config.generate, mix_ngram=None)

        def generate(model: Transformer) -> str:
            # Other engines copy the weights, which the next step changes.
            writer = Writer(config, model, tokenizer, engine=TorchEngine(model))
            with torch.autocast(model.device.type, enabled=False):  # a loaded model computes in the type of its weights
                return writer.generate(prompt, seed=step, settings=alone)

        return prompt + self.trainer.use(generate)

    def events(self, observers: list[Observer]) -> Iterator[Event]:
        """Train, and pass each event to the log and the observers."""
        receivers = list(observers)
        with ExitStack() as stack:
            if self.trainer.world.first:
                log = MetricsFile(self.run, self.trainer.config.log.every)
                log(describe_session(self.trainer))
                receivers = [log, *build_trackers(self.trainer.config, self.run, self.trainer.step), *observers]
            for receiver in receivers:
                stack.callback(receiver.close)
            for event in self.trainer.events():
                for receiver in receivers:
                    receiver(event)
                yield event


def describe_session(trainer: Trainer[Any]) -> SessionStarted:
    """Return the environment in which the run is trained from its present step on."""
    machine, device = describe_hardware() | trainer.machine, trainer.precision.device
    versions = describe_versions(()) | {"torch": machine.pop("torch")}
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    memory = device_memory(device)
    return SessionStarted(trainer.step, versions, machine, memory, trainer.peak, trainer.operations)


@contextmanager
def open_session(
    config: Config,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | None = None,
    report: Report = silent,
    world: World | None = None,
) -> Iterator[Session]:
    """Open a session for a run with these settings. `world`: the processes that train it."""
    world = world or World()
    start = resolve_start(config, resume, overwrite, start_from) if world.first else None
    with start_session(start, report, world) as session:
        yield session


@contextmanager
def start_session(start: RunStart | None, report: Report, world: World) -> Iterator[Session]:
    """Build the session. The run's folder is locked while it is open.

    All processes call this together; only the first needs `start`.
    """
    if start is not None:
        need_trackers(start.config.log)
    with ExitStack() as stack:
        claimed = claim_run(start, world, stack)
        refuse_small_batch(claimed.config, world)
        refuse_mixture(claimed.config, world)
        device = world.device(claimed.config.train.device)
        prepare_machine(threads_of(claimed, world))
        data = load_training_data(claimed, world, report)
        if world.processes == 1:  # several may share the model
            refuse_too_large(data.config, device)
        if not claimed.resumed:
            data = choose_for_run(claimed, data, device, world, report)
        setup = set_up_model(claimed, data, device, world, report)
        session = Session(claimed.run, build_trainer(claimed.run, data, setup, world), data.prepared, claimed.notes)
        if claimed.resumed:
            resume_training(session, claimed)
        else:
            create_run(session, claimed, stack)
            session.notes += first_notes(session, claimed)
        yield session


def threads_of(claimed: ClaimedRun, world: World) -> int | None:
    """Return the number of threads in the settings. A run that another number of processes has trained gets at most the default
    of torch: several processes with all cores each would wait for each other."""
    machine = claimed.checkpoint.machine() if claimed.resumed and claimed.checkpoint else {}
    changed = world.share(machine.get("processes", world.processes) != world.processes)
    threads = claimed.config.train.threads
    return min(threads, torch.get_num_threads()) if threads is not None and changed else threads


def choose_for_run(
    claimed: ClaimedRun, data: TrainingData, device: torch.device, world: World, report: Report
) -> TrainingData:
    """Return the data with settings that have a precision and, in a single process on a CPU, a number of threads."""
    work = Work(data.config, data.objective, data.splits["train"], device)
    choice = choose_speed(work, world, report)
    claimed.notes += [choice.note] if choice.note else []
    prepare_machine(choice.threads)
    return replace(data, config=choice.applied(data.config))


def first_notes(session: Session, claimed: ClaimedRun) -> list[str]:
    """Return what the user should know before the first step of a new run."""
    trainer, prepared = session.trainer, session.prepared
    if not claimed.has_weights:
        return text_notes(trainer.config, prepared)
    # Several processes exchange weights only when they train.
    return starting_notes(trainer, prepared, claimed.origin) if claimed.origin and trainer.world.processes == 1 else []


def refuse_small_batch(config: Config, world: World) -> None:
    """Raise if there are more processes than rows in a batch."""
    if world.processes > config.train.batch:
        raise UserError(
            f"train.batch must be at least {world.processes} for {world.processes} processes (got {config.train.batch})",
            fix=f"set train.batch to {world.processes} or more, or start fewer processes",
            code="setting.conflict",
            setting="train.batch",
        )


def refuse_mixture(config: Config, world: World) -> None:
    """Raise if several processes train a run that mixes the model with n-grams: one process counts and fits them."""
    if world.processes > 1 and config.generate.mix_ngram is not None:
        raise UserError(
            f"generate.mix_ngram requires one process (got {world.processes})",
            fix="set generate.mix_ngram to none, or train without torchrun",
            code="setting.conflict",
            setting="generate.mix_ngram",
        )


def build_trainer(run: RunFolder, data: TrainingData, setup: ModelSetup, world: World) -> Trainer[Any]:
    trainer = Trainer(
        data.config,
        world,
        setup.model,
        setup.parallel,
        setup.precision,
        data.objective,
        data.splits,
        data.prepared,
        run,
        partial(storybook_floor, data.config),
    )
    trainer.budget.seconds = setup.seconds
    return trainer


def create_run(session: Session, claimed: ClaimedRun, stack: ExitStack) -> None:
    """Create and lock the run's folder. If the weights are another run's, save them first: the other run may be deleted."""
    trainer, world = session.trainer, session.trainer.world
    save: Callable[[RunFolder], None] = trainer.save if claimed.has_weights else lambda _: None
    if not world.first:
        save(session.run)  # all processes gather the weights
        return

    def fill(new: RunFolder) -> None:
        save_launches(new, world.launches())
        save(new)

    folder, config = session.run.folder, config_to_dict(trainer.config)
    trainer.run = session.run = RunFolder.create(folder, config, claimed.overwrite, fill)
    stack.enter_context(session.run.lock())


def resume_training(session: Session, claimed: ClaimedRun) -> None:
    """Load the checkpoint, which only the first process has; without one, start the run again."""
    run, trainer, notes, world = session.run, session.trainer, session.notes, session.trainer.world
    if not claimed.has_weights:
        notes.append("the run has no checkpoint: it starts again at step 0")
        if world.first:
            run.cut_metrics(0)
        return
    notes += trainer.resume(claimed.checkpoint)  # may raise: nothing has been changed yet
    if world.share(claimed.checkpoint is not None and has_grown(claimed.checkpoint, trainer)):
        notes.append(extend(trainer))  # may raise too
        if world.first:
            run.save_config(config_to_dict(trainer.config))
    elif trainer.ended:
        notes.append("the run has used up its budget or its time: only the final evaluation is repeated")
    if claimed.checkpoint is not None:
        run.rewind(claimed.checkpoint)
    if not world.share(world.first and best_verifies(run, notes)):
        trainer.best = None


def best_verifies(run: RunFolder, notes: list[str]) -> bool:
    """Return whether the best checkpoint is intact or missing; add a note if it is damaged."""
    try:
        if run.best:
            run.best.verify()
    except UserError as error:
        notes.append(f"{error.what}; the best of the next checkpoints will replace it")
        return False
    return True
