"""`Run`: a trained run as an object. Its model is loaded when it is first needed.

Owns: `Run`. Does not own: training (`train`), finding runs (`load`), the objects that methods return
(`evaluation_result`, `attention_view`, `label_predictions`, `metric_rows`, `report_page`), or the files of a run
(`storage.run_folders`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from lilliput.api.arguments import (
    GENERATE_KEYWORDS,
    as_path,
    check_device,
    check_place,
    checked,
    generate_values,
    python_errors,
    refuse_unknown,
)
from lilliput.api.generate_keywords import GenerateKeywords
from lilliput.errors import UserError
from lilliput.settings.loading import config_from_dict
from lilliput.settings.tree import Config, Count, GenerateSettings, Seed
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.run_folders import RunFolder, resolve_checkpoint, summarise_run

if TYPE_CHECKING:
    from lilliput.api.attention_view import AttentionView
    from lilliput.api.evaluation_result import EvaluationResult
    from lilliput.api.label_predictions import Prediction, Predictions
    from lilliput.api.metric_rows import MetricRows
    from lilliput.api.report_page import ReportPage
    from lilliput.decoding.writer import Piece, Writer
    from lilliput.evaluation.overlap_settings import OverlapTask

Settings = GenerateSettings | Mapping[str, Any]


class Run:
    """A run: its settings, log and model. `lilliput.train` and `lilliput.load` return it.

    `settings` of a method are `generate` settings: a dict by name, or `GenerateSettings`, which replace those of the run.
    Each of them is also a keyword (`top_p=0.9`). A setting of the run that conflicts with a given one is dropped.
    """

    def __init__(self, place: RunFolder | Checkpoint, device: str = "auto") -> None:
        self._place = place
        self.device = check_device(device)

    def __repr__(self) -> str:
        if isinstance(self._place, Checkpoint):
            return f"Run({str(self.folder)!r}, checkpoint)"
        about = summarise_run(self._place)
        loss = "" if about["loss"] is None else f", loss {about['loss']:.4f}"
        return f"Run({str(self.folder)!r}, {about['state']}, {about['steps']:,} steps{loss})"

    # Files --------------------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The folder of the run, or of the checkpoint that was loaded."""
        return self._place.folder

    @property
    def name(self) -> str:
        return self._run.name if self._has_run else self._place.name

    @property
    def config(self) -> Config:
        """All settings of the run."""
        return config_from_dict(self._place.config(), where=str(self.folder / CONFIG))

    @property
    def state(self) -> str:
        """finished, interrupted, running, empty or damaged."""
        return str(summarise_run(self._run)["state"])

    @property
    def finished(self) -> bool:
        """Whether the training has reached its end; False after Ctrl-C."""
        return self.state == "finished"

    @property
    def steps(self) -> int:
        """The number of optimizer steps."""
        return int(summarise_run(self._run)["steps"])

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint whose weights are used: the best one, or the one that was loaded."""
        with python_errors():
            return resolve_checkpoint(self.folder)

    @property
    def metrics(self) -> MetricRows:
        """The rows of metrics.jsonl, read now.

        >>> run.metrics[0]["event"], len(run.metrics.select("evaluation")) > 0
        ('session', True)
        """
        from lilliput.api.metric_rows import MetricRows

        return MetricRows(self._run.metrics(), title=self.name)

    @property
    def _has_run(self) -> bool:
        return isinstance(self._place, RunFolder) or self._place.run_folder is not None

    @property
    def _run(self) -> RunFolder:
        """The folder of the run that contains the checkpoint."""
        if isinstance(self._place, RunFolder):
            return self._place
        if self._place.run_folder is None:
            what = "a checkpoint outside a run folder has no log"
            raise UserError(what, str(self.folder), fix="use the folder of a run", code="run.missing")
        return RunFolder.open(self._place.run_folder)

    # The model ----------------------------------------------------------------------------------------------------------

    @cached_property
    def writer(self) -> Writer:
        """The loaded model with its tokenizer, for requests, beams and batches (docs/writing.md)."""
        from lilliput.decoding.writer import load

        with python_errors():
            return load(self.checkpoint.folder, self.device)

    def generate(
        self,
        prompt: str | None = None,
        *,
        seed: int = 0,
        settings: Settings | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> str:
        """Return the text that the model writes after the prompt (None: the run's `generate.prompt`). The same seed returns the
        same text.

        >>> run.generate("Once", tokens=5, seed=1) == run.generate("Once", tokens=5, seed=1)
        True
        """
        return "".join(piece.text for piece in self.stream(prompt, seed=seed, settings=settings, **keywords))

    def stream(
        self,
        prompt: str | None = None,
        *,
        seed: int = 0,
        settings: Settings | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> Iterator[Piece]:
        """Yield each token when it is chosen: `text`, `id` and `probability`, before temperature and other processors.

        Wrong arguments raise an error in the call, before the first token.

        >>> [0.0 < piece.probability <= 1.0 for piece in run.stream("Once", tokens=2, seed=1)]
        [True, True]
        """
        self._refuse_unknown(keywords, "stream")
        checked("prompt", prompt, str | None)
        checked("seed", seed, Seed)
        with python_errors(GENERATE_KEYWORDS):
            used = self._generate_settings(settings, keywords)
            return self.writer.write([used.prompt if prompt is None else prompt], seed, used)

    def _refuse_unknown(self, keywords: Mapping[str, Any], method: str) -> None:
        others = [name for name in signature(getattr(self, method)).parameters if name != "keywords"]
        refuse_unknown({*keywords} - {*GENERATE_KEYWORDS}, [*others, *GENERATE_KEYWORDS], GENERATE_KEYWORDS)

    def _generate_settings(self, settings: Settings | None, keywords: Mapping[str, Any]) -> GenerateSettings:
        """Return the run's `generate` settings with those of a call."""
        from lilliput.decoding.generation_settings import override_settings

        base = settings if isinstance(settings, GenerateSettings) else self.config.generate
        given = generate_values(keywords, None if isinstance(settings, GenerateSettings) else settings)
        return override_settings(base, given)[0]

    # Results ------------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        on: str | os.PathLike[str] = "validation",
        *,
        baselines: bool = False,
        stride: int | None = None,
        overlapping: bool = False,
        overlap: bool | OverlapTask | Mapping[str, Any] = False,
        stories: int | None = None,
        labelled: bool = False,
        batch: int = 32,
        csv: str | os.PathLike[str] | None = None,
        progress: bool = True,
        settings: Settings | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> EvaluationResult:
        """Return metrics with confidence intervals. `on`: a set of the run, or the path of other documents.

        `baselines` also scores n-gram, compression and linear baselines. `overlap` also compares continuations with the
        documents (BLEU); a dict sets prompts, tokens and others. `stories` is a number of generated texts whose statistics
        are measured. `settings` and keywords are those of these texts. docs/evaluation.md explains the other arguments.

        >>> result = run.evaluate(progress=False)
        >>> result.perplexity > 1, result["perplexity"] == result.perplexity
        (True, True)
        """
        from lilliput.api.evaluation_result import evaluate_run
        from lilliput.evaluation.overlap_settings import OverlapTask

        self._refuse_unknown(keywords, "evaluate")
        checked("batch", batch, Count)
        checked("stride", stride, int | None)
        check_place(csv, "csv")
        generate = None
        if settings is not None or keywords:
            with python_errors(GENERATE_KEYWORDS):
                generate = self._generate_settings(settings, keywords)
            if not overlap and stories is None and generate.mix_ngram is None:
                named = next(iter(keywords), "settings")
                what = f"{named} has no effect without overlap or stories"
                fix = f"add overlap=True or remove {named}"
                raise UserError(what, fix=fix, code="argument.conflict", setting=named)
        return evaluate_run(
            self.checkpoint.folder,
            progress,
            on=as_path(on, "on"),
            stride=stride,
            overlapping=checked("overlapping", overlapping, bool),
            overlap=checked("overlap", overlap, bool | OverlapTask),
            stories=checked("stories", stories, Count | None),
            baselines=checked("baselines", baselines, bool),
            labelled=checked("labelled", labelled, bool),
            batch=batch,
            csv=csv,
            device=self.device,
            settings=generate,
        )

    def attention(
        self,
        text: str,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        generate: int | None = None,
        seed: int = 0,
        pad: bool = False,
        settings: Settings | None = None,
        **keywords: Unpack[GenerateKeywords],
    ) -> AttentionView:
        """Return the attention weights in a text: an interactive view in a notebook, and arrays.

        With `generate`, the model writes at most this number of tokens after the text. `pad` fills the row up to the context.

        >>> view = run.attention("The cat sat on the mat.")
        >>> view.weights[0].shape == (run.config.model.heads, len(view.tokens), len(view.tokens))
        True
        """
        from lilliput.api.attention_view import capture_view

        self._refuse_unknown(keywords, "attention")
        checked("text", text, str)
        checked("generate", generate, Count | None)
        if generate is None and (keywords or settings is not None):
            named = next(iter(keywords), "settings")
            what, fix = f"{named} requires generate", f"add generate=40 or remove {named}"
            raise UserError(what, fix=fix, code="argument.conflict", setting=named)
        if generate is not None and pad:
            what = "pad and generate cannot be combined"
            raise UserError(what, fix="remove pad or generate", code="argument.conflict", setting="pad")
        with python_errors(GENERATE_KEYWORDS):
            used = None
            if generate is not None:
                given = {"beams": None, **keywords, "tokens": generate}
                used = self._generate_settings(settings, given)
            return capture_view(
                self.writer,
                text,
                checked("layers", layers, list[int] | None),
                checked("heads", heads, list[int] | None),
                generate,
                checked("seed", seed, Seed),
                used,
                checked("pad", pad, bool),
                self.name,
            )

    @overload
    def predict(self, texts: str) -> Prediction: ...

    @overload
    def predict(self, texts: list[str] | tuple[str, ...]) -> Predictions: ...

    def predict(self, texts: str | list[str] | tuple[str, ...]) -> Prediction | Predictions:
        """Return the label of a text with the probabilities of all labels, or of each text of a list. Requires a classifier.

        >>> classifier.predict("honey from the hive").label in classifier.predict(["wax"]).labels
        True
        """
        from lilliput.api.label_predictions import predict_labels

        checked("texts", texts, str | list[str])
        with python_errors():
            found = predict_labels(self.checkpoint.folder, texts, self.device)
        return found[0] if isinstance(texts, str) else found

    def report(self) -> ReportPage:
        """Return the report of the run: curves, samples, heads and settings on one page.

        >>> run.report().save("report.html").name
        'report.html'
        """
        from lilliput.api.report_page import run_report

        with python_errors():
            return run_report(self._run)
