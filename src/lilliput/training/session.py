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

from lilliput.checkpoints import Checkpoint
from lilliput.config import config_to_dict, replace
from lilliput.data.batches import Rows
from lilliput.data.prepare import Prepared, Report, TokenFile, prepare, silent
from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.writer import Writer
from lilliput.devices import choose_device, choose_precision, prepare_machine
from lilliput.errors import UserError
from lilliput.evaluation.stories import storybook_floor
from lilliput.model.transformer import build_model, load_weights
from lilliput.runs import Run, differences, looks_like_run, resolve_checkpoint
from lilliput.settings import Config
from lilliput.training.loop import Event, Split, Trainer
from lilliput.training.observers import MetricsFile, Observer

# No separators, no control characters, nothing that Windows refuses.
NAME = re.compile(r'[^\s.\-/\\:*?"<>|\x00-\x1f\x7f]([^/\\:*?"<>|\x00-\x1f\x7f]*[^\s./\\:*?"<>|\x00-\x1f\x7f])?')
LONGEST_NAME = 100  # bytes; a file system's 255 must also hold what stands around it while the folder is written


@dataclass
class Session:
    """A run about to train. `notes` are sentences for the user; `writer` writes with the weights as they are."""

    run: Run
    trainer: Trainer
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
    if config.model.task != "language":
        what = f"a classifier needs labelled documents, and {config.data.source} has no labels"
        raise UserError(what, "model.task", "model.task language")
    with ExitStack() as stack:
        notes: list[str] = []
        if resume:
            run = same_run(folder, config)
            stack.enter_context(run.lock())
            checkpoint = newest_checkpoint(run, notes)
        else:
            if looks_like_run(folder) and not overwrite:
                Run.create(folder, {}, overwrite=False)  # refuses, before any work is done
            checkpoint = origin
        device = choose_device(config.train.device)
        prepare_machine(config.train.threads)
        prepared = prepare(config, report, own_tokenizer(config, checkpoint))
        config = fit_vocabulary(config, prepared.tokenizer)
        model = build_model(config.model, config.vectors, seed=config.seed)
        model.to(device, choose_precision(config.train.precision, device))
        if origin:
            load_weights(model, origin.load_model())
        train, validation = (split(prepared.split(name), config.model.context) for name in ("train", "validation"))

        def make_trainer(run: Run) -> Trainer:
            tokenizer_json, fingerprint = prepared.tokenizer.to_json(), prepared.fingerprint
            floor = partial(storybook_floor, config)
            return Trainer(config, model, train, validation, run, tokenizer_json, fingerprint, floor)

        if not resume:
            # Another run's weights and tokenizer are this one's from its first moment: it never needs the other again.
            first = (lambda new: make_trainer(new).save()) if origin else None
            run = Run.create(folder, config_to_dict(config), overwrite, first)
            stack.enter_context(run.lock())
        session = Session(run, make_trainer(run), prepared, notes)
        if resume:
            go_on(session, checkpoint)
        yield session


def same_run(folder: Path, config: Config) -> Run:
    """The run to resume, if these are its settings."""
    run = Run.open(folder)
    for name, (was, now) in differences(run.config(), config_to_dict(config)).items():
        # A run's folder may be moved and renamed; a vocabulary that is left to the tokenizer is what it was.
        if name not in ("name", "log.folder") and (name, now) != ("model.vocab_size", None):
            what = f"{name} was {was} when run {run.name} began and is {now} now: a resumed run keeps its settings"
            raise UserError(what, str(folder), f"--name NEW --from {folder} for other settings")
    return run


def own_tokenizer(config: Config, checkpoint: Checkpoint | None) -> Tokenizer | None:
    """One that came from a file is in the run's checkpoints, too; by now the file may have changed, or be gone."""
    if config.tokenizer.path is None or checkpoint is None:
        return None
    return Tokenizer.from_json(checkpoint.tokenizer_json(), str(checkpoint.folder / "tokenizer.json"))


def adopt(config: Config, origin: Checkpoint) -> Config:
    """The settings of a run that starts from another's weights: model and tokenizer are those of the other.

    Only dropout, which no weight depends on, is the new run's own.
    """
    theirs = origin.config()
    kept = {
        f"{group}.{name}": value for group in ("tokenizer", "vectors", "model") for name, value in theirs[group].items()
    }
    own = {"model.dropout": config.model.dropout, "tokenizer.path": str(origin.folder / "tokenizer.json")}
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


def split(file: TokenFile, context: int) -> Split:
    return Split(Rows(file.tokens, file.offsets, context), file.bytes / file.predictions)


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
