"""From settings to a trainer that is ready to run: data, tokenizer, device, weights, run folder, resume.

Owns: the three ways to begin (new, resumed, from another run's weights), and refusing what does not fit. Does not own: the
loop, the console, or what the settings mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lilliput.checkpoints import Checkpoint
from lilliput.config import config_to_dict, replace
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared
from lilliput.data.progress import Report, silent
from lilliput.data.tokenizers import Tokenizer, learns
from lilliput.data.vectors import Vectors, fit_vectors, prepare_vectors
from lilliput.decoding.writer import Writer
from lilliput.devices import choose_device, choose_precision, prepare_machine
from lilliput.errors import UserError
from lilliput.evaluation.stories import storybook_floor
from lilliput.model.transformer import build_model, load_weights, put_vectors
from lilliput.runs import Run, differences, looks_like_run, resolve_checkpoint
from lilliput.settings import Config
from lilliput.training.events import Event
from lilliput.training.loop import Trainer
from lilliput.training.objectives import DocumentLabel, NextToken, Objective
from lilliput.training.observers import MetricsFile, Observer

# Settings that may be left to what is found in the data; a run's own config.json has them.
FOUND = ("model.vocab_size", "model.classes", "vectors.width", "vectors.rows")
# No separators, no control characters, nothing that Windows refuses.
NAME = re.compile(r'[^\s.\-/\\:*?"<>|\x00-\x1f\x7f]([^/\\:*?"<>|\x00-\x1f\x7f]*[^\s./\\:*?"<>|\x00-\x1f\x7f])?')
LONGEST_NAME = 100  # bytes; a file system's 255 must also hold what stands around it while the folder is written


@dataclass
class Session:
    """A run about to train. `notes` are sentences for the user; `writer` writes with the weights as they are."""

    run: Run
    trainer: Trainer[Any]
    prepared: Prepared
    notes: list[str] = field(default_factory=list)

    @property
    def writer(self) -> Writer:
        return Writer(self.trainer.config, self.trainer.model, self.prepared.tokenizer)

    def events(self, observers: list[Observer]) -> Iterator[Event]:
        """Train, the log first and then the observers hearing of each event before the next happens."""
        with ExitStack() as stack:
            for observer in observers:
                stack.callback(observer.close)
            log = MetricsFile(self.run, self.trainer.config.log.every)
            stack.callback(log.close)
            for event in self.trainer.events():
                for observer in (log, *observers):
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
) -> Iterator[Session]:
    """Ready to train, the run's folder locked for as long as the session is open."""
    folder = run_folder(config)
    origin = resolve_checkpoint(start_from, config.log.folder) if start_from else None
    if origin:
        config = adopt(config, origin)
    with ExitStack() as stack:
        notes: list[str] = []
        if resume:
            run, config = same_run(folder, config)
            stack.enter_context(run.lock())
            checkpoint = newest_checkpoint(run, notes)
        else:
            if looks_like_run(folder) and not overwrite:
                Run.create(folder, {}, overwrite=False)  # refuses, before any work is done
            checkpoint = origin
        device = choose_device(config.train.device)
        prepare_machine(config.train.threads)
        prepared = prepare(config, report, own_tokenizer(config, checkpoint))
        config = fit_labels(fit_vocabulary(config, prepared.tokenizer), prepared.labels, origin)
        vectors: Vectors | None = None
        if config.vectors.source is not None and checkpoint is None:  # a checkpoint has them among its weights
            vectors = prepare_vectors(config, prepared, report)
            config = fit_vectors(config, vectors)
        model = build_model(config.model, config.vectors, seed=config.seed)
        if vectors is not None:
            put_vectors(model, vectors.table, vectors.covered)
        model.to(device, choose_precision(config.train.precision, device))
        if origin:
            load_weights(model, origin.load_model())
        objective = build_objective(config, prepared)
        splits = {name: objective.open(prepared.split(name), training=name == "train") for name in prepared.splits}

        def make_trainer(run: Run) -> Trainer[Any]:
            return Trainer(config, model, objective, splits, prepared, run, partial(storybook_floor, config))

        if not resume:
            # Another run's weights and tokenizer are this one's from its first moment: it never needs the other again.
            first = (lambda new: make_trainer(new).save()) if origin else None
            run = Run.create(folder, config_to_dict(config), overwrite, first)
            stack.enter_context(run.lock())
        session = Session(run, make_trainer(run), prepared, notes)
        if resume:
            go_on(session, checkpoint)
        yield session


