"""Evaluation of a run: the model, the documents it is evaluated on, and its training data if needed.

Owns: `open_evaluation`, and `evaluate`, which computes all metrics and returns them in one object. Does not own: the
metrics (`language_metrics`, `label_metrics`, `overlap`, `baseline_comparison`), or finding the documents
(`evaluation_sets`).

User errors are raised before torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import Prepared, TokenFile
from lilliput.data.progress import Report, silent
from lilliput.decoding.run_data import open_prepared
from lilliput.errors import UserError, UserErrors
from lilliput.evaluation.evaluation_sets import Documents, check_name, is_set, open_file, open_sets
from lilliput.settings.loading import config_from_dict
from lilliput.settings.tree import Config, GenerateSettings
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.run_folders import resolve_checkpoint

if TYPE_CHECKING:
    from lilliput.decoding.writer import Writer
    from lilliput.evaluation.overlap_settings import OverlapTask


@dataclass(frozen=True)
class Evaluation:
    """A model and the documents it is evaluated on. Optional parts are computed on first use."""

    writer: Writer
    documents: Documents
    report: Report = field(default=silent, repr=False)
    opened: Prepared | None = None  # the run's own data, if the documents come from it

    @property
    def name(self) -> str:
        return self.documents.name

    @property
    def file(self) -> TokenFile:
        return self.documents.file

    @property
    def labels(self) -> list[str] | None:
        return self.documents.labels

    @cached_property
    def texts(self) -> list[str]:
        """The original texts of the documents."""
        return list(self.documents.read())

    @cached_property
    def prepared(self) -> Prepared | None:
        """The run's own data; None, with a note, if it is not available."""
        try:
            return self.opened or open_prepared(self.writer, self.report)
        except UserError as error:
            self.report(f"training data is not available, metrics that require it are omitted ({error.what})", 0, 0)
            return None

    @property
    def train(self) -> TokenFile | None:
        return None if self.prepared is None else self.prepared.split("train")

    @cached_property
    def train_texts(self) -> list[str]:
        assert self.prepared is not None
        return list(open_sets(self.writer.config, self.prepared, "train").read())

    @cached_property
    def leaked(self) -> NDArray[np.bool_] | None:
        """(documents,) whether each document is also in the training split, as an exact copy; None without training
        data.
        """
        if self.opened is not None and self.name == "train":  # the split, not a file with that name
            return np.zeros(self.file.documents, np.bool_)
        return None if self.prepared is None else np.isin(self.documents.hashes, self.prepared.hashes("train"))


def open_evaluation(
    run: str | Path,
    on: str = "validation",
    device: str = "auto",
    report: Report = silent,
    labelled: bool = False,
    build: bool = True,
) -> Evaluation:
    """Open a run or checkpoint, and the documents that `on` names.

    `on` is a set of the run (train, validation, the name of a test, or tests for all tests together), or the path of a
    file or folder, which is read like the run's own data. `labelled`: each text of the file has a label before it,
    although the run's own texts have none. Without `build`, a run whose data is not prepared raises an error.
    """
    checkpoint, config = settings_of(run)
    check_name(config.data, on)
    from lilliput.decoding.writer import load

    writer = load(checkpoint.folder, device)
    if is_set(config.data, on):
        prepared = open_prepared(writer, report, build)
        return Evaluation(writer, open_sets(config, prepared, on), report, prepared)
    data = replace(config.data, labelled=config.data.labelled or labelled, documents=None)
    try:
        return Evaluation(writer, open_file(on, data, writer.tokenizer, checkpoint.labels(), report), report)
    except UserError as error:
        of_labels = error.code == "data.label" or error.setting in ("data.labelled", "data.label_field")
        if config.data.labelled or not labelled or not of_labels:
            raise
        # The argument requires labels, not a setting of the run: changing a setting would not help.
        fix = "remove labelled=True"
        raise UserError(error.what, error.where, fix=fix, code="data.label", setting="labelled") from None


def settings_of(run: str | Path) -> tuple[Checkpoint, Config]:
    checkpoint = resolve_checkpoint(run)
    return checkpoint, config_from_dict(checkpoint.config(), where=str(checkpoint.folder / CONFIG))


# Metrics --------------------------------------------------------------------------------------------------------------


