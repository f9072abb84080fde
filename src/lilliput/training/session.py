"""From settings to a trainer that is ready to run: data, tokenizer, device, weights, run folder, resume.

Owns: making everything that trains, in order, and where a run is kept. Does not own: which way a run begins
(`run_start`), the loop, the console, or what the settings mean.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lilliput.data.batches import RowSource
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.data.progress import Report, silent
from lilliput.data.tokenizers import Tokenizer
from lilliput.data.vectors import Vectors, fit_vectors, prepare_vectors
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.writer import Writer
from lilliput.devices import prepare_machine
from lilliput.errors import UserError
from lilliput.evaluation.generated_stories import storybook_floor
from lilliput.kernels.training_attention import fits, load_attention
from lilliput.model.embeddings import put_vectors
from lilliput.model.recompute import use_compile, use_recompute
from lilliput.model.transformer import Transformer, build_model, load_weights
from lilliput.settings.loading import config_from_dict, config_to_dict, replace
from lilliput.settings.tree import Config
from lilliput.storage.checkpoints import Checkpoint
from lilliput.storage.run_folders import Run
from lilliput.training.bigram_initialisation import learn_pairs
from lilliput.training.distributed import parallelise
from lilliput.training.events import Event
from lilliput.training.loop import Trainer
from lilliput.training.objectives import DocumentLabel, NextToken, Objective, TokenAndLabel, balanced_weights
from lilliput.training.observers import MetricsFile, Observer
from lilliput.training.precision import Precision, build_precision
from lilliput.training.process_group import World, open_world
from lilliput.training.run_start import find_start, remember
from lilliput.training.trackers import build_trackers, need_trackers

# No separators, no control characters, nothing that Windows refuses.
NAME = re.compile(r'[^\s.\-/\\:*?"<>|\x00-\x1f\x7f]([^/\\:*?"<>|\x00-\x1f\x7f]*[^\s./\\:*?"<>|\x00-\x1f\x7f])?')
LONGEST_NAME = 100  # bytes; a file system's 255 must also hold what stands around it while the folder is written


@dataclass
class Session:
    """A run about to train. `notes` are sentences for the user."""

    run: Run
    trainer: Trainer[Any]
    prepared: Prepared
    notes: list[str] = field(default_factory=list)

    def write_sample(self) -> str:
        """A text by the model as it would be kept now, and as `load` would have it written. All processes write it together."""
        config, step = self.trainer.config, self.trainer.step
        prompt, tokenizer = config.generate.prompt, self.prepared.tokenizer

        def write(model: Transformer) -> str:
            # On the model itself: other engines take a copy of the weights, which are others after the next step.
            writer = Writer(config, model, tokenizer, engine=TorchEngine(model))
            with torch.autocast(model.device.type, enabled=False):  # a loaded model's products are of its weights' type
                return writer.generate(prompt, seed=step)

        return prompt + self.trainer.use(write)

    def events(self, observers: list[Observer]) -> Iterator[Event]:
        """Train, the log first and then the observers hearing of each event before the next happens."""
        everybody = list(observers)
        with ExitStack() as stack:
            if self.trainer.world.first:
                log = MetricsFile(self.run, self.trainer.config.log.every)
                everybody = [log, *build_trackers(self.trainer.config, self.run, self.trainer.step), *observers]
            for observer in everybody:
                stack.callback(observer.close)
            for event in self.trainer.events():
                for observer in everybody:
                    observer(event)
                yield event


def run_folder(config: Config) -> Path:
    """Where a run is kept. Its name is the name of one folder, on every system, and can be given to any verb."""
    name = config.name or "run"
    if not NAME.fullmatch(name) or len(os.fsencode(name)) > LONGEST_NAME:
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        raise UserError(
            f"{shown!r} cannot be the name of a run: one folder's name, not beginning with a dot or a dash",
            None,
            f"--name NAME, of at most {LONGEST_NAME} letters, digits and the like; --log.folder FOLDER for a place",
        )
    return Path(config.log.folder) / name


@contextmanager
def open_session(
    config: Config,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | None = None,
    report: Report = silent,
    world: World | None = None,
) -> Iterator[Session]:
    """Ready to train, the run's folder locked for as long as the session is open. `world`: the processes that train it."""
    need_trackers(config.log)
    world = world or World()
    with ExitStack() as stack:
        folder = run_folder(config)
        begin = find_start(folder, config, resume, overwrite, start_from, world, stack) if world.first else None
        told = world.share([config_to_dict(begin.config), begin.resumed, begin.tokenizer()] if begin else None)
        config, resume, notes = config_from_dict(told[0], "settings"), told[1], begin.notes if begin else []
        if world.processes > config.train.batch:
            what = f"train.batch is {config.train.batch}, and there are {world.processes} processes to share its rows"
            raise UserError(what, "train.batch", f"train.batch {world.processes}, or fewer processes")
        device = world.device(config.train.device)
        prepare_machine(config.train.threads)
        tokenizer = None if told[2] is None else Tokenizer.from_json(told[2], "tokenizer.json")
        prepared = world.in_turn(partial(prepare, config, report, tokenizer))
        if world.share(prepared.fingerprint) != prepared.fingerprint:
            what = f"process {world.rank} has other data than the first one: {config.data.source} is not the same there"
            raise UserError(what, "data.source", "the same files on every machine")
        origin = begin.origin if begin else None
        config = fit_labels(fit_vocabulary(config, prepared.tokenizer), prepared.labels, origin)
        vectors: Vectors | None = None
        has_weights = world.share(begin is not None and begin.checkpoint is not None)
        if config.vectors.source is not None and not has_weights:  # a checkpoint has them among its weights
            vectors = world.in_turn(partial(prepare_vectors, config, prepared, report))
            config = fit_vectors(config, vectors)
        precision = agree_on_precision(config.train.precision, device, world)
        notes += [precision.note] if precision.note else []
        model = build_model(config.model, config.vectors, seed=config.seed)
        wanted = model.causal and not config.model.dropout and fits(model.head_dim)
        if wanted and device.type == "cpu" and precision.dtype is torch.float32:
            world.in_turn(partial(load_attention, lambda sentence: report(sentence, 0, 0)))
        if vectors is not None:
            put_vectors(model.embedding, config.vectors.uncovered, vectors.table, vectors.covered)
        model.to(precision.weights_dtype)
        if origin:
            load_weights(model, origin.load_model())
        objective = build_objective(config, prepared)
        splits = {name: objective.open(prepared.split(name), training=name == "train") for name in prepared.splits}
        spent = 0.0
        if world.first and not has_weights:  # the others are given its weights
            spent = begin_by_counts(config, model, splits["train"].rows, device, notes)
        use_recompute(model, config.train.recompute, config.train.recompute_every)
        parallel = parallelise(model, world, config.train.parallel, device)
        if config.train.compile:
            use_compile(model)
        run = begin.run if begin else Run(folder)
        floor = partial(storybook_floor, config)
        trainer = Trainer(config, world, model, parallel, precision, objective, splits, prepared, run, floor)
        trainer.budget.seconds = spent
        session = Session(run, trainer, prepared, notes)
        if resume:
            go_on(session, begin.checkpoint if begin else None)
        elif has_weights:
            # Another run's weights and tokenizer are this one's from its first moment: it never needs the other again.
            create(session, overwrite, stack, trainer.save)
        else:
            create(session, overwrite, stack, lambda _: None)
        yield session