def same_run(folder: Path, config: Config) -> tuple[Run, Config]:
    """The run to resume, if these are its settings; and those, with all that was found when it began."""
    run, found = Run.open(folder), dict[str, Any]()
    for name, (was, now) in differences(run.config(), config_to_dict(config)).items():
        if name in FOUND and now is None:
            found[name] = was
        elif name not in ("name", "log.folder"):  # a run's folder may be moved and renamed
            what = f"{name} was {was} when run {run.name} began and is {now} now: a resumed run keeps its settings"
            raise UserError(what, str(folder), f"--name NEW --from {folder} for other settings")
    return run, replace(config, found)


def own_tokenizer(config: Config, checkpoint: Checkpoint | None) -> Tokenizer | None:
    """One that came from files is in the run's checkpoints, too; by now they may have changed, or be gone."""
    if checkpoint is None or learns(config.tokenizer):
        return None
    return Tokenizer.from_json(checkpoint.tokenizer_json(), str(checkpoint.folder / "tokenizer.json"))


def adopt(config: Config, origin: Checkpoint) -> Config:
    """The settings of a run that starts from another's weights: model and tokenizer are those of the other.

    Only dropout, which no weight depends on, is the new run's own. A classifier learns from labels, again.
    """
    theirs = origin.config()
    kept = {
        f"{group}.{name}": value for group in ("tokenizer", "vectors", "model") for name, value in theirs[group].items()
    }
    own: dict[str, Any] = {
        "model.dropout": config.model.dropout,
        "tokenizer.path": str(origin.folder / "tokenizer.json"),
    }
    own |= {"data.labelled": config.data.labelled or theirs["model"]["task"] == "classifier"}
    return replace(config, kept | own)


def newest_checkpoint(run: Run, notes: list[str]) -> Checkpoint | None:
    """The newest that verifies; what was found damaged is noted."""
    problems: list[str] = []
    checkpoint = run.newest_valid(lambda _, error: problems.append(error.what))
    if checkpoint is None and problems:
        what = f"no checkpoint of run {run.name} is whole: {problems[0]}"
        raise UserError(what, str(run.checkpoints_folder), "--overwrite instead of --resume begins the run again")
    notes += [f"{problem}; an older one is used" for problem in problems]
    return checkpoint


def go_on(session: Session, checkpoint: Checkpoint | None) -> None:
    """Take up a checkpoint; without one, begin again."""
    run, trainer, notes = session.run, session.trainer, session.notes
    if checkpoint is None:
        run.cut_metrics(0)
        notes.append("the run has no checkpoint yet: it begins again")
        return
    notes += trainer.resume(checkpoint)  # may refuse: nothing has been touched yet
    run.rewind(checkpoint)
    if trainer.ended:
        notes.append("the run had used up its budget: only its evaluation is done again")
    try:
        if run.best:
            run.best.verify()
    except UserError as error:
        notes.append(f"{error.what}; the best of what comes is kept in its place")
        trainer.best = None


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
    if config.model.task != "classifier":
        return config
    if labels is None:
        what = f"a classifier needs labelled documents, and {config.data.source} has no labels"
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
    if config.model.task == "classifier":
        assert prepared.labels is not None
        return DocumentLabel(config.model.context, prepared.labels)
    return NextToken(config.model.context, prepared.tokenizer.start, config.data.windows == "overlapping")


def train(
    config: Config,
    resume: bool = False,
    overwrite: bool = False,
    start_from: str | None = None,
    observers: list[Observer] | None = None,
) -> Run:
    """Train a run to its end from Python: `lilliput.train(lilliput.Config(name="mine"))`."""
    with open_session(config, resume, overwrite, start_from) as session:
        for _ in session.events(observers or []):
            pass
    return session.run
