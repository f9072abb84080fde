"""Mixture of a run's net with the n-grams of its training split (`generate.mix_ngram`).

Owns: the n-gram model of a run, the weight that is fitted on the validation split and kept in `mixture.json` of the run's
folder, and the logit processor. Does not own: the n-grams (`data.ngrams`), fitting a weight (`mixture_weights`), or the
metrics of a mixture (`evaluation.mixture_metrics`).

The probability of the next token is (1 - w) x net + w x n-grams, over the tokens of the run. The n-grams are modified
Kneser-Ney of order 5. They read the whole text of a row, also where the net sees only its end.

B rows, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lilliput.data.ngrams.count_files import count_training
from lilliput.data.ngrams.kneser_ney import MOST_TOKENS, Floats, NGrams, lay_out
from lilliput.data.ngrams.sparse_tables import SparseTables
from lilliput.data.prepare.token_files import Prepared, TokenFile
from lilliput.data.progress import Report, silent
from lilliput.decoding.mixture_weights import fit_weight
from lilliput.decoding.row_history import RowHistory
from lilliput.decoding.run_data import open_prepared
from lilliput.decoding.temperatures import blocks
from lilliput.decoding.token_scores import score_tokens
from lilliput.errors import UserError
from lilliput.settings.tree import MixShare
from lilliput.storage.atomic_files import json_bytes, parse_object, write_whole

if TYPE_CHECKING:
    from lilliput.decoding.writer import Writer

ORDER = 5
WEIGHTS, FORMAT = "mixture.json", 1
MOST_WEIGHTS = 50  # entries of the file; the oldest are dropped
SETTING = "generate.mix_ngram"


@dataclass(frozen=True)
class NGramMixture:
    """A logit processor: the logits become the log-probabilities of the mixture. `weight` is the share of the n-grams."""

    tables: SparseTables
    weight: float
    fitted: bool  # on the validation split; False: given
    tokens: int  # that were counted

    def __call__(self, texts: Sequence[RowHistory], logits: Tensor) -> Tensor:
        values = logits.cpu().numpy()
        with np.errstate(divide="ignore"):  # log(0) = -inf removes one model from the sum
            net, other = np.log1p(-self.weight), np.log(self.weight)
        mixed, done = np.empty_like(values), 0
        for own in blocks(values):
            rows = slice(done, done + len(own))
            ngrams = np.log(self.tables.distributions([text.ids for text in texts[rows]]))
            mixed[rows] = np.logaddexp(net + log_softmax(own), other + ngrams)
            done += len(own)
        return torch.from_numpy(mixed)

    def as_dict(self) -> dict[str, Any]:
        weight_from = "validation" if self.fitted else "given"
        return {"weight": self.weight, "weight_from": weight_from, "ngram_order": ORDER, "ngram_tokens": self.tokens}


def log_softmax(values: NDArray[Any]) -> Floats:
    """Return log-probabilities (B, V) in float64. Sums are cumulative, so that a row does not depend on the others."""
    below = np.subtract(values, values.max(axis=-1, keepdims=True), dtype=np.float64)
    found: Floats = below - np.log(np.exp(below).cumsum(axis=-1)[:, -1:])
    return found


class RunNGrams:
    """The n-gram model of a run's training split, which is counted on first use."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.opened: tuple[Prepared, NGrams] | None = None
        self.mixtures: dict[MixShare, NGramMixture] = {}

    def open(self, report: Report = silent, build: bool = True) -> tuple[Prepared, NGrams]:
        """Return the run's data and the counts of its training split; raise an error if the data is not available.

        Without `build`, data that is not prepared raises an error too.
        """
        if self.opened is None:
            config = self.writer.config
            check_supported(self.writer)
            try:
                prepared = open_prepared(self.writer, report, build)
            except UserError as error:
                place = f" ({error.where})" if error.where else ""  # a command names the flag as the place
                raise UserError(
                    f"{SETTING} requires the training data of the run, which is not available: {error.what}{place}",
                    error.where,
                    fix=f"restore the data, or set {SETTING} to none",
                    code=error.code,
                    setting=SETTING,
                ) from error
            assert config.model.vocab_size is not None
            self.opened = prepared, count_training(prepared, config.model.vocab_size, ORDER, report)
        return self.opened

    def mixture(self, share: MixShare, report: Report = silent) -> NGramMixture:
        """Return the mixture with this share of the n-grams; "auto": the share that is best on the validation split."""
        if share not in self.mixtures:
            self.open(report)
            weight = self.fit(report=report) if share == "auto" else share
            self.mixtures[share] = NGramMixture(self.tables, weight, share == "auto", self.tokens)
        return self.mixtures[share]

    @cached_property
    def tables(self) -> SparseTables:
        return SparseTables(self.open()[1])

    @property
    def tokens(self) -> int:
        """The number of tokens that were counted, start tokens of documents included."""
        train = self.open()[0].split("train")
        return min(train.predictions + train.documents, MOST_TOKENS)

    def nats(self, file: TokenFile) -> Floats:
        """Return the nats of each prediction of a token file, in its order."""
        *_, nats = self.open()[1].nats(lay_out(file, self.writer.tokenizer.start))
        return nats

    def fit(self, stride: int | None = None, batch: int = 32, report: Report = silent) -> float:
        """Return the share of the n-grams that minimises the loss on the validation split, from the file if it is there.

        `stride`: tokens between the windows of the net (None: the context).
        """
        prepared, _ = self.open(report)
        key = self.key(prepared, stride)
        assert self.writer.checkpoint is not None
        folder = self.writer.checkpoint.run_folder
        known = [] if folder is None else read_weights(folder)
        for entry in known:
            if entry["key"] == key:
                return float(entry["weight"])
        report("fitting the weight of the n-grams on the validation split", 0, 0)
        weight = self.fit_on(prepared.split("validation"), stride, batch, report)
        if folder is not None:
            save_weights(folder, [*known, {"key": key, "weight": weight}][-MOST_WEIGHTS:])
        return weight

    def fit_on(self, file: TokenFile, stride: int | None = None, batch: int = 32, report: Report = silent) -> float:
        """Return the share of the n-grams that minimises the loss on these documents."""
        writer = self.writer
        context, start = writer.config.model.context, writer.tokenizer.start
        scored = score_tokens(writer.model, file, start, context, stride, batch, report)
        return 1.0 - fit_weight(scored.nats, self.nats(file))

    def key(self, prepared: Prepared, stride: int | None) -> dict[str, Any]:
        """Return everything that determines the weight."""
        checkpoint, context = self.writer.checkpoint, self.writer.config.model.context
        assert checkpoint is not None
        found: dict[str, Any] = {"checkpoint": checkpoint.name, "model": checkpoint.model_sha256()}
        return found | {"data": prepared.fingerprint, "order": ORDER, "most": MOST_TOKENS, "stride": stride or context}


def check_supported(writer: Writer) -> None:
    """Raise an error unless the writer has a saved language model and this process is the only one."""
    task = writer.config.model.task
    what, fix, code = None, f"set {SETTING} to none", "setting.conflict"
    if task == "classifier":
        what, code = f"{SETTING} requires a language model (got a classifier)", "model.task"
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        what = f"{SETTING} requires one process (got WORLD_SIZE {os.environ['WORLD_SIZE']})"
        fix = f"run the same command without torchrun, or set {SETTING} to none"
    elif writer.checkpoint is None:
        what = f"{SETTING} requires a model that is loaded from a run"
        fix = f"use a run or checkpoint, or set {SETTING} to none"
    if what is not None:
        raise UserError(what, fix=fix, code=code, setting=SETTING)


def read_weights(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the run's file; an empty list if it is missing, damaged or of another version."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = parse_object((folder / WEIGHTS).read_bytes())
        if found["format"] == FORMAT and all(
            0 <= entry["weight"] <= 1 and "key" in entry for entry in found["weights"]
        ):
            return list(found["weights"])
    return []


def save_weights(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Write the file, unless the run is read-only."""
    with suppress(UserError):
        write_whole(folder / WEIGHTS, json_bytes({"format": FORMAT, "weights": entries}))