def begin_by_counts(
    config: Config, model: Transformer, rows: RowSource[Any], device: torch.device, notes: list[str]
) -> float:
    """Initialise the model from bigram counts if `train.pair_updates` is set; return the seconds it took, part of the budget."""
    began, updates = time.monotonic(), config.train.pair_updates
    if not updates:
        return 0.0
    nats = learn_pairs(model, rows, updates, config.seed, device)
    spent = time.monotonic() - began
    notes.append(f"begun as a model of pairs of tokens: {nats:.3f} nats, {spent:.0f} s")
    return spent


def create(session: Session, overwrite: bool, stack: ExitStack, fill: Callable[[Run], None]) -> None:
    """The run's folder, made and locked by the first process; `fill` is called by all."""
    trainer, world = session.trainer, session.trainer.world
    if not world.first:
        fill(session.run)
        return

    def begin(new: Run) -> None:
        remember(new, world.launches())
        fill(new)

    trainer.run = session.run = Run.create(session.run.folder, config_to_dict(trainer.config), overwrite, begin)
    stack.enter_context(session.run.lock())


def agree_on_precision(name: str, device: torch.device, world: World) -> Precision:
    """`auto` is measured, and what is measured can differ: all take what the first one finds."""
    chosen = build_precision(name, device) if world.first else None
    name = world.share(str(chosen.dtype).removeprefix("torch.") if chosen else None)
    return chosen or build_precision(name, device)


