"""From settings to a trainer that is ready to run: data, tokenizer, device, weights, run folder, resume.

Owns: the three ways to begin (new, resumed, from another run's weights), and refusing what does not fit. Does not own: the
loop, the console, or what the settings mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lilliput.config import config_to_dict, replace
from lilliput.data.batches import Rows
from lilliput.data.prepare import Prepared, TokenFile, prepare
from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.writer import Writer, load
from lilliput.devices import choose_device, choose_precision, prepare_machine
from lilliput.errors import UserError
from lilliput.evaluation.stories import storybook_floor
from lilliput.model.transformer import build_model, load_weights, weights
from lilliput.runs import Run, differences, looks_like_run
from lilliput.settings import Config
from lilliput.training.loop import Event, Split, Trainer
from lilliput.training.observers import MetricsFile, Observer

Report = Callable[[str, int, int | None], None]  # what is being done, how much is done, of how much (None: unknown)


def silent(what: str, done: int, total: int | None) -> None:
    pass


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
        log = MetricsFile(self.run, self.trainer.config.log.every)
        try:
            for event in self.trainer.events():
                for observer in (log, *observers):
                    observer(event)
                yield event
        finally:
            for observer in (log, *observers):
                observer.close()


def run_folder(config: Config) -> Path:
    return Path(config.log.folder) / (config.name or "run")


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
    if resume:
        run = Run.open(folder)
        for name, (was, now) in differences(run.config(), config_to_dict(config)).items():
            if name in ("name", "log.folder"):
                continue  # a run's folder may be moved and renamed
            raise UserError(
                f"{name} was {was} when run {run.name} began and is {now} now: a resumed run keeps its settings"
            )
    elif looks_like_run(folder) and not overwrite:
        Run.create(folder, {}, overwrite=False)  # refuses, before any work is done
    if config.model.task != "language":
        raise UserError(
            f"a classifier needs labelled documents, and {config.data.source} has no labels",
            "model.task",
            "model.task language",
        )
    device = choose_device(config.train.device)
    prepare_machine(config.train.threads)
    ancestor = load(start_from, device="cpu") if start_from else None
    prepared = prepare(config, report, ancestor.tokenizer if ancestor else None)
    config = fit_vocabulary(config, prepared.tokenizer)
    if not resume:
        run = Run.create(folder, config_to_dict(config), overwrite)
    with run.lock():
        model = build_model(config.model, config.vectors, seed=config.seed).to(
            choose_precision(config.train.precision, device)
        )
        if ancestor:
            load_weights(model, weights(ancestor.model))
        trainer = Trainer(
            config,
            model.to(device),
            split(prepared.split("train"), config.model.context),
            split(prepared.split("validation"), config.model.context),
            run,
            prepared.tokenizer.to_json(),
            prepared.fingerprint,
            lambda: storybook_floor(config),
        )
        session = Session(run, trainer, prepared)
        if resume:
            go_on(session)
        yield session


def go_on(session: Session) -> None:
    """Take up the newest checkpoint that verifies; without one, begin again."""

    def damaged(checkpoint: object, error: UserError) -> None:
        session.notes.append(f"{error.what}: an older checkpoint is used")

    checkpoint = session.run.newest_valid(damaged)
    if checkpoint is None:
        session.run.cut_metrics(0)
        session.notes.append("the run has no checkpoint yet: it begins again")
        return
    session.run.rewind(checkpoint)
    session.notes += session.trainer.resume(checkpoint)


def fit_vocabulary(config: Config, tokenizer: Tokenizer) -> Config:
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
