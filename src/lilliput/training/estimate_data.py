"""The data from which the cost of a run is estimated, without leaving files behind.

Owns: which text is read. Prepared data is used. A small text is prepared in a temporary folder; of a large storybook a part,
because its stories are all alike. Otherwise, and if the text is missing, the vocabulary is assumed and the rows are random.
Does not own: the assumptions (`cost_estimate.assume_data`), the estimate (`run_estimate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from lilliput.data.corpora import STORYBOOK, open_corpus
from lilliput.data.prepare import prepare
from lilliput.data.prepare.token_files import Prepared, TokenFile
from lilliput.data.progress import Report, silent
from lilliput.errors import UserError
from lilliput.settings.loading import replace
from lilliput.settings.source_names import is_hub_name
from lilliput.settings.tree import Config
from lilliput.training.cost_estimate import assume_data
from lilliput.training.objectives import Objective, Split
from lilliput.training.training_data import build_objective, fit_labels, fit_vocabulary

CHEAP = 12_000_000  # bytes of text that are prepared in seconds
STORIES = 10_000  # of the storybook: its validation split is a twentieth, as for any larger number
BATCHES = 4  # of random rows


@dataclass(frozen=True)
class EstimateData:
    """`config` has the settings that depend on the data. `scale`: rows of the run per row of `splits`; None if the text is not
    known, then the rows of `splits` are random. `note`: a sentence for the user."""

    config: Config
    objective: Objective[Any]
    splits: Mapping[str, Split[Any]]
    scale: float | None
    note: str | None


class Text(NamedTuple):
    prepared: Prepared
    scale: float


@contextmanager
def open_estimate_data(config: Config, report: Report = silent) -> Iterator[EstimateData]:
    """Read the text if it is prepared or small, else assume it. Temporary files exist while the context is open."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            text = find_text(config, Path(folder), report)
            reason = "is not prepared yet"
        except UserError as error:
            text, reason = None, f"cannot be read ({error.what})"
        yield assume(config, reason) if text is None else read(config, *text)


def find_text(config: Config, folder: Path, report: Report) -> Text | None:
    """Return the prepared text, or None if it must be prepared first and is large."""
    if is_hub_name(config.data.source):
        return None  # finding it would use the network
    try:
        return Text(prepare(config, report, build=False), 1.0)
    except UserError as error:
        if error.code != "data.not-prepared":
            raise
    size = open_corpus(config.data).size
    elsewhere = replace(config, {"data.cache": str(folder)})
    if 0 < size <= CHEAP:
        return Text(prepare(elsewhere, report), 1.0)
    if config.data.source != STORYBOOK:
        return None
    part = replace(elsewhere, {"data.documents": STORIES})
    return Text(prepare(part, report), size / open_corpus(part.data).size)


def read(config: Config, prepared: Prepared, scale: float) -> EstimateData:
    config = assume_data(fit_labels(fit_vocabulary(config, prepared.tokenizer), prepared.labels, None))
    objective = build_objective(config, prepared.tokenizer.start, prepared.labels, prepared.split("train").labels)
    splits = {name: objective.open(prepared.split(name), training=name == "train") for name in prepared.splits}
    note = None if scale == 1.0 else f"estimated from {STORIES:,} stories"
    return EstimateData(config, objective, splits, scale, note)


def assume(config: Config, reason: str) -> EstimateData:
    """Return random rows of the full length. Memory and time of a step are those of the longest rows."""
    config = assume_data(config)
    size, classes = config.model.vocab_size, config.model.classes or 1
    assert size is not None
    documents = BATCHES * config.train.batch
    # A document with its end token fills a row; a classifier reads no end token.
    length = config.model.context + (config.model.task == "classifier")
    generator = np.random.default_rng(config.seed)
    file = TokenFile(
        generator.integers(size, size=1 + documents * length),
        np.arange(documents + 1) * length + 1,
        np.full(documents, length),
        generator.permutation(np.arange(documents, dtype=np.int32) % classes),
    )
    objective = build_objective(config, 0, [str(number) for number in range(classes)], file.labels)
    note = f"the text {reason}: a vocabulary of {size:,} and rows of {config.model.context:,} tokens are assumed"
    splits = {name: objective.open(file, training=name == "train") for name in ("train", "validation")}
    return EstimateData(config, objective, splits, None, note)