def go_on(session: Session, checkpoint: Checkpoint | None) -> None:
    """Take up a checkpoint, which the first process has; without one, begin again."""
    run, trainer, notes, world = session.run, session.trainer, session.notes, session.trainer.world
    if not world.share(checkpoint is not None):
        notes.append("the run has no checkpoint yet: it begins again")
        if world.first:
            run.cut_metrics(0)
        return
    notes += trainer.resume(checkpoint)  # may refuse: nothing has been touched yet
    if trainer.ended:
        notes.append("the run had used up its budget: only its evaluation is done again")
    if checkpoint is not None:
        run.rewind(checkpoint)
    if not world.share(world.first and best_is_whole(run, notes)):
        trainer.best = None


def best_is_whole(run: Run, notes: list[str]) -> bool:
    try:
        if run.best:
            run.best.verify()
    except UserError as error:
        notes.append(f"{error.what}; the best of what comes is kept in its place")
        return False
    return True


def fit_vocabulary(config: Config, tokenizer: Tokenizer) -> Config:
    """model.vocab_size from the tokenizer, or refused where it is too small."""
    asked = config.model.vocab_size
    if asked is None:
        return replace(config, {"model.vocab_size": tokenizer.vocab_size})
    if asked < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size is {asked:,} and the tokenizer has {tokenizer.vocab_size:,} tokens",
            "model.vocab_size",
            "model.vocab_size none takes the tokenizer's",
        )
    return config


def fit_labels(config: Config, labels: list[str] | None, origin: Checkpoint | None) -> Config:
    """model.classes from the labels of the training split, or refused where it is another number.

    Weights of another run know its labels by their order: they fit only the same ones.
    """
    if config.model.task == "language":
        return config
    if labels is None:
        what = f"model.task {config.model.task} needs labelled documents, and {config.data.source} has no labels"
        raise UserError(what, "model.task", "data.labelled true, or model.task language")
    told = f"{', '.join(labels[:8])}{', ...' if len(labels) > 8 else ''}"
    if origin and origin.labels() != labels:
        theirs = ", ".join((origin.labels() or ["none"])[:8])
        what = f"the documents have the labels {told}, and the weights know {theirs}"
        raise UserError(what, str(origin.folder), "documents with the same labels, or training without --from")
    if config.model.classes not in (None, len(labels)):
        what = f"model.classes is {config.model.classes} and the training documents have {len(labels)} labels: {told}"
        raise UserError(what, "model.classes", f"model.classes {len(labels)}")
    return replace(config, {"model.classes": len(labels)})


def build_objective(config: Config, prepared: Prepared) -> Objective[Any]:
    context, start, labels = config.model.context, prepared.tokenizer.start, prepared.labels
    smoothing, z_loss = config.train.label_smoothing, config.train.z_loss
    if config.model.task == "language":
        return NextToken(context, start, config.data.windows == "overlapping", smoothing, z_loss)
    told = prepared.split("train").labels
    assert labels is not None and told is not None
    class_weights = balanced_weights(told, len(labels)) if config.train.balance_labels else None
    if config.model.task == "classifier":
        return DocumentLabel(context, labels, smoothing, class_weights)
    weights = config.train.language_weight, config.train.label_weight
    return TokenAndLabel(context, start, labels, weights, smoothing, z_loss, class_weights)


def train(
    config: Config,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | None = None,
    observers: list[Observer] | None = None,
) -> Run:
    """Train a run to its end from Python: `lilliput.train(lilliput.Config(name="mine"))`. Under torchrun, by all processes."""
    with open_world() as world, open_session(config, resume, overwrite, start_from, world=world) as session:
        for _ in session.events(observers or [] if world.first else []):
            pass
    return session.run