def evaluate(
    run: str | Path,
    on: str = "validation",
    stride: int | None = None,
    overlapping: bool = False,
    overlap: OverlapTask | None = None,
    settings: GenerateSettings | None = None,
    stories: int | None = None,
    baselines: bool = False,
    csv: str | Path | None = None,
    overlap_csv: str | Path | None = None,
    samples: bool = False,
    labelled: bool = False,
    batch: int = 32,
    device: str = "auto",
    report: Report = silent,
) -> dict[str, Any]:
    """Return all metrics of a run on a set, the JSON of `lilliput evaluate`:
    `evaluate("runs/demo")["perplexity"]`.

    `stride`: tokens between windows (None: the context, as in training). `overlapping`: also the loss over a window at
    every offset. `overlap`: also BLEU and other metrics of continuations, generated with `settings` (None: those of the
    run). If these settings have `mix_ngram`: also the metrics of the mixture with n-grams, as `mixture`, apart from those
    of the model. `stories`: also statistics of this number of generated texts. `baselines`: also n-gram, compression and
    linear baselines. `csv`, `overlap_csv`: files for the metrics of each document and of each continuation. `samples`: also
    the rows of that file. `labelled`: the texts of the file have labels, although those of the run have none.
    """
    checkpoint, config = settings_of(run)
    share = (settings or config.generate).mix_ngram
    check_arguments(config, on, stride, overlapping, overlap is not None, stories is not None, share is not None)
    evaluation = open_evaluation(checkpoint.folder, on, device, report, labelled)
    if share is not None:
        evaluation.writer.ngrams.open(report)  # may raise: before the work starts
    from lilliput.evaluation.baseline_comparison import label_rows, language_rows
    from lilliput.evaluation.label_metrics import evaluate_labels, predict_labels
    from lilliput.evaluation.language_metrics import (
        evaluate_language,
        measure_overlapping,
        score_predictions,
        write_rows,
    )

    task, found, rows, baseline_rows = config.model.task, describe(evaluation), dict[str, Any](), list[dict[str, Any]]()
    if task != "classifier":
        scores = score_predictions(evaluation, stride, batch)
        figures, rows = evaluate_language(evaluation, scores, stride)
        found |= figures | {"overlapping": measure_overlapping(evaluation, batch) if overlapping else None}
        if share is not None:
            from lilliput.evaluation.mixture_metrics import evaluate_mixture

            found["mixture"] = evaluate_mixture(evaluation, scores, share, stride, batch)
        baseline_rows += language_rows(evaluation, scores) if baselines else []
    if task != "language":
        labels = predict_labels(evaluation, batch)
        figures, columns = evaluate_labels(evaluation, labels)
        found, rows = merge(found, figures), rows | columns
        baseline_rows += label_rows(evaluation, labels) if baselines else []
    if overlap is not None:
        found |= evaluate_overlap(evaluation, overlap, settings, overlap_csv, samples)
    if stories is not None:
        from lilliput.evaluation.generated_stories import measure_stories

        report("generating stories", 0, None)
        generated = measure_stories(evaluation.writer, evaluation.file, settings or config.generate, stories)
        mixture = evaluation.writer.mixture_for(settings or config.generate)
        found |= {"stories": generated.as_dict() | {"mixture": None if mixture is None else mixture.as_dict()}}
    if csv is not None:
        write_rows(Path(csv), rows)
    return found | ({"baselines": baseline_rows} if baselines else {})


def check_arguments(
    config: Config,
    on: str,
    stride: int | None,
    overlapping: bool,
    overlap: bool,
    stories: bool,
    mix_ngram: bool = False,
) -> None:
    """Raise all errors that can be found before anything is read, at once."""
    errors, model = list[UserError](), config.model
    try:
        check_name(config.data, on)
    except UserError as error:
        errors.append(error)
    given = {"stride": stride is not None, "overlapping": overlapping, "overlap": overlap, "stories": stories}
    given["generate.mix_ngram"] = mix_ngram
    if model.task == "classifier":
        errors += [
            UserError(
                f"{name} requires a language model (got a classifier)",
                fix=f"remove {name}",
                code="model.task",
                setting=name,
            )
            for name, is_given in given.items()
            if is_given
        ]
    elif stride is not None and not 1 <= stride <= model.context:
        errors.append(
            UserError(
                f"stride must be from 1 to the model's context of {model.context:,} tokens (got {stride:,})",
                fix=f"set stride to {max(1, model.context // 2)}",
                code="setting.value",
                setting="stride",
            )
        )
    if errors:
        raise UserErrors(errors)


def describe(evaluation: Evaluation) -> dict[str, Any]:
    checkpoint = evaluation.writer.checkpoint
    assert checkpoint is not None
    return {
        "run": run_name(checkpoint),
        "checkpoint": checkpoint.name,
        "on": evaluation.name,
        "task": evaluation.writer.config.model.task,
        "documents": evaluation.file.documents,
        "bytes": evaluation.file.bytes,
    }


def run_name(checkpoint: Checkpoint) -> str | None:
    """Return the name of the run that contains the checkpoint; None if the checkpoint is outside a run folder."""
    return None if checkpoint.run_folder is None else checkpoint.run_folder.name


def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merge two dicts. Dicts under the same key are merged too; None counts as empty."""
    found = one | other
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict):
            found[name] = merge(one[name], other[name] or {})
    return found


def evaluate_overlap(
    evaluation: Evaluation,
    task: OverlapTask,
    settings: GenerateSettings | None = None,
    csv: str | Path | None = None,
    samples: bool = False,
) -> dict[str, Any]:
    from lilliput.evaluation.overlap import measure_overlap

    evaluation.report("generating", 0, None)
    settings = evaluation.writer.config.generate if settings is None else settings
    continuations = measure_overlap(evaluation.writer, evaluation.file, settings, task, evaluation.leaked)
    if csv is not None:
        continuations.write_csv(Path(csv))
    figures = continuations.as_dict()
    found = {"bleu": figures.pop("bleu"), "overlap": figures}
    return found | ({"samples": continuations.samples()} if samples else {})
